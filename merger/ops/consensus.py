"""Sign election and disjoint merge (TIES-Merging, arXiv 2306.01708, sections 3.2 and 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from merger.ops.bits import integers_of
from merger.ops.columns import Number, per_row
from merger.ops.deferred import deferrable
from merger.ops.deltas import scaled
from merger.ops.scratch import scratch
from merger.ops.witness import note_mixed


@deferrable
def disjoint_merge(
    deltas: Sequence[Tensor], weights: Sequence[Number], normalize: bool, *, weighs_votes: bool = True
) -> Tensor:
    """Per element, the weighted sum of the changes that go the way most of the mass goes.

    The sign of the sum of all weighted changes is elected (a tie elects plus) and changes of the other
    sign are dropped. With ``normalize`` the rest is divided by the sum of |weight| over the models
    that take part in it, those without a change excepted; where none takes part the result is 0.

    Args:
        deltas: sparsified task vectors of equal shape; overwritten.
        weights: one per model.
        normalize: whether to divide.
        weighs_votes: whether the sign of the weighted sum is elected, or else that of the plain sum.

    Returns:
        The mixed change, of the same shape; not finite where a change is not.
    """
    note_mixed(deltas, weights, elects=True, weighs_votes=weighs_votes)
    signs = None if weighs_votes else _elected_signs(deltas)
    weighted = [scaled(delta, weight) for delta, weight in zip(deltas, weights, strict=True)]
    if signs is None:
        signs = _elected_signs(weighted)
    divisor = scratch("divisor", signs, weighted[0].dtype).zero_() if normalize else None
    mixed = weighted[0]
    for place, (change, weight) in enumerate(zip(weighted, weights, strict=True)):
        integers_of(change).bitwise_xor_(signs)  # now positive where it agrees
        change.clamp_(min=0.0)
        if divisor is not None:
            takes_part = torch.gt(change, 0.0, out=scratch("takes part", change, change.dtype))
            divisor.add_(scaled(takes_part, per_row(abs, weight)))
        if place:
            mixed.add_(change)
    integers_of(mixed).bitwise_xor_(signs)
    return mixed if divisor is None else mixed.div_(divisor.clamp_(min=torch.finfo(divisor.dtype).tiny))


def _elected_signs(changes: Sequence[Tensor]) -> Tensor:
    """The sign bit of each element's sum, as integers.

    A sum of exactly -0.0 has nothing but zeros in it, which take part under no sign.
    """
    balance = scratch("balance", changes[0], changes[0].dtype).copy_(changes[0])
    for change in changes[1:]:
        balance.add_(change)
    bits = integers_of(balance)
    return bits.bitwise_and_(torch.iinfo(bits.dtype).min)
