"""The cut that `largest` measures, read off magnitudes that stand sorted in memory.

For samples that are evaluated again and again: sorting once makes every further density a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.bits import ALL, magnitude_bits
from merger.ops.select import CountDigits
from merger.ops.trim import Cut

Ordered = NDArray[np.signedinteger[Any]]


def sorted_magnitudes(deltas: Tensor) -> Ordered:
    """Bit patterns of |delta|, ascending along the last dimension; what is not finite counts as 0.

    Args:
        deltas: float32 or float64; overwritten.
    """
    ordered: Ordered = magnitude_bits(deltas.nan_to_num_(0.0, 0.0, 0.0)).numpy()
    ordered.sort(axis=-1)
    return ordered


def read_off(part: CountDigits, ordered: Ordered, hashes: Callable[[int], NDArray[np.uint32]]) -> Cut:
    """The cut that counting would find.

    Args:
        part: what is to be measured.
        ordered: ``[elements]`` of one model and tensor, from `sorted_magnitudes`.
        hashes: random bits of the elements whose magnitude has a bit pattern.
    """
    size = len(ordered)
    rank = max(1, int(part.density * size))
    threshold = int(ordered[size - rank])
    first, last = (int(place) for place in np.searchsorted(ordered, [threshold, threshold + 1]))
    kept, equal = rank - (size - last), last - first
    ties = ALL if threshold == 0 or kept == equal else int(np.partition(hashes(threshold), kept - 1)[kept - 1]) + 1
    cut = Cut(threshold, ties)
    return cut._replace(factor=_norm_factor(ordered, first, last, kept)) if part.rescale else cut


def _norm_factor(ordered: Ordered, first: int, last: int, kept: int) -> float:
    """What restores the L1 norm when ``kept`` of the ties and all larger ones are kept."""
    sizes = ordered.view(np.float64 if ordered.itemsize == 8 else np.float32).astype(np.float64)
    every = float(sizes.sum())
    remaining = float(sizes[last:].sum()) + kept * float(sizes[first])
    if ordered[first] == 0:
        remaining = every
    return every / remaining if remaining else 1.0
