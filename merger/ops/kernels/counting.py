"""Counting the magnitudes of changes by their digits, for the exact k-th largest; see `merger.ops.select`."""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels import tiles
from merger.ops.kernels.codes import FIRST_PASS, UNUSED
from merger.ops.kernels.compiling import compiled, step
from merger.ops.kernels.tiles import HALF, MAGNITUDE, TILE, u16, u32

LOW_DIGIT, EVEN = u32(0xFFFF), u32(0xFFFE)


@step
def count_upper(change: Any, places: Any, counts: Any) -> None:
    """Count the first 16 bits of each magnitude, in the even places; in the odd ones where bits follow them."""
    for j in range(change.shape[0]):
        magnitude = u32(change[j] & MAGNITUDE)
        has_more = u32(u32(magnitude & LOW_DIGIT) != u32(0))
        places[j] = u16(u32(u32(magnitude >> u32(15)) & EVEN) | has_more)
    for j in range(places.shape[0]):
        counts[places[j]] += 1


@step
def count_below(change: Any, prefix: Any, counts: Any) -> None:
    """Count the last 16 bits of the magnitudes that begin with a prefix."""
    for j in range(change.shape[0]):
        magnitude = u32(change[j] & MAGNITUDE)
        if u32(magnitude >> HALF) == prefix:
            counts[u32(magnitude & LOW_DIGIT)] += 1


@compiled
def count_changes(stored: Any, prefixes: Any, counts: Any) -> None:
    """Count one pass's digits of every model's change.

    Args:
        stored: ``[1 + models, elements]`` bits, the base first.
        prefixes: int64 ``[models, sought]``: `FIRST_PASS`, or beginnings that are known; `UNUSED` leaves out.
        counts: int32 ``[models, sought, 65536]``, added to: of each digit; in the first pass of each two times, of
            magnitudes that end with it and of those that do not.
    """
    scratch, places = np.empty((2, TILE), np.float32), np.empty(TILE, np.uint16)
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
                count_upper(change.view(np.uint32), places[: stop - start], counts[i, 0])
            else:
                for sought in range(prefixes.shape[1]):
                    if prefixes[i, sought] != UNUSED:
                        count_below(change.view(np.uint32), u32(prefixes[i, sought]), counts[i, sought])
