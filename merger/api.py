"""The engine's doors: look at models, preview a recipe, merge it.  The one place where all parts meet."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Union

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.source import open_checkpoint
from merger.errors import CheckpointError, Problem
from merger.events import Event
from merger.policy import Policy
from merger.recipe import Recipe, RunOptions, Vocabulary
from merger.types import ModelReference

if TYPE_CHECKING:
    from torch import Tensor

    from merger.methods.base import MethodFacts
    from merger.plan import Plan
    from merger.report import Report
    from merger.statistics.preview import Preview
    from merger.statistics.sampling import Sample

Named = Union[str, "os.PathLike[str]", ModelReference]
"""How callers may name a model."""


def reference_of(model: Named) -> ModelReference:
    """A model reference from what a caller gave."""
    return model if isinstance(model, ModelReference) else ModelReference.parse(os.fspath(model))


def inspect(*models: Named, policy: Policy | None = None) -> Report:
    """Compare models from their headers and configs; reads no weights and needs no torch.

    Args:
        models: paths or references.
        policy: what may be opened here; everything when left out.

    Raises:
        CheckpointError: a model is missing or damaged; all such problems together.
        UserError: the policy forbids a model.
    """
    from merger.report import build_report

    checkpoints = open_all([reference_of(model) for model in models], policy)
    try:
        return build_report(list(checkpoints.values()))
    finally:
        close_all(checkpoints)


def open_all(references: list[ModelReference], policy: Policy | None = None) -> dict[ModelReference, Checkpoint]:
    """Open every model once.

    Raises:
        CheckpointError: with the problems of all models that cannot be opened.
        UserError: the policy forbids a model.
    """
    (policy or Policy()).require(list(dict.fromkeys(references)))
    opened: dict[ModelReference, Checkpoint] = {}
    problems: list[Problem] = []
    for reference in dict.fromkeys(references):
        try:
            opened[reference] = open_checkpoint(reference)
        except CheckpointError as error:
            problems += error.problems
    if problems:
        close_all(opened)
        raise CheckpointError(problems)
    return opened


def close_all(checkpoints: Mapping[ModelReference, Checkpoint]) -> None:
    """Close opened models."""
    for checkpoint in checkpoints.values():
        checkpoint.close()


def load_recipe(source: str | os.PathLike[str], *, lenient: bool = False) -> Recipe:
    """Read a recipe from a YAML file, or from YAML text when ``source`` has more than one line.

    Args:
        source: path or text.
        lenient: unknown names become warnings.

    Raises:
        RecipeError: with all problems together.
    """
    return Recipe.load(source, vocabulary(), lenient=lenient)


def vocabulary() -> Vocabulary:
    """Every method's name and parameters, as recipes may use them."""
    from merger.methods import registry

    methods, aliases = registry.vocabulary()
    return Vocabulary(methods, aliases)


def describe_methods() -> list[MethodFacts]:
    """What every merge method is called, needs and accepts, as data; ``merger.methods()`` is the same."""
    from merger.methods import registry

    return registry.describe_all()


def load_plugin(path: str | os.PathLike[str]) -> list[str]:
    """Register the merge methods that a Python file defines; returns their names.

    Raises:
        MethodError: the file cannot be imported, defines no method, or a name is taken.
    """
    from merger.methods import registry

    return registry.load_plugin(Path(path))


