"""Measuring where to cut: which magnitudes of a task vector are the largest, or neither too large nor too small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merger.ops.bits import ALL, LOWEST_HASH, magnitude_bits
from merger.ops.folds import Bits, Part, PerModel
from merger.ops.select import CountDigits, Group, Selection
from merger.ops.trim import Boundary, Cut, MatchNorm, cut_between, cut_of
from merger.types import BLOCK_ELEMENTS, TensorContext


def largest(
    densities: Sequence[float], *, outliers: Sequence[float] | None = None, rescale: bool = False
) -> PerModel | None:
    """The measurement of which elements `keep_largest` keeps; None when all or nothing is.

    Args:
        densities: per model, the share of elements to keep, in [0, 1].
        outliers: per model, the share of elements to drop for being the largest, in [0, 1].
        rescale: whether the kept elements shall have the L1 norm that all elements have.
    """
    if all(density in (0, 1) for density in densities):
        return None
    dropped = outliers or [0.0] * len(densities)
    return PerModel(
        tuple(
            cut_of(density) or CountDigits(Trim(density, outlier, rescale))
            for density, outlier in zip(densities, dropped, strict=True)
        )
    )


def largest_but_outliers(context: TensorContext) -> PerModel | None:
    """The measurement of breadcrumbs: `largest` by ``density``, without the share ``gamma`` of the very largest."""
    densities, outliers = context.per_model("density"), context.per_model("gamma")
    return largest(densities, outliers=outliers, rescale=context.parameters["rescale"])


@dataclass(frozen=True)
class Trim(Selection):
    """Keeps a share of the elements, the largest first; optionally without those that are larger still.

    Attributes:
        density: share of elements to keep; at least one is kept.
        outliers: share of elements to drop from the top, reduced when not enough would be left.
        rescale: as in `largest`.
    """

    density: float
    outliers: float = 0.0
    rescale: bool = False

    def ranks(self, size: int, changed: int) -> list[int]:
        """Rank of the last element that is kept and, if any is dropped from the top, of the last of those."""
        target = max(1, int(self.density * size))
        top = min(int(self.outliers * size), size - target)
        return [top + target, top] if top else [target]

    def found(self, groups: Sequence[Group], size: int) -> Any:
        if not groups:
            return Cut()
        return _settled(groups, size, self.rescale)


@dataclass(frozen=True)
class ShareOfChanged(Selection):
    """Keeps a share of the elements that are not zero, the largest first; possibly none.

    Attributes:
        share: of those elements.
    """

    share: float

    def ranks(self, size: int, changed: int) -> list[int]:
        wanted = int(self.share * changed)
        return [wanted] if wanted else []

    def found(self, groups: Sequence[Group], size: int) -> Any:
        """The cut, or the part that collects ties; a factor of 0 when nothing is kept."""
        return _settled(groups, size, rescale=False) if groups else Cut(factor=0.0)


def _settled(groups: Sequence[Group], size: int, rescale: bool) -> Any:
    """The rule for the elements at the cuts: exact in small tensors, by chance in large ones."""
    if size <= BLOCK_ELEMENTS and any(group.bits and group.rank < group.size for group in groups):
        return CollectTies(tuple(groups), rescale)
    return rescaled(cut_between(*(Boundary(group.bits, by_chance(group)) for group in groups)), rescale)


def by_chance(group: Group) -> int:
    """The limit below which the hash of a tie has to be, for about as many as wanted."""
    return ALL if group.bits == 0 or group.rank == group.size else (group.rank << 32) // group.size


def rescaled(cut: Cut, rescale: bool) -> Any:
    """The cut, or the part that measures its factor."""
    return MatchNorm(cut) if rescale else cut


@dataclass(frozen=True)
class CollectTies(Part):
    """Collects the hashes of the elements at the cuts, to keep exactly as many of them as wanted.

    Attributes:
        groups: of each cut, the elements of the magnitude that is cut at, and how many of them count as larger:
            those with the smallest hashes.
        rescale: as in `largest`.
    """

    groups: tuple[Group, ...]
    rescale: bool

    def start(self) -> list[list[Tensor]]:
        return [[] for _ in self.groups]

    def add(self, state: list[list[Tensor]], delta: Tensor, bits: Bits) -> list[list[Tensor]]:
        magnitudes, hashes = magnitude_bits(delta), bits()
        for held, group in zip(state, self.groups, strict=True):
            held.append(hashes[magnitudes == group.bits].cpu())
        return state

    def join(self, left: list[list[Tensor]], right: list[list[Tensor]]) -> list[list[Tensor]]:
        return [first + second for first, second in zip(left, right, strict=True)]

    def finish(self, state: list[list[Tensor]]) -> Any:
        tied = zip(self.groups, state, strict=True)
        boundaries = [Boundary(group.bits, lowest_hashes(group, torch.cat(hashes))) for group, hashes in tied]
        return rescaled(cut_between(*boundaries), self.rescale)


def lowest_hashes(group: Group, hashes: Tensor) -> int:
    """The limit that exactly as many hashes are below as wanted.

    Args:
        group: elements of one magnitude.
        hashes: theirs.
    """
    if group.bits == 0 or group.rank == group.size:
        return ALL
    last = int(np.partition(hashes.numpy(), group.rank - 1)[group.rank - 1]) - LOWEST_HASH
    return last + 1
