"""Keeping the largest magnitudes of a task vector, once it is known where to cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from merger.ops.bits import ALL, INFINITY_BITS, integers_of, is_below, magnitude_bits
from merger.ops.columns import Number, per_row
from merger.ops.deferred import deferrable
from merger.ops.deltas import scaled
from merger.ops.folds import Bits, Part, bits_of, fixed_sum
from merger.ops.scratch import scratch
from merger.ops.witness import note_sparsified
from merger.types import Noise

NO_CEILING = torch.iinfo(torch.int64).max
"""A bit pattern that no magnitude exceeds."""


class Boundary(NamedTuple):
    """Divides a tensor's elements, ordered by magnitude and equal ones by hash, into larger and smaller ones.

    Attributes:
        threshold: bit pattern of the magnitude at which they are divided.
        ties: elements of exactly that magnitude are among the larger when their hash is below this, of 2^32.
    """

    threshold: int
    ties: int


class Cut(NamedTuple):
    """Which elements of a tensor are kept, and what they are multiplied with.

    Kept is what is above the lower boundary and not above the upper one. Both compare the same hash, so they may lie
    among elements of one magnitude.

    Attributes:
        threshold, ties: the lower `Boundary`; a threshold of 0 lets everything pass.
        ceiling, ceiling_ties: the upper `Boundary`; nothing exceeds a ceiling of `NO_CEILING`.
        factor: the elements that are kept are multiplied with this.
    """

    threshold: Number = 0
    ties: Number = ALL
    ceiling: Number = NO_CEILING
    ceiling_ties: Number = 0
    factor: Number = 1.0


def cut_between(lower: Boundary, upper: Boundary | None = None) -> Cut:
    """The cut that keeps what lies between two boundaries, or above one."""
    return Cut(*lower) if upper is None else Cut(*lower, *upper)


def cut_of(density: float) -> Cut | None:
    """The cut of a density that needs no measurement."""
    if density == 0:
        return Cut(factor=0.0)
    return Cut() if density == 1 else None


@deferrable
def keep_largest(
    deltas: Sequence[Tensor], densities: Sequence[Number], cuts: Sequence[Cut] | None, noise: Noise
) -> list[Tensor]:
    """Zero all but the largest magnitudes, in place; NaN and infinities stay.

    Args:
        deltas: task vectors.
        densities: per model, the share of elements that is kept.
        cuts: what `largest` measured for these densities.
        noise: of the block.
    """
    found = cuts or [per_row(cut_of, density) for density in densities]
    note_sparsified([per_row(keeps_zeros, cut.threshold, cut.factor) for cut in found])
    return [
        scaled(keep(delta, cut, bits_of(noise, model)), cut.factor)
        for model, (delta, cut) in enumerate(zip(deltas, found, strict=True))
    ]


def keeps_zeros(threshold: float, factor: float) -> float:
    """The chance that a cut keeps an element without a change."""
    return float(threshold == 0 and factor != 0)


def keep(delta: Tensor, cut: Cut, bits: Bits) -> Tensor:
    """Zero what one cut does not keep, in place, without its factor."""
    if not (_is(cut.threshold, 0) and _is(cut.ceiling, NO_CEILING)):
        integers_of(delta).bitwise_and_(kept_mask(delta, cut, bits))
    return delta


def kept_mask(values: Tensor, cut: Cut, bits: Bits) -> Tensor:
    """All ones where a cut keeps an element, or it is not finite, else 0; integers in working memory."""
    if _uses_hashes(cut.ties) and _uses_hashes(cut.ceiling_ties):
        bits = bits().clone  # drawn once; each use overwrites its copy
    kept = _above(values, cut.threshold, cut.ties, bits, "kept")
    if not _is(cut.ceiling, NO_CEILING):
        is_dropped = _above(values, cut.ceiling, cut.ceiling_ties, bits, "dropped").bitwise_and_(_finite(values))
        kept.bitwise_and_(is_dropped.bitwise_not_())
    return kept


def _is(number: Number, value: float) -> bool:
    return not isinstance(number, Tensor) and number == value


def _uses_hashes(ties: Number) -> bool:
    return not (_is(ties, ALL) or _is(ties, 0))


def _above(values: Tensor, threshold: Number, ties: Number, bits: Bits, slot: str) -> Tensor:
    """All ones where a magnitude is above a boundary, else 0; integers in the working memory ``slot``."""
    whole = integers_of(values)
    magnitudes = magnitude_bits(values, out=scratch(slot, whole, whole.dtype))
    lowest = threshold
    if isinstance(threshold, Tensor):
        lowest = threshold.clamp(max=torch.iinfo(whole.dtype).max).to(whole.dtype)
    if _uses_hashes(ties):
        magnitudes.add_(is_below(bits(), ties))
    elif _is(ties, ALL):
        lowest = lowest - 1
    # negative, and by the shift all ones, where the magnitude is above
    return magnitudes.neg_().add_(lowest).bitwise_right_shift_(whole.element_size() * 8 - 1)


def _finite(values: Tensor) -> Tensor:
    """All ones where a number is finite, else 0; integers in working memory."""
    whole = integers_of(values)
    magnitudes = magnitude_bits(values, out=scratch("integers", whole, whole.dtype))
    return magnitudes.sub_(INFINITY_BITS[values.dtype]).bitwise_right_shift_(whole.element_size() * 8 - 1)


@dataclass(frozen=True)
class MatchNorm(Part):
    """Sums magnitudes in float64, of all elements and of those that a cut keeps.

    Attributes:
        cut: which are kept.
    """

    cut: Cut

    def start(self) -> tuple[float, float]:
        return 0.0, 0.0

    def add(self, state: tuple[float, float], delta: Tensor, bits: Bits) -> tuple[float, float]:
        every = fixed_sum(delta.nan_to_num_(0.0, 0.0, 0.0).abs_())
        return state[0] + every, state[1] + fixed_sum(keep(delta, self.cut, bits))

    def join(self, left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
        return left[0] + right[0], left[1] + right[1]

    def finish(self, state: tuple[float, float]) -> Cut:
        every, kept = state
        return self.cut._replace(factor=every / kept if kept else 1.0)