def make_plan(
    recipe: Recipe | str | os.PathLike[str],
    options: RunOptions | None = None,
    out: str | os.PathLike[str] | None = None,
    checkpoints: Mapping[ModelReference, Checkpoint] | None = None,
    policy: Policy | None = None,
) -> Plan:
    """Resolve a recipe from headers alone.  Close the plan when done with it.

    Problems that recipe and models have together are in ``Plan.problems``; nothing is raised for them.

    Args:
        recipe: a recipe, or where to load one from.
        options: how it will run, for the memory estimate.
        out: where the result will stand, for the disk check.
        checkpoints: already opened models by reference; others are opened here.
        policy: what may be merged here; everything when left out.

    Raises:
        RecipeError: the recipe itself is wrong.
        CheckpointError: models are missing or damaged.
        UserError: the policy forbids a model.
    """
    from merger.methods import registry
    from merger.plan import make_plan as plan_from
    from merger.plan import uncollected

    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    method = registry.get(recipe.merge_method)
    given = dict(checkpoints or {})
    with uncollected:
        opened = open_all([reference for reference in recipe.all_models() if reference not in given], policy)
        ordered = {reference: given.get(reference) or opened[reference] for reference in recipe.all_models()}
        place = None if out is None else Path(out)
        try:
            return plan_from(recipe, method, ordered, options or RunOptions(), place, policy or Policy())
        except BaseException:
            close_all(opened)
            raise


def merge(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: RunOptions | None = None,
    checkpoints: Mapping[ModelReference, Checkpoint] | None = None,
    policy: Policy | None = None,
) -> Generator[Event, None, None]:
    """Merge a recipe into a folder, telling what happens.  Closing the iterator cancels.

    Args:
        recipe: what to merge.
        out: the output folder; must be empty or absent, unless ``options.overwrite``.
        options: how to run; never changes values.
        checkpoints: already opened models by reference.
        policy: what may be merged here; everything when left out.

    Yields:
        `Planned` (before it `Working`, while what an interrupted merge left is checked), then `Working`,
            `TensorMerged` and `ShardWritten`, then `Verified` and `Merged`.

    Raises:
        RecipeError, CheckpointError, PlanError, OutputError: before anything is written.
        InputChangedError, Cancelled, NonFiniteError: nothing stands in the output folder; finished
            work is kept for ``options.resume``.
    """
    from merger.merging import run_plan

    options = options or RunOptions()
    plan = make_plan(recipe, options, out, checkpoints, policy)
    try:
        yield from run_plan(plan, Path(out), options)
    finally:
        plan.close()


def merge_in_memory(
    recipe: Recipe,
    checkpoints: Mapping[ModelReference, Checkpoint] | None = None,
    policy: Policy | None = None,
) -> dict[str, Tensor]:
    """Merge small models without writing anything.

    Args:
        recipe: what to merge.
        checkpoints: already opened models by reference; others are opened here.
        policy: what may be merged here; everything when left out.

    Returns:
        The output tensors by name, in the dtypes that a merge would write.
    """
    from merger.merging import run_in_memory

    plan = make_plan(recipe, checkpoints=checkpoints, policy=policy)
    try:
        return run_in_memory(plan)
    finally:
        for reference, checkpoint in plan.checkpoints.items():
            if reference not in (checkpoints or {}):
                checkpoint.close()


def preview(recipe: Recipe | str | os.PathLike[str], *, sample: float | None = None, exact: bool = False) -> Preview:
    """Statistics of a merge before it runs.

    Args:
        recipe: what to preview.
        sample: share of each tensor to read; None for the default.
        exact: read everything instead.

    Raises:
        PlanError: the recipe and its models do not fit together.
    """
    from merger.statistics.preview import preview_plan

    plan = make_plan(recipe)
    try:
        plan.require()
        return preview_plan(plan, sample=sample, exact=exact)
    finally:
        plan.close()


def take_sample(
    recipe: Recipe, *, elements_per_tensor: int = 2048, seed: int = 0, policy: Policy | None = None
) -> Sample:
    """Read a small part of every input tensor once, to evaluate many settings of a recipe on it.

    Args:
        recipe: names the models; its method and parameters may change later.
        elements_per_tensor: about how many elements to hold per tensor and model.
        seed: chooses the rows.
        policy: what may be read here; everything when left out.
    """
    from merger.statistics.sampling import take_sample as sample_plan

    plan = make_plan(recipe, policy=policy)
    try:
        plan.require()
        return sample_plan(plan, elements_per_tensor=elements_per_tensor, seed=seed)
    finally:
        plan.close()
