"""Runs a merge's own measure and combine on pieces of tensors, for the preview's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from merger.estimates import Floats, Integers, Layout
from merger.graph import BlockMerge, Task, ordered
from merger.inputs import Piece, SampledTensor, TensorInputs, WholeTensor
from merger.measures import input_sums, kept_sums, merged_sums, survival_sums
from merger.ops.noise import BlockNoise
from merger.ops.witness import Seen, watching
from merger.stripes import Stripes
from merger.tasks import LoadTensor, block_shape, row_length
from merger.types import Block, Fold, ModelReference, Split, TensorContext

Places = Mapping[ModelReference, int]
"""Each model's place in a layout."""


def evaluate_tensor(layout: Layout, places: Places, inputs: TensorInputs, stripes: Stripes | None, seed: int) -> Floats:
    """Sums over the rows of one tensor.

    Args:
        layout: of the result.
        places: of the models.
        inputs: of the tensor, which has a reference.
        stripes: the rows to look at, None for everything.
        seed: of the merge's noise.

    Returns:
        ``[rows, sums]``; one row when everything is looked at.
    """
    task = inputs.output.task
    split: Split = task.method.split(task.context()) if isinstance(task, BlockMerge) else "elements"
    pieces = WholeTensor(inputs, split) if stripes is None else SampledTensor.read(inputs, stripes)
    result = result_of(inputs, stripes, seed)
    result.measure(pieces)
    parts = [input_piece_sums(layout, places, inputs, piece) + result.sums(layout, places, piece) for piece in pieces]
    return np.concatenate(parts) if stripes is not None else np.sum(parts, axis=0)


def input_piece_sums(layout: Layout, places: Places, inputs: TensorInputs, piece: Piece) -> Floats:
    """What a piece says of the inputs alone."""
    assert inputs.reference is not None
    tensors = [piece.tensors[model] for model in inputs.models]
    return input_sums(
        layout, [places[model] for model in inputs.models], piece.tensors[inputs.reference], tensors, piece.rows
    )


def result_of(inputs: TensorInputs, stripes: Stripes | None, seed: int) -> Result:
    """How the merged values of a tensor are found."""
    task = inputs.output.task
    if isinstance(task, LoadTensor):
        return Copied(inputs, task)
    if stripes is not None and not stripes.is_whole and not can_sample(task):
        return Unknown(inputs)
    if isinstance(task, BlockMerge):
        return Combined(inputs, task, stripes, seed)
    return Executed(inputs, task)


def can_sample(task: Task[Any]) -> bool:
    """Whether the figures of a merge can be told from a part of its tensor."""
    return isinstance(task, LoadTensor) or (
        isinstance(task, BlockMerge) and getattr(task.method, "preview", "exact") != "exact"
    )


class Result:
    """The merged values of one tensor; by itself, values that are not known.

    Args:
        inputs: of the tensor.
    """

    def __init__(self, inputs: TensorInputs) -> None:
        self.inputs = inputs

    def measure(self, pieces: Iterable[Piece]) -> None:
        """Find out what has to be known of the whole tensor first."""

    def sums(self, layout: Layout, places: Places, piece: Piece) -> Floats:
        """What a piece says of the result."""
        return np.zeros((len(piece.rows), layout.size))

    def _merged(self, layout: Layout, piece: Piece, merged: Tensor) -> Floats:
        assert self.inputs.reference is not None
        return merged_sums(layout, piece.tensors[self.inputs.reference], merged, piece.rows)


class Unknown(Result):
    """A merge that only whole tensors can tell."""


class Copied(Result):
    """One input as it is."""

    def __init__(self, inputs: TensorInputs, task: LoadTensor) -> None:
        super().__init__(inputs)
        self._model = task.model

    def sums(self, layout: Layout, places: Places, piece: Piece) -> Floats:
        copied = [places[self._model]] if self._model in places and self._model in self.inputs.models else []
        merged = piece.tensors[self._model]
        return self._merged(layout, piece, merged) + kept_sums(layout, copied, None, merged.numel(), piece.rows)


class Executed(Result):
    """What a task of another kind makes of whole tensors."""

    def __init__(self, inputs: TensorInputs, task: Task[Any]) -> None:
        super().__init__(inputs)
        self._task = task
        self._value: Tensor | None = None

    def measure(self, pieces: Iterable[Piece]) -> None:
        values: dict[Task[Any], Any] = {}
        for task in ordered([self._task]):
            values[task] = task.execute(**{name: values[argument] for name, argument in task.arguments().items()})
        self._value = values[self._task].reshape(-1)

    def sums(self, layout: Layout, places: Places, piece: Piece) -> Floats:
        assert self._value is not None
        merged = self._value[piece.start : piece.start + piece.elements]
        models = [places[model] for model in self.inputs.models]
        return self._merged(layout, piece, merged) + kept_sums(layout, models, None, merged.numel(), piece.rows)


class Combined(Result):
    """What a method's combine gives, block by block.

    Args:
        inputs: of the tensor.
        merge: the task.
        stripes: the rows that are looked at, None for everything.
        seed: of the noise.
    """

    def __init__(self, inputs: TensorInputs, merge: BlockMerge, stripes: Stripes | None, seed: int) -> None:
        super().__init__(inputs)
        self._merge, self._seed = merge, seed
        self._context = merge.context()
        self._split: Split = merge.method.split(self._context)
        self._positions = [
            position
            for model, position in zip(merge.gather.models, merge.gather.positions, strict=True)
            if model != merge.base_model
        ]
        self._row = row_length(self._split, merge.shape)
        if stripes is not None and not stripes.is_whole:
            self._row = stripes.length
            self._context = replace(self._context, shape=(len(stripes.starts), stripes.length))
        self._measured: Any = None

    def measure(self, pieces: Iterable[Piece]) -> None:
        found: Any = self._merge.method.measure(self._context)
        while isinstance(found, Fold):
            state = found.start()
            for piece in pieces:
                state = found.add(state, self.block(piece))
            found = found.finish(state)
        self._measured = found

    def block(self, piece: Piece) -> Block:
        """The method's own copy of a piece."""
        if self._split == "tensor":
            shape = self._merge.shape
        else:
            shape = (piece.elements,) if self._split == "elements" else (piece.elements // self._row, self._row)
        tensors = [piece.tensors[model].clone().view(shape) for model in self._context.models]
        base = self._merge.base_model
        name = self._merge.output_weight.name
        noise = (
            BlockNoise(self._seed, name, self._positions, piece.start, shape)
            if piece.indices is None
            else BlockNoise.at(self._seed, name, self._positions, piece.indices.view(shape))
        )
        return Block(tensors, None if base is None else piece.tensors[base].clone().view(shape), noise)

    def combine(self, piece: Piece) -> tuple[Tensor, Seen]:
        """``[elements]`` merged values, and what was mixed for them."""
        with watching() as seen:
            merged: Tensor = self._merge.method.combine(self._context, self.block(piece), self._measured)
        return merged.reshape(-1), seen

    def sums(self, layout: Layout, places: Places, piece: Piece) -> Floats:
        merged, seen = self.combine(piece)
        reference = piece.tensors[self.inputs.reference] 
        models = [model for model in self._context.models if model != self.inputs.reference]
        return self._merged(layout, piece, merged) + mixing_sums(...)
