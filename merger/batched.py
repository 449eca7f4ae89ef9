"""Evaluates merges on batches of samples; parameters that differ between tensors become columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.batches import Batch, HeldNoise
from merger.errors import UserError
from merger.estimates import Floats, Layout
from merger.evaluation import Places, can_sample, places_of, positions_of
from merger.graph import BlockMerge, Task
from merger.ops.bits import magnitude_bits
from merger.ops.columns import stack
from merger.ops.folds import Part, PerModel
from merger.ops.ranked import read_off
from merger.ops.select import CountDigits
from merger.ops.witness import watching
from merger.tasks import LoadTensor, row_length
from merger.types import Block, Fold, ImmutableMap, ModelReference, TensorContext


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
        if isinstance(tasks[tensors[0]], LoadTensor):
            _enter_copies(batch, layout, places, tensors, tasks[tensors[0]].model, sums)
        elif kind is not None:
            merges = [tasks[tensor] for tensor in tensors]
            for group in _measured(_Merges(batch, tensors, merges, seed)):
                group.enter(layout, places, sums)
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
    sheet = batch.sheet(layout, len(tensors))
    sheet.sums[:] = sums[tensors].reshape(sheet.sums.shape)
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

    def measure(self, place: int) -> Any:
        """What the method has to know of one of the tensors."""
        found: Any = self.first.method.measure(self.contexts[place])
        if isinstance(found, PerModel) and _is_selection(found):
            return self._cuts(place, found)
        while isinstance(found, Fold):
            found = found.finish(found.add(found.start(), self.block([place])))
        return found

    def _cuts(self, place: int, fold: PerModel) -> list[Any]:
        """What the fold would find, read off sorted samples."""
        base = self.first.base_model
        assert base is not None
        tensor = self.tensors[place]
        cuts = []
        for model, part, position in zip(self.contexts[0].models, fold.parts, positions_of(self.first), strict=True):
            if isinstance(part, CountDigits):

                def hashes(
                    threshold: int, model: ModelReference = model, position: int | None = position
                ) -> NDArray[np.uint32]:
                    change = self.batch.data[model][tensor] - self.batch.data[base][tensor]
                    is_tie = (magnitude_bits(change) == threshold).numpy()
                    return self.batch.bits(self.seed, position)[tensor].numpy().view(np.uint32)[is_tie]

                part = read_off(part, self.batch.ordered(model, base)[tensor], hashes)
            cuts.append(part)
        return cuts

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
        row = row_length(self.split, self.first.shape) if self.batch.is_whole else self.batch.length
        return tensors * (samples // row), row
