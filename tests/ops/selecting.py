"""Measures where to cut and cuts, block by block, the way the engine does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from merger.ops.cutting import largest
from merger.ops.noise import BlockNoise
from merger.ops.trim import Cut, keep_largest
from merger.types import BLOCK_ELEMENTS, Block


def blocks(deltas: Sequence[Tensor], size: int) -> Iterator[Block]:
    """Fresh blocks of tensors whose base is zero."""
    count = deltas[0].numel()
    for start in range(0, count, size):
        pieces = [delta[start : start + size].clone() for delta in deltas]
        noise = BlockNoise(0, "w", range(len(deltas)), start, pieces[0].shape)
        yield Block(pieces, torch.zeros_like(pieces[0]), noise)


def folded(fold: Any, deltas: Sequence[Tensor], size: int = BLOCK_ELEMENTS) -> tuple[Any, int]:
    """The measured value, two blocks to a span, and how many passes it took."""
    passes = 0
    while hasattr(fold, "finish"):
        states = []
        for number, block in enumerate(blocks(deltas, size)):
            if number % 2 == 0:
                states.append(fold.start())
            states[-1] = fold.add(states[-1], block)
        state, passes = states[0], passes + 1
        for following in states[1:]:
            state = fold.join(state, following)
        fold = fold.finish(state)
    return fold, passes


def measure(
    deltas: Sequence[Tensor],
    densities: Sequence[float],
    *,
    size: int = BLOCK_ELEMENTS,
    outliers: Sequence[float] | None = None,
    rescale: bool = False,
) -> tuple[list[Cut] | None, int]:
    """The measured cuts, and how many passes they took."""
    return folded(largest(densities, outliers=outliers, rescale=rescale), deltas, size)


def trimmed(
    deltas: Sequence[Tensor],
    densities: Sequence[float],
    *,
    size: int = BLOCK_ELEMENTS,
    outliers: Sequence[float] | None = None,
    rescale: bool = False,
) -> list[Tensor]:
    """What `keep_largest` makes of the deltas."""
    cuts, _ = measure(deltas, densities, size=size, outliers=outliers, rescale=rescale)
    kept = [keep_largest(block.tensors, densities, cuts, block.noise) for block in blocks(deltas, size)]
    return [torch.cat(pieces) for pieces in zip(*kept, strict=True)]
