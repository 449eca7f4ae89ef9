"""Probabilities by the rank of magnitudes in their row; the twin of `merger.ops.sparsify.mean_ranks`."""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels import tiles
from merger.ops.kernels.compiling import compiled, step
from merger.ops.kernels.tiles import MAGNITUDE, f32, i32, u32

DIGIT_BITS = u32(11)
DIGITS = 1 << 11
LAST_DIGIT = u32(DIGITS - 1)


@step
def sort_by_digit(keys: Any, order: Any, to_keys: Any, to_order: Any, shift: Any, counts: Any) -> bool:
    """Move keys and their places to other arrays, ordered by one digit; False when all have the same."""
    counts[:] = 0
    for j in range(keys.shape[0]):
        counts[u32(u32(keys[j] >> shift) & LAST_DIGIT)] += 1
    if counts[u32(u32(keys[0] >> shift) & LAST_DIGIT)] == keys.shape[0]:
        return False
    position = i32(0)
    for digit in range(DIGITS):
        count = counts[digit]
        counts[digit] = position
        position = i32(position + count)
    for j in range(keys.shape[0]):
        digit = u32(u32(keys[j] >> shift) & LAST_DIGIT)
        place = counts[digit]
        counts[digit] = i32(place + 1)
        to_keys[place] = keys[j]
        to_order[place] = order[j]
    return True


@step
def spread_ranks(keys: Any, order: Any, lowest: Any, rise: Any, chances: Any) -> None:
    """``lowest + rise * rank`` at each key's place; equal keys, side by side, share the mean of their ranks."""
    first = 0
    while first < keys.shape[0]:
        stop = first + 1
        while stop < keys.shape[0] and keys[stop] == keys[first]:
            stop += 1
        rank = f32(f32(first) + f32(f32(stop - first - 1) * f32(0.5)))
        chance = f32(f32(rank * rise) + lowest)
        for j in range(first, stop):
            chances[order[j]] = chance
        first = stop


@compiled
def chances_by_rank(stored: Any, row: int, lines: Any, wanted: Any, chances: Any) -> None:
    """Fill in the probability of keeping each element of every model's change.

    Args:
        stored: ``[1 + models, elements]`` bits, the base first; whole rows.
        row: elements of a row.
        lines: float32 ``[models, 2]``: probability of the lowest rank, and the step to the next.
        wanted: bool per model; others are left out.
        chances: float32 ``[models, elements]``, overwritten.
    """
    scratch = np.empty((2, row), np.float32)
    keys, order = np.empty((2, row), np.uint32), np.empty((2, row), np.int32)
    counts = np.empty(DIGITS, np.int32)
    for start in range(0, stored.shape[1], row):
        base, change = scratch[0], scratch[1]
        tiles.widen(stored[0, start : start + row], base.view(np.uint32))
        for i in range(stored.shape[0] - 1):
            if not wanted[i]:
                continue
            tiles.widen(stored[i + 1, start : start + row], change.view(np.uint32))
            tiles.subtract(change, base)
            bits = change.view(np.uint32)
            for j in range(row):
                keys[0, j] = u32(bits[j] & MAGNITUDE)
                order[0, j] = i32(j)
            here = 0
            for digit in range(3):
                shift = u32(u32(digit) * DIGIT_BITS)
                if sort_by_digit(keys[here], order[here], keys[1 - here], order[1 - here], shift, counts):
                    here = 1 - here
            spread_ranks(keys[here], order[here], lines[i, 0], lines[i, 1], chances[i, start : start + row])
