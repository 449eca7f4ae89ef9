"""Which rows of a tensor a sample looks at, and reading only those."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.ops.convert import view_bytes
from merger.statistics.estimates import Floats, Integers
from merger.types import DTYPES, TensorSpec

WHOLE_ELEMENTS = 1 << 14
"""Tensors up to this size are always read whole by a preview: rows of them would say little."""

MOST_ELEMENTS = 1 << 20
"""Elements of one tensor and model beyond which a preview's sample does not grow."""

FEWEST_ROWS = 16
"""Rows a sample tries to take; longer rows are cut for it when its budget is too small."""

FLAT_ROW = 1024
"""Length of a row in a tensor that has one dimension."""

SHORT_ROW = 64
"""Shorter rows are taken several at a time."""


@dataclass(frozen=True)
class Stripes:
    """The rows of one tensor that a sample holds.

    Attributes:
        starts: ``[rows]`` flat index of each row's first element, ascending.
        length: elements of a row.
        weights: ``[rows]`` how many rows of the tensor each stands for.
        shape: of the tensor.
    """

    starts: Integers
    length: int
    weights: Floats
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Size of the tensor."""
        return prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.sampled == self.elements

    @property
    def sampled(self) -> int:
        """Elements that are looked at."""
        return len(self.starts) * self.length

    def indices(self) -> Tensor:
        """``[rows, length]`` flat indices of the elements."""
        return torch.from_numpy(self.starts[:, None] + np.arange(self.length))

    def thinned(self, elements: int, seed: int, name: str) -> tuple[Stripes, Tensor]:
        """At most so many elements of these, and their places among these.

        Rows are drawn from these rows and, where rows are long, a piece from each row.
        """
        if self.sampled <= elements:
            return self, torch.arange(self.sampled)
        if self.is_whole:
            stripes = choose_stripes(self.shape, elements, seed, name)
            return stripes, stripes.indices().reshape(-1)
        pieces = ceil(self.length / _longest(elements))
        length = self.length // pieces
        rows, weights = _draw(len(self.starts), elements // length, f"{seed}/{name}/thinned")
        offsets = _generator(f"{seed}/{name}/pieces").integers(0, pieces, len(rows)) * length
        stripes = _stripes(self.starts[rows] + offsets, length, weights * self.weights[rows], self.shape)
        places = torch.from_numpy((rows * self.length + offsets)[:, None] + np.arange(length)).reshape(-1)
        return stripes, places


def whole(shape: tuple[int, ...]) -> Stripes:
    """A whole tensor as one row."""
    return Stripes(np.zeros(1, np.int64), prod(shape), np.ones(1), shape)


def choose_stripes(shape: tuple[int, ...], elements: int, seed: int, name: str) -> Stripes:
    """Rows of a tensor, evenly spread and drawn by chance.

    A row is the last dimension; a tensor of one dimension is cut into rows of 1024 elements, and
    a row longer than a sixteenth of ``elements`` is cut into pieces that count as rows.  The tensor is
    divided into as many equal runs of rows as are wanted, and one row is drawn from each run.

    Args:
        shape: of the tensor.
        elements: about how many to look at; a tensor that is not larger is taken whole.
        seed: another seed draws other rows.
        name: of the tensor; every tensor draws its own rows.
    """
    total = prod(shape)
    if total <= elements:
        return whole(shape)
    row = shape[-1] if len(shape) > 1 else FLAT_ROW
    longest = _longest(elements)
    if len(shape) > 1 and row > longest:
        pieces = ceil(row / longest)
        length, count = row // pieces, total // row * pieces
    else:
        joined = min(row, longest) if len(shape) == 1 else ceil(SHORT_ROW / row) * row
        count, unit = ceil(total / joined), row if len(shape) > 1 else 1
        length = total // unit // count * unit
    picked, weights = _draw(count, max(elements // length, 1), f"{seed}/{name}")
    if len(picked) == count:
        return whole(shape)
    if len(shape) > 1 and row > longest:
        starts = picked // pieces * row + picked % pieces * length
    else:
        starts = picked * (total // unit) // count * unit
    return _stripes(starts, length, weights, shape)


def share_of(shape: tuple[int, ...], share: float) -> int:
    """Elements that a preview looks at for a share of a tensor: whole rows, small tensors whole."""
    total = prod(shape)
    if total <= WHOLE_ELEMENTS:
        return total
    row = shape[-1] if len(shape) > 1 else FLAT_ROW
    return min(max(ceil(share * total), FEWEST_ROWS * row), MOST_ELEMENTS)


def read_stripes(checkpoint: Checkpoint, spec: TensorSpec, stripes: Stripes) -> Tensor:
    """The elements of the stripes, flat, in the stored dtype; rows that touch are read together."""
    size = DTYPES[spec.dtype].itemsize
    raw = bytearray(stripes.sampled * size)
    view = memoryview(raw)
    place = 0
    for start, stop in _runs(stripes):
        until = place + (stop - start) * size
        checkpoint.read_into(spec, start * size, view[place:until])
        place = until
    return view_bytes(view, spec.dtype)


def _runs(stripes: Stripes) -> Iterator[tuple[int, int]]:
    """Element ranges that cover the rows."""
    breaks = np.flatnonzero(np.diff(stripes.starts) != stripes.length) + 1
    firsts = stripes.starts[np.concatenate(([0], breaks))]
    lasts = stripes.starts[np.concatenate((breaks - 1, [-1]))]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield first, last + stripes.length


def _longest(elements: int) -> int:
    return max(elements // FEWEST_ROWS, SHORT_ROW)


def _stripes(starts: Integers, length: int, weights: Floats, shape: tuple[int, ...]) -> Stripes:
    return Stripes(starts, length, weights * (prod(shape) / (weights.sum() * length)), shape)


def _draw(count: int, wanted: int, key: str) -> tuple[Integers, Floats]:
    """One of every run of ``count / wanted`` neighbours, and how many each stands for."""
    edges = np.arange(min(wanted, count) + 1, dtype=np.int64) * count // min(wanted, count)
    sizes = np.diff(edges)
    drawn = edges[:-1] + (_generator(key).random(len(sizes)) * sizes).astype(np.int64)
    return drawn, sizes.astype(np.float64)


def _generator(key: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
