"""Generated checkpoints for the benchmarks: families of Llama-like models, and models of one giant tensor."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import torch

HIDDEN, INNER, KEY_VALUE, VOCABULARY = 1024, 2816, 256, 32000
EXPERTS = (
    "code", "law", "math", "medicine", "history", "chess", "biology", "music", "physics", "finance", "poetry", "travel",
)  # fmt: skip
RELATIVE_DELTA = 0.01
"""Size of a fine-tune's change relative to the weights: what published fine-tunes show."""

GIANT_NAME, GIANT_COLUMNS = "model.layers.0.mlp.down_proj.weight", 4000
CHUNK_ROWS = 1000

Shape = tuple[int, ...]


def make_family(folder: Path, layers: int, experts: int = 3) -> tuple[Path, list[Path]]:
    """The folders of a base and its fine-tunes, whose deltas look like real ones; made unless they are there already.

    Raises:
        SystemExit: they do not fit on the disk.
    """
    base, *others = models = [folder / name for name in ("base", *EXPERTS[:experts])]
    missing = [model for model in models if not _is_made(model)]
    shapes = dict(sorted(_shapes(layers)))
    _require_space(folder, len(missing) * _size(shapes))
    for model in missing:
        with _weight_file(model, shapes) as file:
            for index, (name, _) in enumerate(_shapes(layers)):
                file.seek(_start(shapes, name))
                _put(file, _weights(index, shapes[name], models.index(model)))
        _finish(model, layers)
    return base, others


def make_giants(folder: Path, elements: int, experts: int = 3) -> tuple[Path, list[Path]]:
    """Like `make_family`, but each model is one tensor of about this many elements.

    Raises:
        SystemExit: they do not fit on the disk.
    """
    base, *others = models = [folder / name for name in ("base", *EXPERTS[:experts])]
    if all(map(_is_made, models)):
        return base, others
    shutil.rmtree(folder, ignore_errors=True)
    shapes = {GIANT_NAME: (max(1, elements // GIANT_COLUMNS), GIANT_COLUMNS)}
    _require_space(folder, len(models) * _size(shapes))
    with ExitStack() as stack:
        files = [stack.enter_context(_weight_file(model, shapes)) for model in models]
        for chunk in _giant_chunks(shapes[GIANT_NAME][0], len(models)):
            for file, values in zip(files, chunk, strict=True):
                _put(file, values)
    for model in models:
        _finish(model, layers=1)
    return base, others


def _is_made(model: Path) -> bool:
    return (model / "config.json").exists()


def _require_space(folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size and free < 1.2 * size:
        raise SystemExit(f"{size / 1e9:.1f} GB of models do not fit into the {free / 1e9:.1f} GB that are free")


def _size(shapes: Mapping[str, Shape]) -> int:
    return sum(2 * torch.Size(shape).numel() for shape in shapes.values())


def _start(shapes: Mapping[str, Shape], name: str) -> int:
    """Where a tensor's bytes start in the file."""
    names = list(shapes)
    return len(_header(shapes)) + _size({before: shapes[before] for before in names[: names.index(name)]})


def _header(shapes: Mapping[str, Shape]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _size({name: shape})
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _weight_file(model: Path, shapes: Mapping[str, Shape]) -> BinaryIO:
    """A safetensors file that holds its header; the tensors' bytes come next."""
    model.mkdir(parents=True, exist_ok=True)
    file = (model / "model.safetensors").open("wb")
    file.write(_header(shapes))
    return file


def _put(file: BinaryIO, values: torch.Tensor) -> None:
    file.write(values.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().data)


def _finish(model: Path, layers: int) -> None:
    with (model / "model.safetensors").open("rb") as written:
        os.fsync(written.fileno())
    (model / "config.json").write_text(json.dumps(_config(layers), indent=2), encoding="utf-8")


def _weights(index: int, shape: Shape, seed: int) -> torch.Tensor:
    """Seed 0 is the base; others add a change whose rows differ in strength, as trained ones do."""
    base = 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(index))
    if seed == 0:
        return base
    generator = torch.Generator().manual_seed(seed * 10_000 + index)
    strength = torch.randn((shape[0],) + (1,) * (len(shape) - 1), generator=generator).exp()
    change = torch.randn(shape, generator=generator) * strength
    return base + change * (RELATIVE_DELTA * base.norm() / change.norm())


def _giant_chunks(rows: int, models: int) -> Iterator[list[torch.Tensor]]:
    """Some rows of the base and of every fine-tune at a time."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, rows, CHUNK_ROWS):
        base = torch.empty(min(CHUNK_ROWS, rows - start), GIANT_COLUMNS).normal_(0, 0.02, generator=generator)
        changes = torch.empty(models - 1, *base.shape).normal_(0, 0.02 * RELATIVE_DELTA, generator=generator)
        yield [base, *(base + change for change in changes)]


def _shapes(layers: int) -> Iterator[tuple[str, Shape]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(layers):
        for part, shape in (
            ("input_layernorm", (HIDDEN,)),
            ("self_attn.q_proj", (HIDDEN, HIDDEN)),
            ("self_attn.k_proj", (KEY_VALUE, HIDDEN)),
            ("self_attn.v_proj", (KEY_VALUE, HIDDEN)),
            ("self_attn.o_proj", (HIDDEN, HIDDEN)),
            ("post_attention_layernorm", (HIDDEN,)),
            ("mlp.gate_proj", (INNER, HIDDEN)),
            ("mlp.up_proj", (INNER, HIDDEN)),
            ("mlp.down_proj", (HIDDEN, INNER)),
        ):
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def parameter_count(layers: int) -> int:
    """Parameters of one model of a family."""
    return sum(torch.Size(shape).numel() for _, shape in _shapes(layers))


def _config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
