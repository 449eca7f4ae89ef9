"""Samples of a recipe's models that stay in memory, to see every setting at once without touching the files."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.errors import PlanError, UserError
from merger.graph import BlockMerge, Task
from merger.matching import match_tensors
from merger.methods import registry
from merger.plan import Plan, recipe_problems
from merger.recipe import Recipe, RunOptions
from merger.rules import TensorPlanner
from merger.statistics.batched import evaluate_batch
from merger.statistics.batches import Batch
from merger.statistics.estimates import Floats, RowSums, Totals
from merger.statistics.evaluation import can_sample
from merger.statistics.grids import Grid
from merger.statistics.inputs import SampledTensor, Study, TensorInputs
from merger.statistics.preview import Part, Preview
from merger.statistics.stripes import Stripes, choose_stripes
from merger.types import ModelReference

FULL_ELEMENTS = 1 << 14
LIVE_ELEMENTS = 1 << 11


@dataclass(frozen=True)
class Held:
    """The sample of one tensor.

    Attributes:
        part: its name, layer, role and sizes.
        reference: what its changes are measured from.
        stripes: which rows are held.
        tensors: ``[elements]`` of each model.
    """

    part: Part
    reference: ModelReference
    stripes: Stripes
    tensors: Mapping[ModelReference, Tensor]


def take_sample(plan: Plan, *, elements_per_tensor: int = FULL_ELEMENTS, seed: int = 0) -> Sample:
    """Read a part of every input tensor once.

    Args:
        plan: names the models; method and parameters may change later.
        elements_per_tensor: about how many elements to hold of each tensor and model; smaller tensors are
            held whole.
        seed: chooses the rows.
    """
    study = Study.of(plan)

    def hold(inputs: TensorInputs) -> Held:
        weight, shape = inputs.output.weight, inputs.output.shape
        stripes = choose_stripes(shape, elements_per_tensor, seed, weight.name)
        part = Part(weight.name, weight.layer, weight.role, stripes.elements, stripes.sampled)
        return Held(part, inputs.compared_with, stripes, SampledTensor.read(inputs, stripes).tensors)

    with ThreadPoolExecutor(RunOptions().worker_count) as pool:
        held = list(pool.map(hold, study.tensors))
    return Sample(study, plan.checkpoints, held, seed)


class Sample:
    """Rows of every input tensor, held as float32, on which any setting of a recipe can be evaluated.

    Made by `take_sample`.  Not safe for use by several threads at once.

    Args:
        study: what was sampled.
        checkpoints: the models, for their headers.
        held: the sample of each tensor of the study.
        seed: that chose the rows.

    Attributes:
        reference: name of what changes are measured from.
        model_names: the models whose changes are measured.
        parts: the sampled tensors.
    """

    def __init__(
        self, study: Study, checkpoints: Mapping[ModelReference, Checkpoint], held: Sequence[Held], seed: int
    ) -> None:
        self.reference, self.model_names = study.reference, study.model_names
        self.parts = tuple(sample.part for sample in held)
        self._study, self._checkpoints, self._seed = study, checkpoints, seed
        self._layout = study.layout
        self._batches = _batches(held)
        places = [place for batch in self._batches for place in batch.places]
        self._order = np.argsort(places)
        self._grid = Grid(self._layout, [self.parts[place] for place in places])

    @property
    def bytes(self) -> int:
        """Memory that the sample takes, with what evaluations have kept for the next one."""
        return sum(batch.bytes for batch in self._batches)

    def thinned(self, elements_per_tensor: int = LIVE_ELEMENTS) -> Sample:
        """A smaller sample out of this one, for evaluations that must be quick; touches no file."""
        held = sorted((item for batch in self._batches for item in self._held(batch)), key=lambda item: item[0])
        thin = [self._thinned(sample, elements_per_tensor) for _, sample in held]
        return Sample(self._study, self._checkpoints, thin, self._seed)

    def _held(self, batch: Batch) -> Iterator[tuple[int, Held]]:
        for row, (place, stripes) in enumerate(zip(batch.places, batch.stripes, strict=True)):
            tensors = {model: data[row] for model, data in batch.data.items()}
            yield place, Held(self.parts[place], batch.reference, stripes, tensors)

    def _thinned(self, sample: Held, elements: int) -> Held:
        stripes, places = sample.stripes.thinned(elements, self._seed, sample.part.name)
        tensors = {model: tensor[places] for model, tensor in sample.tensors.items()}
        return Held(replace(sample.part, sampled=stripes.sampled), sample.reference, stripes, tensors)

    def evaluate(self, setting: Plan | Recipe) -> Preview:
        """The preview of another setting of the same models; touches no file.

        Raises:
            PlanError: the recipe does not fit the models.
            UserError: the recipe reads models, or makes tensors, that the sample does not hold.
        """
        tasks, seed = self._tasks(setting)
        rows = [
            RowSums(sums, batch.weights, batch.shares)
            for batch, sums in zip(self._batches, self._sums(tasks, seed), strict=True)
        ]
        exact_only = [part.name for part in self.parts if not _can_evaluate(part, tasks[part.name])]
        return Preview(
            self.reference,
            self.model_names,
            self.parts,
            Totals.of(self._layout, rows).taken(self._order),
            self._study.left_out,
            tuple(exact_only),
        )

    def evaluate_arrays(self, setting: Plan | Recipe) -> dict[str, Any]:
        """The figures by layer and role as plain arrays, as `Grid.arrays` describes them; touches no file.

        For moving sliders: without intervals, several times quicker than the tables of a preview.

        Raises:
            PlanError, UserError: as `evaluate`.
        """
        sums = self._sums(*self._tasks(setting))
        totals = [np.einsum("tr,trs->ts", batch.weights, part) for batch, part in zip(self._batches, sums, strict=True)]
        return self._grid.arrays(np.concatenate(totals))

    def _sums(self, tasks: Mapping[str, Task[Any]], seed: int) -> list[Floats]:
        torch.set_num_threads(1)
        return [
            evaluate_batch(batch, self._layout, self._study.places, [tasks[name] for name in batch.names], seed)
            for batch in self._batches
        ]

    def _tasks(self, setting: Plan | Recipe) -> tuple[dict[str, Task[Any]], int]:
        """What makes each tensor, and the seed of the noise."""
        if isinstance(setting, Plan):
            tasks = {output.weight.name: output.task for output in setting.outputs}
            seed = setting.recipe.seed
        else:
            tasks, seed = self._planned(setting), setting.seed
        missing = [part.name for part in self.parts if part.name not in tasks]
        if missing:
            raise UserError(
                f"the recipe does not make '{missing[0]}', which the sample holds.", hint="Take a new sample for it."
            )
        return tasks, seed

    def _planned(self, recipe: Recipe) -> dict[str, Task[Any]]:
        unknown = [model for model in recipe.all_models() if model not in self._checkpoints]
        if unknown:
            raise UserError(f"the sample does not hold {unknown[0]}.", hint="Take a new sample with all models.")
        method = registry.get(recipe.merge_method)
        errors = [found for found in recipe_problems(recipe, method) if found.level == "error"]
        planner = TensorPlanner(recipe, method, self._checkpoints)
        names = {part.name for part in self.parts}
        matches = [] if errors else [match for match in match_tensors(recipe, self._checkpoints) if match.name in names]
        outputs = [planner.plan(match) for match in matches]
        errors += [found for found in planner.problems() if found.level == "error"]
        if errors:
            raise PlanError(errors)
        return {output.weight.name: output.task for output in outputs if output is not None}


def _can_evaluate(part: Part, task: Task[Any]) -> bool:
    return can_sample(task) or (isinstance(task, BlockMerge) and part.sampled == part.elements)


def _batches(held: Sequence[Held]) -> list[Batch]:
    """The samples that can be evaluated side by side, together."""
    groups: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(held):
        groups.setdefault(_kind(sample), []).append(place)
    return [_batch([held[place] for place in places], places) for places in groups.values()]


def _kind(sample: Held) -> Hashable:
    stripes = sample.stripes
    size = stripes.shape if stripes.is_whole else (len(stripes.starts), stripes.length)
    dtype = sample.tensors[sample.reference].dtype
    return stripes.is_whole, size, sample.reference, tuple(sample.tensors), dtype


def _batch(held: Sequence[Held], places: Sequence[int]) -> Batch:
    data = {model: torch.stack([sample.tensors[model] for sample in held]) for model in held[0].tensors}
    names = [sample.part.name for sample in held]
    return Batch(places, names, [sample.stripes for sample in held], held[0].reference, data)
