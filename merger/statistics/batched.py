"""Evaluates merges on batches of samples; parameters that differ between tensors become columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from merger.errors import UserError
from merger.graph import BlockMerge, Task
from merger.ops.bits import magnitude_bits
from merger.ops.columns import stack
from merger.ops.folds import PerModel
from merger.ops.ranked import can_read_off, read_off
from merger.ops.witness import watching
from merger.reading import LoadTensor, row_length
from merger.statistics.batches import Batch, HeldNoise
from merger.statistics.estimates import Floats, Layout
from merger.statistics.evaluation import Places, can_sample, places_of, positions_of
from merger.statistics.measures import Sheet
from merger.types import BLOCK_ELEMENTS, Block, Fold, ImmutableMap, ModelReference, TensorContext


def evaluate_batch(batch: Batch, layout: Layout, places: Places, tasks: Sequence[Task[Any]], seed: int) -> Floats:
    """``[tensors, rows, sums]`` of inputs and results.

    Args:
        batch: the samples.
        layout: of the sums.
        places: of the models in it.
        tasks: what makes each of the batch's tensors.
        seed: of the merge's noise.

    Raises:
        UserError: a merge reads a model that the sample does not hold.
    """
    sums = batch.input_sums(layout, places).copy()
    kinds: dict[Hashable, list[int]] = {}
    for tensor, task in enumerate(tasks):
        kinds.setdefault(_kind(batch, tensor, task), []).append(tensor)
    for kind, tensors in kinds.items():
        first = tasks[tensors[0]]
        if isinstance(first, LoadTensor):
            _enter_copies(batch, layout, places, tensors, first.model, sums)
        elif kind is not None:
            _Merges(batch, tensors, [cast(BlockMerge, tasks[tensor]) for tensor in tensors], seed).enter(
                layout, places, sums
            )
    return sums


def _kind(batch: Batch, tensor: int, task: Task[Any]) -> Hashable:
    """Equal for tasks that one call can evaluate, None for those that a sample cannot tell."""
    if isinstance(task, LoadTensor):
        return _held(batch, (task.model,))
    if not isinstance(task, BlockMerge):
        return None
    models = _held(batch, task.gather.models)
    if not can_sample(task):
        return tensor if batch.is_whole else None
    fixed = [_fixed(parameters) for parameters in (task.parameters, *task.tensor_parameters.values())]
    return task.method, models, task.gather.positions, task.base_model, *fixed


def _held(batch: Batch, models: tuple[ModelReference, ...]) -> tuple[ModelReference, ...]:
    for model in models:
        if model not in batch.data:
            raise UserError(f"the sample does not hold {model}.", hint="Take a new sample with all models.")
    return models


def _fixed(parameters: Mapping[str, Any]) -> Hashable:
    """The parameters that cannot become columns: switches, counts and names."""
    return tuple((name, value) for name, value in parameters.items() if not isinstance(value, float))


def _enter_copies(
    batch: Batch, layout: Layout, places: Places, tensors: list[int], model: ModelReference, sums: Floats
) -> None:
    sheet = _sheet(batch, layout, tensors, sums)
    sheet.merged(batch.data[batch.reference][tensors].reshape(-1), batch.data[model][tensors].reshape(-1))
    sheet.kept_all([] if model == batch.reference else [places[model]])
    sums[tensors] = sheet.sums.reshape(len(tensors), batch.rows, layout.size)


class _Merges:
    """Merges of some tensors of a batch that differ only in numbers.

    Args:
        batch: the samples.
        tensors: places in the batch.
        tasks: of these tensors.
        seed: of the noise.
    """

    def __init__(self, batch: Batch, tensors: list[int], tasks: Sequence[BlockMerge], seed: int) -> None:
        self.batch, self.tensors, self.tasks, self.seed = batch, tensors, tasks, seed
        self.first = tasks[0]
        self.contexts = [replace(task.context(), shape=batch.shape) for task in tasks]
        self.split = self.first.method.split(self.contexts[0])

    def measured(self) -> list[Any]:
        """What the method has to know of each tensor."""
        folds = [self.first.method.measure(context) for context in self.contexts]
        selections = [fold for fold in folds if can_read_off(fold)]
        if len(selections) == len(folds):
            return self._cuts(selections)
        return [self._fold(place, fold) for place, fold in enumerate(folds)]

    def _fold(self, place: int, found: Any) -> Any:
        while found is not None and isinstance(found, Fold):
            found = found.finish(found.add(found.start(), self.block([place])))
        return found

    def _cuts(self, folds: Sequence[PerModel]) -> list[Any]:
        """What the folds would find, read off sorted samples."""
        batch, base = self.batch, self.first.base_model
        assert base is not None
        is_small = batch.is_whole and batch.indices.shape[1] <= BLOCK_ELEMENTS
        by_model = []
        for slot, (model, position) in enumerate(zip(self.contexts[0].models, positions_of(self.first), strict=True)):
            hashes = partial(self._tied_bits, model, base, position) if is_small else None
            by_model.append(
                read_off([fold.parts[slot] for fold in folds], batch.ordered(model, base)[self.tensors], hashes)
            )
        return [list(cuts) for cuts in zip(*by_model, strict=True)]

    def _tied_bits(
        self, model: ModelReference, base: ModelReference, position: int | None, place: int, threshold: int
    ) -> Tensor:
        """Random bits of the elements of one tensor whose change has one magnitude."""
        tensor = self.tensors[place]
        is_tied = magnitude_bits(self.batch.data[model][tensor] - self.batch.data[base][tensor]) == threshold
        return self.batch.bits(self.seed, position)[tensor][is_tied]

    def block(self, places: Sequence[int]) -> Block:
        """The method's own copy of the samples of some of the tensors."""
        chosen = torch.tensor([self.tensors[place] for place in places])
        shape = self._shape(len(places))
        own = {model: self.batch.data[model][chosen].view(shape) for model in self.first.gather.models}
        base = None if self.first.base_model is None else own.pop(self.first.base_model)
        return Block(
            list(own.values()), base, HeldNoise(self.batch, self.seed, positions_of(self.first), chosen, shape)
        )

    def _shape(self, tensors: int) -> tuple[int, ...]:
        samples = self.batch.indices.shape[1]
        if self.split == "tensor":
            return self.first.shape
        if self.split == "elements":
            return tensors, samples
        row = row_length(self.split, self.batch.shape)
        return tensors * (samples // row), row

    def enter(self, layout: Layout, places: Places, sums: Floats) -> None:
        """Measure, combine, and enter the results into ``[tensors, rows, sums]`` of the whole batch."""
        measured = self.measured()
        for nothing in (True, False):
            chosen = [place for place, value in enumerate(measured) if (value is None) == nothing]
            if chosen:
                self._combine(chosen, [measured[place] for place in chosen], layout, places, sums)

    def _combine(
        self, chosen: list[int], measured: Sequence[Any], layout: Layout, places: Places, sums: Floats
    ) -> None:
        block = self.block(chosen)
        repeats = block.tensors[0].shape[0] // len(chosen) if len(chosen) > 1 else 1
        context = _joined([self.contexts[place] for place in chosen], repeats)
        value = measured[0] if len(chosen) == 1 else stack([found for found in measured for _ in range(repeats)])
        with watching() as seen:
            merged = self.first.method.combine(context, block, value)
        sheet = _sheet(self.batch, layout, tensors := [self.tensors[place] for place in chosen], sums)
        sheet.merged(self.batch.data[self.batch.reference][tensors].reshape(-1), merged.reshape(-1))
        sheet.mixed(places_of(self.first, places, self.batch.reference), seen)
        sums[tensors] = sheet.sums.reshape(len(tensors), self.batch.rows, layout.size)


def _sheet(batch: Batch, layout: Layout, tensors: Sequence[int], sums: Floats) -> Sheet:
    """A sheet for some tensors of a batch with what is entered for them so far."""
    sheet = batch.sheet(layout, len(tensors))
    sheet.sums[:] = sums[tensors].reshape(sheet.sums.shape)
    return sheet


def _joined(contexts: Sequence[TensorContext], repeats: int) -> TensorContext:
    """One context for several tensors: a number that differs becomes a column, each value repeated so often."""
    first = contexts[0]
    own = zip(*(context.tensor_parameters for context in contexts), strict=True)
    return replace(
        first,
        parameters=_columns([context.parameters for context in contexts], repeats),
        tensor_parameters=tuple(_columns(parameters, repeats) for parameters in own),
    )


def _columns(parameters: Sequence[ImmutableMap[str, Any]], repeats: int) -> ImmutableMap[str, Any]:
    values: dict[str, Any] = {}
    for name in parameters[0]:
        column = [each[name] for each in parameters]
        same = all(value == column[0] for value in column)
        values[name] = column[0] if same else stack([value for value in column for _ in range(repeats)])
    return ImmutableMap(values)
