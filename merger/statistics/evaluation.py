"""Runs a merge's own measure and combine on pieces of one tensor, for the preview's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from merger.graph import BlockMerge, Task, ordered
from merger.methods.base import MergeMethod
from merger.ops.noise import BlockNoise
from merger.ops.witness import watching
from merger.reading import LoadTensor, Runtime, block_shape
from merger.statistics.estimates import Floats, Layout
from merger.statistics.inputs import Piece, SampledTensor, TensorInputs, WholeTensor
from merger.statistics.measures import Sheet
from merger.statistics.stripes import Stripes
from merger.tasks import execute
from merger.types import Block, Fold, ModelReference, Split

Places = Mapping[ModelReference, int]
"""Each model's place in a layout."""


def evaluate_tensor(layout: Layout, places: Places, seed: int, inputs: TensorInputs, stripes: Stripes | None) -> Floats:
    """Sums over the rows of one tensor.

    Args:
        layout: of the result.
        places: of the models.
        seed: of the merge's noise.
        inputs: of the tensor, which has a reference.
        stripes: the rows to look at, None for everything.

    Returns:
        ``[rows, sums]``; one row when everything is looked at.
    """
    task = inputs.output.task
    split: Split = task.method.split(task.context()) if isinstance(task, BlockMerge) else "elements"
    pieces = WholeTensor(inputs, split) if stripes is None else SampledTensor.read(inputs, stripes)
    result = result_of(inputs, stripes, seed)
    result.measure(pieces)
    parts = []
    for piece in pieces:
        sheet = Sheet(layout, piece.rows, piece.elements)
        reference = piece.tensors[inputs.compared_with]
        sheet.inputs(reference, {places[model]: piece.tensors[model] for model in inputs.models})
        result.enter(sheet, places, piece)
        parts.append(sheet.sums)
    return np.concatenate(parts) if stripes is not None else np.sum(parts, axis=0)


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
    if isinstance(task, BlockMerge):
        return isinstance(task.method, MergeMethod) and not task.method.needs_whole(task.context())
    return isinstance(task, LoadTensor)


class Result:
    """The merged values of one tensor.

    Args:
        inputs: of the tensor.
    """

    def __init__(self, inputs: TensorInputs) -> None:
        self.inputs = inputs

    def measure(self, pieces: Iterable[Piece]) -> None:
        """Find out what has to be known of the whole tensor first."""

    def enter(self, sheet: Sheet, places: Places, piece: Piece) -> None:
        """Enter what a piece says of the result."""


class Unknown(Result):
    """A merge that only whole tensors can tell."""


class Copied(Result):
    """One input as it is."""

    def __init__(self, inputs: TensorInputs, task: LoadTensor) -> None:
        super().__init__(inputs)
        self._model = task.model

    def enter(self, sheet: Sheet, places: Places, piece: Piece) -> None:
        sheet.merged(piece.tensors[self.inputs.compared_with], piece.tensors[self._model])
        if self._model in self.inputs.models:
            sheet.kept_all([places[self._model]])


class Executed(Result):
    """What a task of another kind makes of whole tensors."""

    def __init__(self, inputs: TensorInputs, task: Task[Any]) -> None:
        super().__init__(inputs)
        self._task = task
        self._value: Any = None

    def measure(self, pieces: Iterable[Piece]) -> None:
        values: dict[Task[Any], Any] = {}
        for task in ordered([self._task]):
            arguments = {name: values[argument] for name, argument in task.arguments().items()}
            values[task] = execute(task, arguments, Runtime())
        self._value = values[self._task].reshape(-1)

    def enter(self, sheet: Sheet, places: Places, piece: Piece) -> None:
        merged: Tensor = self._value[piece.start : piece.start + piece.elements]
        sheet.merged(piece.tensors[self.inputs.compared_with], merged)
        sheet.kept_all([places[model] for model in self.inputs.models])


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
        self._positions = positions_of(merge)
        if stripes is not None and not stripes.is_whole:
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
        shape = block_shape(self._split, self._context.shape, piece.elements)
        own = {model: piece.tensors[model].clone().view(shape) for model in self._merge.gather.models}
        base = None if self._merge.base_model is None else own.pop(self._merge.base_model)
        name = self._merge.output_weight.name
        if piece.indices is None:
            return Block(list(own.values()), base, BlockNoise(self._seed, name, self._positions, piece.start, shape))
        indices = piece.indices.view(shape)
        return Block(list(own.values()), base, BlockNoise.at(self._seed, name, self._positions, indices))

    def enter(self, sheet: Sheet, places: Places, piece: Piece) -> None:
        with watching() as seen:
            merged: Tensor = self._merge.method.combine(self._context, self.block(piece), self._measured)
        sheet.merged(piece.tensors[self.inputs.compared_with], merged.reshape(-1))
        sheet.mixed(places_of(self._merge, places, self.inputs.compared_with), seen)


def positions_of(merge: BlockMerge) -> list[int | None]:
    """Each of the method's tensors' place among the recipe's non-base models, for the noise."""
    gather = merge.gather
    pairs = zip(gather.models, gather.positions, strict=True)
    return [position for model, position in pairs if model != merge.base_model]


def places_of(merge: BlockMerge, places: Places, reference: ModelReference) -> list[int | None]:
    """Each of the method's tensors' place in a layout, None for the reference."""
    models = [model for model in merge.gather.models if model != merge.base_model]
    return [None if model == reference else places[model] for model in models]
