"""Keeping the elements in which models differ most, and how much each model changed in them: SCE (arXiv 2408.07990)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from merger.ops.bits import integers_of
from merger.ops.columns import Number, per_row, total
from merger.ops.cutting import ShareOfChanged
from merger.ops.folds import Elementwise, changes_of, fixed_sum
from merger.ops.scratch import scratch
from merger.ops.select import CountDigits
from merger.ops.trim import Cut, keeps_zeros, kept_mask
from merger.ops.witness import note_sparsified
from merger.types import Block, Fold, Noise

PIECE = 1 << 15
"""Elements whose deviations are computed together, so that they stay in the cache."""


class Spread(NamedTuple):
    """What has to be known of a whole tensor.

    Attributes:
        cut: which deviations are kept.
        shares: per model, its part of the squares of all changes where deviations are kept; they add up to 1,
            or are all 0.
    """

    cut: Cut
    shares: Sequence[Number]


def most_spread(share: float) -> Fold:
    """The measurement of a `Spread`.

    Args:
        share: of the elements that differ between models, to keep those that differ most; 1 keeps everything.
    """
    if share >= 1:
        return Energies(Cut())
    return Elementwise(CountDigits(ShareOfChanged(share)), _deviations_of, Energies)


def _deviations_of(block: Block) -> Tensor:
    return deviations(changes_of(block))


def deviations(deltas: Sequence[Tensor]) -> Tensor:
    """The standard deviation of each element over the models (of the population), which orders as variance does.

    Computed in float64 from differences to the first model, so equal models give exactly 0, and rounded once, so
    equal variances stay equal; a root does not vanish where a square of float32 would.

    Args:
        deltas: task vectors of equal shape; left as they are.

    Returns:
        A tensor of their shape and type, in working memory.
    """
    result = scratch("deviation", deltas[0], deltas[0].dtype)
    target, flat = result.view(-1), [delta.reshape(-1) for delta in deltas]
    for start in range(0, len(target), PIECE):
        piece = slice(start, start + PIECE)
        target[piece].copy_(_deviations([delta[piece] for delta in flat]))
    return result


def _deviations(deltas: Sequence[Tensor]) -> Tensor:
    first, count = deltas[0], len(deltas)
    origin = scratch("origin", first, torch.float64).copy_(first)
    term = scratch("term", first, torch.float64)
    sums, squares = (scratch(slot, first, torch.float64).zero_() for slot in ("sums", "squares"))
    for delta in deltas[1:]:
        torch.sub(delta, origin, out=term)
        sums.add_(term)
        squares.add_(term.mul_(term))
    variance = squares.sub_(sums.mul_(sums).div_(count)).div_(count)
    return variance.sqrt_()


def keep_most_spread(deltas: Sequence[Tensor], cut: Cut, noise: Noise) -> list[Tensor]:
    """Zero the elements in which models differ little, the same in all of them, in place.

    Args:
        deltas: task vectors.
        cut: of their deviations, from `most_spread`; elements that are not finite stay.
        noise: of the block; the first model's hashes decide between equal deviations.
    """
    if isinstance(cut.threshold, Tensor) or cut != Cut():
        note_sparsified([per_row(keeps_zeros, cut.threshold, cut.factor)] * len(deltas))
    return list(_kept(deltas, cut, noise))


def _kept(deltas: Sequence[Tensor], cut: Cut, noise: Noise) -> Sequence[Tensor]:
    if not isinstance(cut.threshold, Tensor) and cut == Cut():
        return deltas
    mask = kept_mask(deviations(deltas), cut, lambda: noise.bits(0))
    if isinstance(cut.factor, Tensor):
        mask.masked_fill_(cut.factor == 0, 0)
    elif cut.factor == 0:
        mask.zero_()
    for delta in deltas:
        integers_of(delta).bitwise_and_(mask)
    return deltas


@dataclass(frozen=True)
class Energies:
    """A fold that sums the squares of every model's changes in float64; what is not finite counts as 0.

    Attributes:
        cut: which deviations are kept.
    """

    cut: Cut

    def start(self) -> list[float]:
        return []

    def add(self, state: list[float], block: Block) -> list[float]:
        kept = _kept(changes_of(block), self.cut, block.noise)
        return self.join(state, [_sum_of_squares(delta) for delta in kept])

    def join(self, left: list[float], right: list[float]) -> list[float]:
        if not left or not right:
            return left or right
        return [a + b for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[float]) -> Spread:
        whole = total(state) or 1.0
        return Spread(self.cut, [energy / whole for energy in state])


def _sum_of_squares(delta: Tensor) -> float:
    wide = scratch("wide 0", delta, torch.float64).copy_(delta).nan_to_num_(0.0, 0.0, 0.0)
    return fixed_sum(wide.mul_(wide))
