"""How much single elements matter for what a row says: the selection of Arcee Fusion."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from merger.ops.folds import Elementwise, fixed_row_sums
from merger.ops.scratch import scratch
from merger.ops.select import CountDigits, Group, Selection
from merger.ops.witness import note_partly_taken, note_sparsified
from merger.types import Block

SMALLEST_PROBABILITY = 1e-8
"""Added to each probability."""

FENCE = 1.5
"""How many interquartile ranges above the median importance begins."""

PIECE = 1 << 15
"""Elements whose rows are compared together, so that they stay in the cache."""


def importance_threshold() -> Elementwise:
    """The measurement of median + 1.5 interquartile ranges of the importance of all elements."""
    return Elementwise(CountDigits(Quantiles((0.25, 0.5, 0.75))), _importance_of, _fence)


def _importance_of(block: Block) -> Tensor:
    assert block.base is not None
    return importance(block.tensors[0], block.base)


def _fence(quartiles: Sequence[float]) -> float:
    lower, median, upper = quartiles
    return median + FENCE * (upper - lower)


def importance(tensor: Tensor, base: Tensor) -> Tensor:
    """|tensor - base| times the divergence of the row's softmax from the base's, in float64.

    Args:
        tensor: ``[rows, row length]``; for the divergence, values that are not finite count as 0.
        base: of the same shape.

    Returns:
        A tensor of their shape in working memory, not finite where an input is not.
    """
    result = scratch("importance", tensor, torch.float64)
    step = max(1, PIECE // max(1, tensor.shape[-1]))
    for start in range(0, len(tensor), step):
        rows = slice(start, start + step)
        divergence = _divergence(tensor[rows], base[rows])
        result[rows].copy_(tensor[rows]).sub_(base[rows]).abs_().mul_(divergence)
    return result


def taken_over(tensor: Tensor, base: Tensor, is_left: Tensor) -> Tensor:
    """The base where it is left as it is, else the other model."""
    note_sparsified([0.0])
    note_partly_taken(lambda: [torch.where(is_left, 0.0, tensor - base)], [1.0])
    return torch.where(is_left, base, tensor)


def _divergence(tensor: Tensor, base: Tensor) -> Tensor:
    """``[rows, 1]`` Kullback-Leibler divergence of the softmax of each row, at least 0."""
    p, q = _probabilities(tensor), _probabilities(base)
    terms = torch.div(p, q, out=q).log_().mul_(p)
    return fixed_row_sums(terms).clamp_(min=0.0).unsqueeze(-1)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.float64).nan_to_num_(0.0, 0.0, 0.0).softmax(-1).add_(SMALLEST_PROBABILITY)


@dataclass(frozen=True)
class Quantiles(Selection):
    """The elements at given shares of the way from the smallest to the largest, without interpolation.

    Attributes:
        shares: in [0, 1].
    """

    shares: tuple[float, ...]
    collects = True

    def ranks(self, size: int, changed: int) -> list[int]:
        return [size - int(share * (size - 1)) for share in self.shares]

    def found(self, groups: Sequence[Group], size: int) -> list[float]:
        """Their values, which are float64; 0 in a tensor without elements."""
        return [struct.unpack("<d", struct.pack("<q", group.bits))[0] for group in groups] or [0.0] * len(self.shares)
