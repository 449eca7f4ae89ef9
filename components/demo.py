"""The demo family: a small network that reads handwritten digits, and how well a merge of it reads them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "demo"
BASE = FOLDER / "base"
EXPERTS = {view: FOLDER / view for view in ("rotated", "inverted", "mirrored")}
"""Folders of the three fine-tunes by the view that each one learned."""

IMAGES = FOLDER / "digits.npz"
INK = 16
"""Largest pixel value in the file."""

Array = np.ndarray
Tensors = Mapping[str, "torch.Tensor"]


def views_of(images: Array) -> dict[str, Array]:
    """The four ways in which the family looks at digits.

    Args:
        images: float32 ``[n, 8, 8]``, 0 for paper and 1 for full ink.

    Returns:
        float32 ``[n, 64]`` for each view.
    """
    views = {
        "normal": images,
        "rotated": np.rot90(images, axes=(1, 2)),
        "inverted": 1 - images,
        "mirrored": images[:, :, ::-1],
    }
    return {name: np.ascontiguousarray(view).reshape(len(images), 64) for name, view in views.items()}


@cache
def views() -> dict[str, Array]:
    """The 597 test images that no model of the family was trained on, in each view."""
    with np.load(IMAGES) as file:
        return views_of(file["images"].astype(np.float32) / INK)


@cache
def labels() -> Array:
    """The digits on the test images: int64 ``[597]``."""
    with np.load(IMAGES) as file:
        return file["labels"].astype(np.int64)


def logits(tensors: Tensors, pixels: torch.Tensor) -> torch.Tensor:
    """The network: embed, residual blocks of norm, up, GELU and down, norm, head.

    Args:
        tensors: weights by name, all of one float dtype.
        pixels: ``[n, 64]`` of the same dtype.

    Returns:
        ``[n, 10]``, one score per digit.
    """
    from torch.nn.functional import gelu

    hidden = _linear(tensors, "embed", pixels)
    for layer in range(sum(name.endswith(".up.weight") for name in tensors)):
        prefix = f"layers.{layer}"
        inner = gelu(_linear(tensors, f"{prefix}.up", _norm(tensors, f"{prefix}.norm", hidden)))
        hidden = hidden + _linear(tensors, f"{prefix}.down", inner)
    return _linear(tensors, "head", _norm(tensors, "norm", hidden))


def _linear(tensors: Tensors, name: str, inputs: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import linear

    return linear(inputs, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def _norm(tensors: Tensors, name: str, inputs: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import layer_norm

    return layer_norm(inputs, inputs.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def accuracy(tensors: Tensors) -> dict[str, float]:
    """The share of test images that these weights read rightly, for each view.

    Args:
        tensors: the network's weights by name, of any float dtype.
    """
    import torch

    target = torch.from_numpy(labels())
    with torch.inference_mode():
        weights = {name: tensor.float() for name, tensor in tensors.items()}
        guesses = {view: logits(weights, torch.from_numpy(pixels)).argmax(1) for view, pixels in views().items()}
        return {view: float((guess == target).float().mean()) for view, guess in guesses.items()}
