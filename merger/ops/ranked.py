"""The cut that `largest` measures, read off magnitudes that stand sorted in memory.

For samples that are evaluated again and again: sorting once makes every further density a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.bits import magnitude_bits
from merger.ops.select import CollectTies, CountDigits
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


def read_off(
    parts: Sequence[CountDigits | Cut], ordered: Ordered, hashes: Callable[[int, int], Tensor] | None
) -> list[Cut]:
    """The cuts that counting would find for one model in several tensors.

    Args:
        parts: for each tensor what is to be measured, or the cut when that is known already.
        ordered: ``[tensors, elements]`` from `sorted_magnitudes`.
        hashes: given a tensor's place and a bit pattern, random bits of the elements that have this
            magnitude; for tensors that are small enough to keep exactly as many as wanted.  None for
            tensors that keep ties by chance.
    """
    size = ordered.shape[1]
    ranks = np.array([max(1, int(part.density * size)) if isinstance(part, CountDigits) else 1 for part in parts])
    thresholds = np.take_along_axis(ordered, (size - ranks)[:, None], 1)
    first, larger = (ordered < thresholds).sum(1), (ordered > thresholds).sum(1)
    kept, equal = ranks - larger, size - first - larger
    rows = zip(parts, thresholds[:, 0].tolist(), kept.tolist(), equal.tolist(), strict=True)
    cuts = []
    for place, (part, threshold, wanted, found) in enumerate(rows):
        if isinstance(part, Cut):
            cuts.append(part)
            continue
        cut = Cut(threshold)
        if threshold and wanted < found:
            cut = cut._replace(ties=(wanted << 32) // found)
            if hashes is not None:
                cut = CollectTies(threshold, wanted, rescale=False).finish([hashes(place, threshold)])
        cuts.append(_norm_matched(cut, ordered[place], wanted) if part.rescale else cut)
    return cuts


def _norm_matched(cut: Cut, ordered: Ordered, wanted: int) -> Cut:
    """The cut with the factor that restores the L1 norm when ``wanted`` of the ties are kept."""
    sizes = ordered.view(np.float64 if ordered.itemsize == 8 else np.float32).astype(np.float64)
    if cut.threshold == 0:
        return cut
    is_tied, is_larger = ordered == cut.threshold, ordered > cut.threshold
    remaining = float(sizes[is_larger].sum()) + wanted * float(sizes[is_tied][0])
    return cut._replace(factor=float(sizes.sum()) / remaining)
