"""Small models with tensors of several blocks, and what a merge of them looks like."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

ROWS, COLUMNS, TENSORS = 600, 1024, 4
SHARD_SIZE = 2_500_000


def write_family(
    root: Path, extra: Mapping[str, torch.Tensor] | None = None, *, rows: int = ROWS, tensors: int = TENSORS
) -> list[Path]:
    """A base and two fine-tunes of it in bfloat16, with tensors of several blocks, and ``extra`` ones in each."""
    generator = torch.Generator().manual_seed(11)
    base = {f"layers.{index}.w.weight": torch.randn(rows, COLUMNS, generator=generator) for index in range(tensors)}
    folders = []
    for number in range(3):
        changed = {
            name: w + (0.01 * torch.randn(w.shape, generator=generator) if number else 0) for name, w in base.items()
        }
        narrow = {name: w.to(torch.bfloat16) for name, w in {**changed, **(extra or {})}.items()}
        folders.append(root / f"model{number}")
        folders[-1].mkdir(parents=True)
        save_file(narrow, folders[-1] / "model.safetensors")
    return folders


def copies_of(models: list[Path], place: Path) -> list[Path]:
    """The models once more, to be damaged."""
    return [Path(shutil.copytree(model, place / model.name)) for model in models]


def recipe_text(models: list[Path], method: str = "dare_ties") -> str:
    """A recipe of the family."""
    lines = [f"merge_method: {method}", f"base_model: {models[0]}", "models:"]
    for path in models[1:]:
        lines += [f"  - model: {path}", "    parameters: {weight: 0.6, density: 0.5}"]
    return "\n".join(lines) + "\n"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
