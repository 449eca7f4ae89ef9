"""Which elements several models need: TALL masks and their consensus (arXiv 2405.07813, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from merger.ops.columns import Number
from merger.ops.deltas import scaled
from merger.ops.scratch import scratch
from merger.ops.witness import note_sparsified


def keep_needed(
    deltas: Sequence[Tensor], weights: Sequence[Number], thresholds: Sequence[Number], least: int
) -> list[Tensor]:
    """Zero, in place, the elements that fewer than ``least`` models need; NaN and infinities do not become 0.

    A model needs an element when its own weighted change is at least ``threshold`` times as large as what all
    other models together add to it.

    Args:
        deltas: task vectors of equal shape.
        weights: one per model; weight 0 needs nothing that is not 0.
        thresholds: one per model.
        least: how many models must need an element.
    """
    note_sparsified([0.0] * len(deltas))
    total = scratch("total", deltas[0], deltas[0].dtype)
    for place, (delta, weight) in enumerate(zip(deltas, weights, strict=True)):
        change = _change(delta, weight)
        total = total.add_(change) if place else total.copy_(change)
    needed = scratch("needed", total, total.dtype).zero_()
    for delta, weight, threshold in zip(deltas, weights, thresholds, strict=True):
        change = _change(delta, weight)
        others = torch.sub(total, change, out=scratch("others", total, total.dtype)).abs_()
        needed.add_(torch.ge(change.abs_(), scaled(others, threshold), out=others))
    is_kept = torch.ge(needed, least, out=needed)
    return [delta.mul_(is_kept) for delta in deltas]


def _change(delta: Tensor, weight: Number) -> Tensor:
    return scaled(scratch("change", delta, delta.dtype).copy_(delta), weight)
