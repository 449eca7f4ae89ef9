"""Keeping the largest magnitudes of a task vector, once it is known where to cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from merger.ops.bits import ALL, integers_of, is_below, magnitude_bits
from merger.ops.columns import Number, per_row
from merger.ops.deltas import scaled
from merger.ops.folds import Bits, Part, bits_of, fixed_sum
from merger.ops.scratch import scratch
from merger.ops.witness import note_sparsified
from merger.types import Noise


class Cut(NamedTuple):
    """Which elements of a tensor are kept, and what they are multiplied with.

    Attributes:
        threshold: bit pattern of the smallest magnitude that is kept.
        ties: elements of exactly that magnitude are kept when their hash is below this, of 2^32.
        factor: the elements that are kept are multiplied with this.
    """

    threshold: Number = 0
    ties: Number = ALL
    factor: Number = 1.0


def cut_of(density: float) -> Cut | None:
    """The cut of a density that needs no measurement."""
    if density == 0:
        return Cut(factor=0.0)
    return Cut() if density == 1 else None


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
    note_sparsified([per_row(_keeps_zeros, cut.threshold, cut.factor) for cut in found])
    return [
        scaled(keep(delta, cut, bits_of(noise, model)), cut.factor)
        for model, (delta, cut) in enumerate(zip(deltas, found, strict=True))
    ]


def _keeps_zeros(threshold: float, factor: float) -> float:
    return float(threshold == 0 and factor != 0)


def keep(delta: Tensor, cut: Cut, bits: Bits) -> Tensor:
    """Zero what one cut does not keep, in place, without its factor."""
    if isinstance(cut.threshold, (int, float)) and cut.threshold == 0:
        return delta
    target = integers_of(delta)
    magnitudes = magnitude_bits(delta, out=scratch("integers", target, target.dtype))
    lowest = cut.threshold.to(target.dtype) if isinstance(cut.threshold, Tensor) else cut.threshold
    if isinstance(cut.ties, Tensor) or cut.ties != ALL:
        magnitudes.add_(is_below(bits(), cut.ties))
    else:
        lowest = lowest - 1
    # negative, and by the shift all ones, where the magnitude is kept
    difference = magnitudes.neg_().add_(lowest)
    target.bitwise_and_(difference.bitwise_right_shift_(target.element_size() * 8 - 1))
    return delta


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
