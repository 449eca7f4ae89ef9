"""Dropping elements of task vectors at random: DARE (arXiv 2311.03099) and DELLA (arXiv 2406.11617)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from merger.errors import Problem
from merger.ops.bits import integers_of, is_below, magnitude_bits
from merger.ops.columns import Number, per_row
from merger.ops.deferred import deferrable
from merger.ops.deltas import divided, scaled
from merger.ops.witness import note_sparsified
from merger.types import Noise, TensorContext


@deferrable
def drop_at_random(deltas: Sequence[Tensor], densities: Sequence[Number], noise: Noise, rescale: bool) -> list[Tensor]:
    """Keep each element with its model's probability, in place.

    Args:
        deltas: task vectors.
        densities: per model, the probability of keeping an element.
        noise: of the block.
        rescale: whether to divide what is kept by the density, which leaves the mean as it was.
    """
    note_sparsified(densities)
    return [
        _drop_at_random(delta, density, noise, model, rescale)
        for model, (delta, density) in enumerate(zip(deltas, densities, strict=True))
    ]


def _drop_at_random(delta: Tensor, density: Number, noise: Noise, model: int, rescale: bool) -> Tensor:
    if _is(density, 1):
        return delta
    if _is(density, 0):
        return delta.zero_()
    _mask(delta, is_below(noise.bits(model), per_row(_limit, density)))
    return divided(delta, per_row(_safe, density)) if rescale else delta


def _is(density: Number, value: float) -> bool:
    return not isinstance(density, Tensor) and density == value


def _mask(delta: Tensor, is_kept: Tensor) -> None:
    """Zero the elements where ``is_kept``, int32 of zeros and ones, is 0; a product would keep NaN."""
    target = integers_of(delta)
    target.bitwise_and_(is_kept.neg_().to(target.dtype))


def _limit(density: float) -> int:
    return int(density * 2.0**32)


def _safe(density: float) -> float:
    """What elements are divided by; at density 0 there is nothing but zeros to divide."""
    return density or 1.0


@deferrable
def drop_by_rank(
    deltas: Sequence[Tensor], densities: Sequence[Number], epsilons: Sequence[Number], noise: Noise, rescale: bool
) -> list[Tensor]:
    """Keep elements with a probability that grows with their magnitude's rank in its row, in place.

    The probability runs evenly from ``density - epsilon`` for the smallest magnitude of a row to
    ``density + epsilon`` for the largest; equal magnitudes share the mean of their ranks.

    Args:
        deltas: task vectors ``[rows, row length]``.
        densities: per model, the mean probability of keeping an element.
        epsilons: per model, how far probabilities spread; see `spread`.
        noise: of the block.
        rescale: whether to divide what is kept by its probability.
    """
    note_sparsified(densities)
    return [
        _drop_by_rank(delta, density, epsilon, noise, model, rescale)
        for model, (delta, density, epsilon) in enumerate(zip(deltas, densities, epsilons, strict=True))
    ]


def _drop_by_rank(delta: Tensor, density: Number, epsilon: Number, noise: Noise, model: int, rescale: bool) -> Tensor:
    if _is(density, 1):
        return delta
    if _is(density, 0):
        return delta.zero_()
    lowest, step = per_row(line_of, density, epsilon, float(delta.shape[-1]))
    chance = scaled(mean_ranks(delta), step).add_(lowest.to(delta.dtype) if isinstance(lowest, Tensor) else lowest)
    _mask(delta, torch.lt(noise.uniform(model), chance).to(torch.int32))
    return delta.div_(chance.clamp_(min=torch.finfo(chance.dtype).tiny)) if rescale else delta


def spread(density: float, epsilon: float) -> float:
    """The largest epsilon, up to the one given, that keeps probabilities in [0, 1]."""
    return min(epsilon, density, 1.0 - density)


def spread_problems(context: TensorContext) -> Iterator[Problem]:
    """A warning for every epsilon that has to be reduced."""
    given = zip(context.models, context.per_model("density"), context.per_model("epsilon"), strict=True)
    for model, density, epsilon in given:
        used = spread(density, epsilon)
        if density not in (0, 1) and used < epsilon:
            yield Problem(
                f"epsilon of {model.short_name} is reduced from {epsilon:g} to {used:g}, "
                f"which keeps probabilities around density {density:g} between 0 and 1",
                level="warning",
            )


def line_of(density: float, epsilon: float, length: float) -> tuple[float, float]:
    """How `drop_by_rank` spreads probabilities over a row: that of the lowest rank, and the step to the next."""
    epsilon = spread(density, epsilon)
    if length == 1:
        return density, 0.0
    return density - epsilon, 2.0 * epsilon / (length - 1.0)


def mean_ranks(values: Tensor) -> Tensor:
    """Each magnitude's rank in its row, from 0; equal ones have the mean of their ranks.

    Args:
        values: ``[..., row length]`` float32 or float64.

    Returns:
        Ranks of the same shape and type.
    """
    magnitudes = magnitude_bits(values, out=torch.empty_like(integers_of(values)))
    ordered, order = magnitudes.sort(dim=-1)
    flat, row = ordered.reshape(-1), values.shape[-1]
    is_first = torch.ones_like(flat, dtype=torch.bool)
    torch.ne(flat[1:], flat[:-1], out=is_first[1:])
    is_first[::row] = True
    firsts = is_first.nonzero().reshape(-1)
    counts = torch.diff(firsts, append=firsts.new_tensor([flat.numel()]))
    means = (firsts % row).to(values.dtype).add_((counts - 1).to(values.dtype).mul_(0.5))
    ranks = torch.repeat_interleave(means, counts).view(values.shape)
    return torch.empty_like(values).scatter_(-1, order, ranks)
