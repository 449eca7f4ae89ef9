"""Dot products of whole tensors in float64, in the order of `merger.ops.gram`."""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels import tiles
from merger.ops.kernels.compiling import compiled, step
from merger.ops.kernels.tiles import INFINITY, TILE, u32


@step
def widen_finite(values: Any, wide: Any) -> None:
    """float32 bits to float64; what is not finite becomes 0."""
    numbers = values.view(np.float32)
    for j in range(values.shape[0]):
        is_finite = u32(values[j] & INFINITY) != INFINITY
        wide[j] = np.float64(numbers[j]) if is_finite else 0.0


@step
def run_product(left: Any, right: Any, sums: Any) -> float:
    """The dot product of one run: products, then halves added to each other until one number is left.

    Args:
        left: ``[1024]``.
        right: ``[1024]``.
        sums: room for 256 numbers; the first two halvings are done while the products are made.
    """
    quarter = left.shape[0] // 4
    half, rest = 2 * quarter, 3 * quarter
    a0, a1, a2, a3 = left[:quarter], left[quarter:half], left[half:rest], left[rest:]
    b0, b1, b2, b3 = right[:quarter], right[quarter:half], right[half:rest], right[rest:]
    for j in range(quarter):
        sums[j] = (a0[j] * b0[j] + a2[j] * b2[j]) + (a1[j] * b1[j] + a3[j] * b3[j])
    half = quarter // 2
    while half:
        upper, lower = sums[half : 2 * half], sums[:half]
        for j in range(half):
            lower[j] = lower[j] + upper[j]
        half //= 2
    return float(sums[0])


@compiled
def gram(stored: Any, of_changes: bool, totals: Any) -> None:
    """The dot products of every two vectors, added up run by run.

    Args:
        stored: ``[vectors, elements]`` bits; ``[1 + vectors, elements]`` with the base first when
            ``of_changes``.
        of_changes: whether the vectors are the changes from the base.
        totals: float64, the entries on and above the diagonal, row by row: added to.
    """
    vectors = stored.shape[0] - (1 if of_changes else 0)
    wide, sums = np.empty((vectors, TILE), np.float64), np.empty(TILE // 4, np.float64)
    scratch = np.empty((2, TILE), np.float32)
    for start in range(0, stored.shape[1], TILE):
        stop = min(start + TILE, stored.shape[1])
        size = stop - start
        base, values = scratch[0, :size], scratch[1, :size]
        if of_changes:
            tiles.widen(stored[0, start:stop], base.view(np.uint32))
        for i in range(vectors):
            tiles.widen(stored[i + stored.shape[0] - vectors, start:stop], values.view(np.uint32))
            if of_changes:
                tiles.subtract(values, base)
            widen_finite(values.view(np.uint32), wide[i, :size])
            wide[i, size:] = 0.0
        entry = 0
        for i in range(vectors):
            for j in range(i, vectors):
                totals[entry] = totals[entry] + run_product(wide[i], wide[j], sums)
                entry += 1
