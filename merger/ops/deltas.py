"""Differences from the base, weighted sums, and adding the result back.

One order of operations, so that one recipe gives one result: terms in the recipe's order, each product
and each sum rounded by itself. Nothing here fuses a multiplication with an addition.
All functions may overwrite the tensors they are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from merger.ops.columns import Number, per_row, total
from merger.ops.deferred import deferrable
from merger.ops.witness import note_mixed

SMALLEST_DIVISOR = 1e-8
"""Sums of weights that are smaller than this divide nothing."""


@deferrable
def task_vectors(tensors: Sequence[Tensor], base: Tensor) -> list[Tensor]:
    """What fine-tuning changed: each tensor minus the base, in place."""
    return [tensor.sub_(base) for tensor in tensors]


def scaled(tensor: Tensor, factor: Number) -> Tensor:
    """``factor * tensor`` in place; a factor of 0 gives 0 also where the tensor is not finite."""
    if isinstance(factor, Tensor):
        tensor.mul_(factor.to(tensor.dtype))
        is_zero = factor == 0
        return tensor.masked_fill_(is_zero, 0.0) if bool(is_zero.any()) else tensor
    if factor == 0:
        return tensor.zero_()
    return tensor if factor == 1 else tensor.mul_(factor)


@deferrable
def weighted_sum(tensors: Sequence[Tensor], coefficients: Sequence[Number]) -> Tensor:
    """``(c_1 x_1 + c_2 x_2) + ...`` in place; a term whose coefficient is 0 is left out."""
    terms = [
        scaled(tensor, coefficient)
        for tensor, coefficient in zip(tensors, coefficients, strict=True)
        if isinstance(coefficient, Tensor) or coefficient != 0
    ]
    if not terms:
        return tensors[0].zero_()
    result = terms[0]
    for term in terms[1:]:
        result.add_(term)
    return result


def shares(weights: Sequence[Number]) -> list[Number]:
    """Weights divided by their sum, in float64."""
    whole = total(weights)
    return [weight / whole for weight in weights]


@deferrable
def weighted_deltas(deltas: Sequence[Tensor], weights: Sequence[Number], normalize: bool) -> Tensor:
    """The weighted sum of task vectors, divided by the sum of the weights if ``normalize``."""
    note_mixed(deltas, weights, elects=False)
    mixed = weighted_sum(deltas, weights)
    return divided(mixed, divisor_of(weights)) if normalize else mixed


def divisor_of(weights: Sequence[Number]) -> Number:
    """What a sum with these weights is divided by: their sum, 1 where that is next to nothing."""
    return per_row(_usable, total(weights))


def _usable(weight_sum: float) -> float:
    return weight_sum if abs(weight_sum) >= SMALLEST_DIVISOR else 1.0


def divided(tensor: Tensor, divisor: Number) -> Tensor:
    """``tensor / divisor`` in place; a number as divisor is rounded to the tensor's type first."""
    if isinstance(divisor, Tensor):
        divisor = divisor.to(tensor.dtype)
    return tensor if isinstance(divisor, float) and divisor == 1 else tensor.div_(divisor)


@deferrable
def add_to_base(base: Tensor, mixed: Tensor, factor: Number) -> Tensor:
    """``base + factor * mixed``, overwriting ``mixed``."""
    return scaled(mixed, factor).add_(base)
