"""Counting the magnitudes of changes by their digits, for the exact k-th largest; see `merger.ops.select`."""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels import tiles
from merger.ops.kernels.compiling import compiled, step
from merger.ops.kernels.tiles import HALF, MAGNITUDE, TILE, u16, u32

LOW_DIGIT = u32(0xFFFF)
FIRST_PASS, UNUSED = -1, -2
"""In place of the first bits of a magnitude."""


@step
def split_digits(change: Any, upper: Any, lower: Any) -> None:
    """The first and the last 16 bits of each magnitude."""
    for j in range(change.shape[0]):
        magnitude = u32(change[j] & MAGNITUDE)
        upper[j] = u16(magnitude >> HALF)
        lower[j] = u16(magnitude & LOW_DIGIT)


@step
def count_upper(upper: Any, lower: Any, counts: Any, more: Any) -> None:
    """Count each first digit, and once more where bits follow it."""
    for j in range(upper.shape[0]):
        counts[upper[j]] += 1
        if lower[j] != u16(0):
            more[upper[j]] += 1


@step
def count_below(change: Any, prefix: Any, counts: Any) -> None:
    """Count the last 16 bits of the magnitudes that begin with a prefix."""
    for j in range(change.shape[0]):
        magnitude = u32(change[j] & MAGNITUDE)
        if u32(magnitude >> HALF) == prefix:
            counts[u32(magnitude & LOW_DIGIT)] += 1


@compiled
def count_changes(stored: Any, prefixes: Any, counts: Any, more: Any) -> None:
    """Count one pass's digits of every model's change.

    Args:
        stored: ``[1 + models, elements]`` bits, the base first.
        prefixes: int64 ``[models, sought]``: `FIRST_PASS`, or beginnings that are known; `UNUSED` leaves out.
        counts: int64 ``[models, sought, 65536]``, added to.
        more: of the same shape: in the first pass, counts of the magnitudes that have further bits, added to.
    """
    scratch, digits = np.empty((2, TILE), np.float32), np.empty((2, TILE), np.uint16)
    for start in range(0, stored.shape[1], TILE):
        stop = min(start + TILE, stored.shape[1])
        base, change = scratch[0, : stop - start], scratch[1, : stop - start]
        tiles.widen(stored[0, start:stop], base.view(np.uint32))
        for i in range(stored.shape[0] - 1):
            if prefixes[i, 0] == UNUSED:
                continue
            tiles.widen(stored[i + 1, start:stop], change.view(np.uint32))
            tiles.subtract(change, base)
            if prefixes[i, 0] == FIRST_PASS:
                upper, lower = digits[0, : stop - start], digits[1, : stop - start]
                split_digits(change.view(np.uint32), upper, lower)
                count_upper(upper, lower, counts[i, 0], more[i, 0])
            else:
                for sought in range(prefixes.shape[1]):
                    if prefixes[i, sought] != UNUSED:
                        count_below(change.view(np.uint32), u32(prefixes[i, sought]), counts[i, sought])
