"""The cut that `largest` measures, read off magnitudes that stand sorted in memory.

For samples that are evaluated again and again: sorting once makes every further density a look-up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.bits import magnitude_bits
from merger.ops.cutting import Trim, by_chance, lowest_hashes
from merger.ops.folds import Part, PerModel
from merger.ops.select import CountDigits, Group
from merger.ops.trim import Boundary, Cut, cut_between

Ordered = NDArray[np.signedinteger[Any]]


def sorted_magnitudes(deltas: Tensor) -> Ordered:
    """Bit patterns of |delta|, ascending along the last dimension; what is not finite counts as 0.

    Args:
        deltas: float32 or float64; overwritten.
    """
    ordered: Ordered = magnitude_bits(deltas.nan_to_num_(0.0, 0.0, 0.0)).numpy()
    ordered.sort(axis=-1)
    return ordered


def can_read_off(fold: Any) -> TypeGuard[PerModel]:
    """Whether a measurement is of such cuts, and of nothing else."""
    return isinstance(fold, PerModel) and all(
        _trim_of(part) is not None for part in fold.parts if isinstance(part, Part)
    )


def _trim_of(part: Any) -> Trim | None:
    is_trim = type(part) is CountDigits and isinstance(part.selection, Trim)
    return part.selection if is_trim else None


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
    trims = [_trim_of(part) for part in parts]
    size = ordered.shape[1]
    ranks = [[] if trim is None else trim.ranks(size, size) for trim in trims]
    wanted = itertools.zip_longest(*ranks, fillvalue=1)
    groups = list(zip(*(_groups(ordered, column) for column in wanted), strict=True))
    cuts = []
    for place, (part, trim) in enumerate(zip(parts, trims, strict=True)):
        if trim is None:
            cuts.append(cast(Cut, part))
            continue
        own = groups[place][: len(ranks[place])]
        cut = cut_between(*(Boundary(group.bits, _limit(group, place, hashes)) for group in own))
        cuts.append(_norm_matched(cut, ordered[place], ranks[place]) if trim.rescale else cut)
    return cuts


def _groups(ordered: Ordered, ranks: Sequence[int]) -> list[Group]:
    """For each tensor, the elements that have the magnitude of the one with this rank."""
    size, places = ordered.shape[1], np.array(ranks)
    thresholds = np.take_along_axis(ordered, (size - places)[:, None], 1)
    smaller, larger = (ordered < thresholds).sum(1), (ordered > thresholds).sum(1)
    rows = zip(thresholds[:, 0].tolist(), (places - larger).tolist(), (size - smaller - larger).tolist(), strict=True)
    return [Group(*row) for row in rows]


def _limit(group: Group, place: int, hashes: Callable[[int, int], Tensor] | None) -> int:
    """The limit for the hashes of ties."""
    if hashes is None or group.bits == 0 or group.rank == group.size:
        return by_chance(group)
    return lowest_hashes(group, hashes(place, group.bits))


def _norm_matched(cut: Cut, ordered: Ordered, ranks: Sequence[int]) -> Cut:
    """The cut with the factor that restores the L1 norm when the ranks between the boundaries are kept."""
    sizes = ordered.view(np.float64 if ordered.itemsize == 8 else np.float32).astype(np.float64)
    lower, upper = (*ranks, 0)[:2]
    remaining = float(sizes[len(sizes) - lower : len(sizes) - upper].sum())
    return cut._replace(factor=float(sizes.sum()) / remaining) if remaining else cut
