"""Dot products of a tensor's inputs, in float64: whole, by row or by column.

A Gram matrix is symmetric, so only the entries on and above its diagonal are kept, row by row. Values that
are not finite count as 0. No sum here depends on the number of threads, as a BLAS would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil

import torch
from torch import Tensor

from merger.ops.columns import Number, per_row
from merger.ops.deltas import task_vectors
from merger.ops.scratch import scratch, workspace
from merger.types import BLOCK_ELEMENTS, Block

RUN = 1024
"""Products that are summed by halves, so that their order is fixed; a constant of the algorithm."""


@dataclass(frozen=True)
class Gram:
    """A fold that measures the dot products of whole tensors.

    The products of a block are cut into runs of 1024, the last one filled up with zeros. In a run, halves are
    added to each other until one number is left; the runs' sums are added from left to right, and so are the
    blocks'.

    Attributes:
        deltas: whether the vectors are the models' differences from the base, in float32, and not the tensors
            as they are: the base, if the block has one, then the models.
    """

    deltas: bool

    def start(self) -> list[float]:
        return []

    def add(self, state: list[float], block: Block) -> list[float]:
        vectors = [vector.reshape(-1) for vector in _vectors(block, self.deltas)]
        entries = len(vectors) * (len(vectors) + 1) // 2
        sums, step = [0.0] * entries, max(1, BLOCK_ELEMENTS // RUN // entries) * RUN
        for start in range(0, vectors[0].numel(), step):
            runs = _run_sums([vector[start : start + step] for vector in vectors]).tolist()
            for entry, values in enumerate(runs):
                for value in values:
                    sums[entry] += value
        return self.join(state, sums)

    def join(self, left: list[float], right: list[float]) -> list[float]:
        if not left or not right:
            return left or right
        return [a + b for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[float]) -> list[float]:
        """The entries on and above the diagonal, row by row."""
        return state


@dataclass(frozen=True)
class ColumnGram:
    """A fold that measures the dot products of columns: of what lies along dimension 0.

    Blocks are ``[rows, columns]``; the state is a ``[1, columns]`` tensor for each entry.

    Attributes:
        deltas: as in `Gram`.
    """

    deltas: bool

    def start(self) -> list[Tensor]:
        return []

    def add(self, state: list[Tensor], block: Block) -> list[Tensor]:
        return self.join(state, _sums_along(0, _vectors(block, self.deltas)))

    def join(self, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        if not left or not right:
            return left or right
        return [a.add_(b) for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[Tensor]) -> list[Tensor]:
        """The entries on and above the diagonal, row by row, each ``[1, columns]``."""
        return state


def row_gram(tensors: Sequence[Tensor], base: Tensor | None = None) -> list[Tensor]:
    """Dot products of rows that a block holds whole.

    Args:
        tensors: ``[rows, row length]`` each; they are not changed.
        base: what is taken off every tensor first, or None.

    Returns:
        The entries on and above the diagonal, row by row, each ``[rows, 1]`` float64.
    """
    if base is None:
        return _sums_along(1, tensors)
    return _sums_along(1, (torch.sub(tensor, base, out=scratch("delta", base, base.dtype)) for tensor in tensors))


def coefficients(function: Callable[..., Sequence[float]], *groups: Sequence[Number]) -> Sequence[Number]:
    """What tensors are multiplied with: ``function`` of groups of plain numbers, for each row of columns.

    Args:
        function: takes one tuple of numbers for each group.
        groups: such as weights and the entries of a Gram matrix; numbers or columns.
    """
    sizes = [len(group) for group in groups]

    def regrouped(*numbers: float) -> list[float]:
        rest = iter(numbers)
        return list(function(*(tuple(islice(rest, size)) for size in sizes)))

    found: Sequence[Number] = per_row(regrouped, *chain.from_iterable(groups))
    return found


def square_matrix(entries: Sequence[float]) -> list[list[float]]:
    """A Gram matrix in full from its entries on and above the diagonal, squares no smaller than 0."""
    size = int((2 * len(entries)) ** 0.5)
    matrix, rest = [[0.0] * size for _ in range(size)], iter(entries)
    for row in range(size):
        for column in range(row, size):
            value = next(rest)
            matrix[row][column] = matrix[column][row] = max(value, 0.0) if row == column else value
    return matrix


def _vectors(block: Block, deltas: bool) -> list[Tensor]:
    if block.base is None:
        return list(block.tensors)
    return task_vectors(block.tensors, block.base) if deltas else [block.base, *block.tensors]


def _run_sums(vectors: Sequence[Tensor]) -> Tensor:
    """``[entries, runs]`` sums of the products of flat vectors, run by run."""
    count, elements = len(vectors), vectors[0].numel()
    runs, device = ceil(elements / RUN), vectors[0].device
    wide = workspace("wide vectors", (count, runs * RUN), torch.float64, device)
    for place, vector in enumerate(vectors):
        wide[place, :elements].copy_(vector)
    wide[:, elements:].zero_()
    wide.nan_to_num_(0.0, 0.0, 0.0)
    products = workspace("products", (count * (count + 1) // 2, runs * RUN), torch.float64, device)
    first = 0
    for place in range(count):
        after = first + count - place
        torch.mul(wide[place:], wide[place], out=products[first:after])
        first = after
    return add_up(products.view(-1, runs, RUN), 2)[:, :, 0]


def _sums_along(dim: int, vectors: Sequence[Tensor] | Iterator[Tensor]) -> list[Tensor]:
    wide: list[Tensor] = []
    for place, vector in enumerate(vectors):
        own = scratch(f"wide {place}", vector, torch.float64)
        wide.append(own.copy_(vector).nan_to_num_(0.0, 0.0, 0.0))
    products = scratch("products", wide[0], torch.float64)
    return [
        add_up(torch.mul(vector, other, out=products), dim).clone()
        for place, vector in enumerate(wide)
        for other in wide[place:]
    ]


def add_up(values: Tensor, dim: int) -> Tensor:
    """Sums along one dimension, in place, by a tree that depends on its length alone; that dimension stays, as 1."""
    count = values.shape[dim]
    while count > 1:
        half = count // 2
        values.narrow(dim, 0, half).add_(values.narrow(dim, count - half, half))
        count -= half
    return values.narrow(dim, 0, 1)
