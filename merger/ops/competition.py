"""How much each model's elements count against all others: PCB-Merging (arXiv 2410.02396, section 3).

Products of task vectors are brought into [0, 1] by their extremes over the tensor, and go through a softmax over
the tensor: ``softmax(n norm(d_i d_i))`` says how much an element matters to its model, ``sum_j softmax(norm(d_i d_j))``
how well it goes with all models. A softmax needs nothing of the whole tensor but its divisor, so one pass
finds the extremes, one the divisors, and the usual counting passes where to cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from merger.ops.cutting import Trim
from merger.ops.deltas import scaled
from merger.ops.folds import Part, PerModel, bits_of, fixed_sum
from merger.ops.select import CountDigits
from merger.ops.trim import Cut, cut_of
from merger.ops.witness import note_partly_taken
from merger.types import Block

Ends = tuple[float, float]
"""The smallest and the largest product of two task vectors in a tensor."""


class Scales(NamedTuple):
    """What turns products into shares of a softmax, in multiples of an even share.

    Attributes:
        ends: of each pair of models, in the order of `_pairs`.
        own: per model, the mean of ``exp(n norm(d_i d_i))``.
        shared: per pair, the mean of ``exp(norm(d_i d_j))``.
    """

    ends: tuple[Ends, ...]
    own: tuple[float, ...]
    shared: tuple[float, ...]


class Standing(NamedTuple):
    """What is measured of a tensor: how to score its elements, and per model where to cut by score."""

    scales: Scales
    cuts: list[Cut]


def competition(densities: Sequence[float]) -> Extremes:
    """The measurement of a `Standing`.

    Args:
        densities: per model, the share of elements to keep, in [0, 1].
    """
    return Extremes(tuple(cut_of(density) or CountDigits(Trim(density)) for density in densities))


def scores(deltas: Sequence[Tensor], scales: Scales) -> list[Tensor]:
    """How much each model's elements count, in fresh memory: intra-balancing times inter-balancing.

    Args:
        deltas: task vectors of equal shape.
        scales: of their tensor.
    """
    found = [torch.zeros_like(delta) for delta in deltas]
    own = list(found)
    for pair, (i, j, normed) in enumerate(_normed_products(deltas, scales.ends)):
        if i == j:
            own[i] = torch.mul(normed, len(deltas)).exp_().div_(scales.own[i])
        share = normed.exp_().div_(scales.shared[pair])
        found[i].add_(share)
        if i != j:
            found[j].add_(share)
    return [score.mul_(factor) for score, factor in zip(found, own, strict=True)]


def share_weighted(deltas: Sequence[Tensor], weights: Sequence[float], shares: Sequence[Tensor]) -> Tensor:
    """``sum_i s_i w_i d_i / sum_i s_i`` per element, 0 where all shares are 0; overwrites everything."""
    note_partly_taken(
        lambda: [d.masked_fill(share == 0, 0.0) for d, share in zip(deltas, shares, strict=True)], weights
    )
    terms = [scaled(d, w).mul_(share) for d, w, share in zip(deltas, weights, shares, strict=True)]
    mixed, whole = terms[0], shares[0]
    for term, share in zip(terms[1:], shares[1:], strict=True):
        mixed.add_(term)
        whole.add_(share)
    return mixed.div_(whole.clamp_(min=torch.finfo(whole.dtype).tiny))


def _pairs(models: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(models) for j in range(i, models)]


def _products(deltas: Sequence[Tensor]) -> Iterator[tuple[int, int, Tensor]]:
    for i, j in _pairs(len(deltas)):
        yield i, j, deltas[i] * deltas[j]


def _normed_products(deltas: Sequence[Tensor], ends: Sequence[Ends]) -> Iterator[tuple[int, int, Tensor]]:
    for (i, j, product), (low, high) in zip(_products(deltas), ends, strict=True):
        yield i, j, product.sub_(low).div_(high - low if high > low else 1.0)


def _finite_changes(block: Block) -> list[Tensor]:
    return [tensor.sub_(block.base).nan_to_num_(0.0, 0.0, 0.0) for tensor in block.tensors]


@dataclass(frozen=True)
class Extremes:
    """Finds the extremes of the products.

    Attributes:
        parts: per model, what cuts by score or the cut itself.
    """

    parts: tuple[Any, ...]

    def start(self) -> list[Ends]:
        return [(float("inf"), float("-inf"))] * len(_pairs(len(self.parts)))

    def add(self, state: list[Ends], block: Block) -> list[Ends]:
        ends = [torch.aminmax(product) for _, _, product in _products(_finite_changes(block))]
        return self.join(state, [(float(low), float(high)) for low, high in ends])

    def join(self, left: list[Ends], right: list[Ends]) -> list[Ends]:
        return [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[Ends]) -> Divisors:
        return Divisors(self.parts, tuple(state))


@dataclass(frozen=True)
class Divisors:
    """Adds up the exponentials of the products.

    Attributes:
        parts: as in `Extremes`.
        ends: of each pair.
    """

    parts: tuple[Any, ...]
    ends: tuple[Ends, ...]

    def start(self) -> list[float]:
        return [0.0] * (1 + len(self.parts) + len(self.ends))

    def add(self, state: list[float], block: Block) -> list[float]:
        deltas = _finite_changes(block)
        own, shared = [], []
        for i, j, normed in _normed_products(deltas, self.ends):
            if i == j:
                own.append(fixed_sum(torch.mul(normed, len(deltas)).exp_()))
            shared.append(fixed_sum(normed.exp_()))
        return self.join(state, [float(deltas[0].numel()), *own, *shared])

    def join(self, left: list[float], right: list[float]) -> list[float]:
        return [a + b for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[float]) -> Any:
        """The standing, or the fold that finds where to cut."""
        models, means = len(self.parts), [total / state[0] for total in state[1:]]
        scales = Scales(self.ends, tuple(means[:models]), tuple(means[models:]))
        return _standing(scales, list(self.parts))


@dataclass(frozen=True)
class CutByScore:
    """Counts each model's scores, as `PerModel` counts magnitudes.

    Attributes:
        scales: of the tensor.
        selection: what is counted.
    """

    scales: Scales
    selection: PerModel

    def start(self) -> list[Any]:
        return self.selection.start()

    def add(self, state: list[Any], block: Block) -> list[Any]:
        found = scores(_finite_changes(block), self.scales)
        for model, part in enumerate(self.selection.parts):
            if isinstance(part, Part):
                state[model] = part.add(state[model], found[model], bits_of(block.noise, model))
        return state

    def join(self, left: list[Any], right: list[Any]) -> list[Any]:
        return self.selection.join(left, right)

    def finish(self, state: list[Any]) -> Any:
        """The standing, or the fold of the next pass."""
        found = self.selection.finish(state)
        return _standing(self.scales, list(found.parts if isinstance(found, PerModel) else found))


def _standing(scales: Scales, parts: list[Any]) -> Standing | CutByScore:
    if any(isinstance(part, Part) for part in parts):
        return CutByScore(scales, PerModel(tuple(parts)))
    return Standing(scales, parts)
