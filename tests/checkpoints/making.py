"""Safetensors files made by hand, sound ones and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from merger.types import ModelReference, TensorSpec

SOUND_HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
}
SOUND_DATA = bytes(range(22))


def raw_file(header: Any = None, data: bytes = SOUND_DATA) -> bytes:
    """A file from a header (an object, or the very bytes) and data."""
    text = header if isinstance(header, bytes) else json.dumps(SOUND_HEADER if header is None else header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def many_kinds() -> dict[str, torch.Tensor]:
    """Tensors of every supported dtype and of odd shapes."""
    generator = torch.Generator().manual_seed(5)
    floats = torch.randn(7, 13, generator=generator)
    whole = torch.randint(0, 100, (5, 3), generator=generator)
    tensors = {f"float.{dtype}": floats.to(dtype) for dtype in (torch.float64, torch.float32)}
    tensors |= {f"half.{dtype}": floats.to(dtype) for dtype in (torch.float16, torch.bfloat16)}
    tensors |= {f"eight.{dtype}": floats.to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)}
    tensors |= {f"int.{bits}": whole.to(getattr(torch, f"int{bits}")) for bits in (8, 16, 32, 64)}
    tensors |= {f"uint.{bits}": whole.to(getattr(torch, f"uint{bits}")) for bits in (8, 16, 32, 64)}
    return tensors | {
        "bool": whole > 50,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "large": torch.randn(300, 1000, generator=generator),
    }


def save_sharded(folder: Path, tensors: dict[str, torch.Tensor], count: int = 3) -> Path:
    """A folder of ``count`` shards with an index, as other programs write it."""
    folder.mkdir()
    names = list(tensors)
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = {name: tensors[name] for name in names[number::count]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def spec(name: str, dtype: str = "F32", shape: tuple[int, ...] = (4,)) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def reference(path: Path) -> ModelReference:
    return ModelReference(str(path))
