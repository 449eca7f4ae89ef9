"""Telling changes that one model makes alone from those that several make: RAM (arXiv 2601.13572)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from merger.ops.bits import integers_of, magnitude_bits
from merger.ops.columns import Number, number_like
from merger.ops.deltas import scaled
from merger.ops.folds import changes_of
from merger.ops.scratch import scratch
from merger.ops.witness import note_mixed, note_sparsified
from merger.types import Block


def merge_overlaps(deltas: Sequence[Tensor], epsilon: Number, alone: Sequence[Number]) -> Tensor:
    """Each change that one model makes alone, times its factor, and the mean of those that several make.

    Args:
        deltas: task vectors; overwritten.
        epsilon: changes up to this magnitude are none; those that are not finite are changes.
        alone: per model, the factor.

    Returns:
        The mixed change, of their shape.
    """
    note_sparsified([0.0] * len(deltas))
    makers = scratch("makers", deltas[0], integers_of(deltas[0]).dtype).zero_()
    for delta in deltas:
        is_change = _changes(delta, epsilon)
        makers.sub_(is_change)
        integers_of(delta).bitwise_and_(is_change)
    note_mixed(deltas, [1.0] * len(deltas), elects=False)
    shared = scratch("shared", deltas[0], deltas[0].dtype).copy_(deltas[0])
    for delta in deltas[1:]:
        shared.add_(delta)
    shared.div_(scratch("divisor", shared, shared.dtype).copy_(makers).clamp_(min=1.0))
    own = scaled(deltas[0], alone[0])
    for delta, factor in zip(deltas[1:], alone[1:], strict=True):
        own.add_(scaled(delta, factor))
    is_shared = _several(makers)
    integers_of(shared).bitwise_and_(is_shared)
    integers_of(own).bitwise_and_(is_shared.bitwise_not_()).bitwise_or_(integers_of(shared))
    return own


def _changes(delta: Tensor, epsilon: Number) -> Tensor:
    """All ones where a magnitude exceeds ``epsilon``, or is not finite, else 0; integers in working memory."""
    bits = integers_of(delta)
    limit = integers_of(number_like(epsilon, delta))
    magnitudes = magnitude_bits(delta, out=scratch("integers", bits, bits.dtype))
    return magnitudes.neg_().add_(limit).bitwise_right_shift_(bits.element_size() * 8 - 1)


def _several(makers: Tensor) -> Tensor:
    """All ones where a number is above 1, else 0, in place."""
    return makers.neg_().add_(1).bitwise_right_shift_(makers.element_size() * 8 - 1)


@dataclass(frozen=True)
class CountOverlaps:
    """A fold that counts, for each model, the changes that it shares and those that it makes alone.

    Attributes:
        epsilon: changes up to this magnitude are none; neither are those that are not finite.
    """

    epsilon: float

    def start(self) -> list[tuple[int, int]]:
        return []

    def add(self, state: list[tuple[int, int]], block: Block) -> list[tuple[int, int]]:
        changes = []
        for delta in changes_of(block):
            delta.nan_to_num_(0.0, 0.0, 0.0)
            changes.append(integers_of(delta).copy_(_changes(delta, self.epsilon)))
        makers = scratch("makers", changes[0], changes[0].dtype).zero_()
        for is_change in changes:
            makers.sub_(is_change)
        is_shared = _several(makers)
        counted = []
        for is_change in changes:
            every = int(is_change.count_nonzero())
            shared = int(is_change.bitwise_and_(is_shared).count_nonzero())
            counted.append((shared, every - shared))
        return self.join(state, counted)

    def join(self, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if not left or not right:
            return left or right
        return [(a + c, b + d) for (a, b), (c, d) in zip(left, right, strict=True)]

    def finish(self, state: list[tuple[int, int]]) -> list[float]:
        """Per model, how many changes it shares for each that it makes alone; without any, what enlarges nothing."""
        return [shared / (max(alone, self.epsilon) or 1.0) for shared, alone in state]
