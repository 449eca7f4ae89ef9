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
def run_product(left: Any, right: Any, products: Any) -> float:
    """The dot product of one run: products, then halves added to each other until one number is left."""
    for j in range(products.shape[0]):
        products[j] = left[j] * right[j]
    half = products.shape[0] // 2
    while half:
        upper, lower = products[half : 2 * half], products[:half]
        for j in range(half):
            lower[j] = lower[j] + upper[j]
        half //= 2
    return float(products[0])


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
    wide, products = np.empty((vectors, TILE), np.float64), np.empty(TILE, np.float64)
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
                totals[entry] = totals[entry] + run_product(wide[i], wide[j], products)
                entry += 1
