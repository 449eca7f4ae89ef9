"""Several recipes one after the other, later ones of which merge the results of earlier ones.

Every result but the last stands in a folder of its own and is used again as long as its recipe and
its models stay as they were.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from merger.api import close_all, make_plan, merge, open_all, vocabulary
from merger.checkpoints.base import Checkpoint
from merger.checkpoints.target import check_free, check_target, resolved
from merger.errors import PlanError, Problem, RecipeError
from merger.events import Event, RecipeBegun
from merger.policy import Policy
from merger.recipe import Recipe, RunOptions, document_title, load_series, series_problems
from merger.types import ModelReference

if TYPE_CHECKING:
    from merger.plan import Plan
    from merger.results import Result


def load_recipes(
    source: str | os.PathLike[str], *, lenient: bool = False, policy: Policy | None = None
) -> tuple[Recipe, ...]:
    """Read one recipe or several, separated by ``---``, from a YAML file or from YAML text.

    Every document but the last has a ``name``, by which later ones use its result as a model.

    Args:
        source: path, or text of more than one line.
        lenient: unknown names become warnings.
        policy: what may be merged here; everything when left out.

    Raises:
        RecipeError: with the problems of all documents together.
    """
    return load_series(source, vocabulary(), lenient=lenient, policy=policy)


def plan_recipes(
    recipes: Sequence[Recipe],
    options: RunOptions | None = None,
    out: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
) -> list[Plan]:
    """The plans of a series, from headers alone.  Close them when done with them.

    Results that do not exist yet are known from the plans that will make them.

    Args:
        recipes: in the order in which they run.
        options: how they will run, for the memory estimate.
        out: where the last result will stand, for the disk check.
        policy: what may be merged here; everything when left out.

    Returns:
        One plan for each recipe, up to the first with errors.  A ``where`` of a problem begins with
        the document's name.

    Raises:
        RecipeError: the names of the results do not fit together.
        CheckpointError: models are missing or damaged; those of all recipes together.
        UserError: the policy forbids a model.
    """
    _require_sound_names(recipes)
    models = open_all(_models_from_elsewhere(recipes), policy)
    try:
        plans = list(_plans(recipes, models, options, out, policy))
    except BaseException:
        close_all(models)
        raise
    used = {model for plan in plans for model in plan.checkpoints}
    close_all({model: checkpoint for model, checkpoint in models.items() if model not in used})
    return plans


def _plans(
    recipes: Sequence[Recipe],
    models: Mapping[ModelReference, Checkpoint],
    options: RunOptions | None,
    out: str | os.PathLike[str] | None,
    policy: Policy | None,
) -> Iterator[Plan]:
    """One plan after the other, each resting on those before it, until one has errors."""
    from merger.planned import PlannedCheckpoint

    known = dict(models)
    for number, recipe in enumerate(recipes):
        given = {model: known[model] for model in recipe.all_models()}
        place = out if number == len(recipes) - 1 else None
        plan = make_plan(recipe, options, place, given, policy)
        yield replace(plan, problems=titled(plan.problems, recipes, number))
        if plan.errors:
            return
        if recipe.name is not None:
            reference = ModelReference(recipe.name)
            known[reference] = PlannedCheckpoint(reference, plan)


def merge_recipes(
    recipes: Sequence[Recipe],
    out: str | os.PathLike[str],
    options: RunOptions | None = None,
    intermediate: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
) -> Generator[Event, None, None]:
    """Merge a series of recipes, telling what happens.  Closing the iterator cancels.

    Args:
        recipes: in the order in which they run.
        out: folder for the result of the last.
        options: how to run; ``overwrite`` means ``out`` only.
        intermediate: folder for the folders of the other results; ``OUT.parts`` beside ``out`` when
            left out.  They are kept there, and replaced when their recipe or their models changed;
            folders of anybody else are refused.
        policy: what may be merged here; everything when left out.

    Yields:
        For each recipe `RecipeBegun`, and the events of `merger.merge` where its result is not used again.

    Raises:
        RecipeError, CheckpointError, PlanError, OutputError: as far as headers tell, before any recipe runs.
        InputChangedError, Cancelled, NonFiniteError: as in `merger.merge`; earlier results are kept.
    """
    from merger.results import Result

    options = options or RunOptions()
    home = Path(intermediate) if intermediate is not None else default_intermediate(out)
    places = [home / (recipe.name or "") for recipe in recipes[:-1]] + [Path(out)]
    _require_free(recipes, places, options)
    _require_sound_plans(recipes, places, options, policy)
    made: dict[ModelReference, Result] = {}
    for number, (recipe, place) in enumerate(zip(recipes, places, strict=True)):
        is_last = number == len(recipes) - 1
        models = _open(recipe, made, policy)
        try:
            result = Result(recipe, place, models)
            reused = not is_last and result.is_current()
            yield RecipeBegun(recipe.name or "", number + 1, len(recipes), str(place), reused)
            if not (is_last or reused):
                result.require_ours()
            if not reused:
                yield from merge(
                    recipe, place, options if is_last else replace(options, overwrite=True), models, policy
                )
        finally:
            close_all(models)
        if not is_last:
            result.record()
            made[ModelReference(recipe.name or "")] = result


def default_intermediate(out: str | os.PathLike[str]) -> Path:
    """Where the results stand that only later recipes need."""
    place = resolved(out)
    return place.with_name(f"{place.name}.parts")


def _open(
    recipe: Recipe, made: Mapping[ModelReference, Result], policy: Policy | None
) -> dict[ModelReference, Checkpoint]:
    """The models of one recipe, earlier results among them."""
    models = open_all([model for model in recipe.all_models() if model not in made], policy)
    return models | {model: made[model].opened() for model in recipe.all_models() if model in made}


def _models_from_elsewhere(recipes: Sequence[Recipe]) -> list[ModelReference]:
    """Every model that no recipe of the series makes."""
    found: dict[ModelReference, None] = {}
    made: set[ModelReference] = set()
    for recipe in recipes:
        found |= dict.fromkeys(model for model in recipe.all_models() if model not in made)
        made |= {ModelReference(recipe.name)} if recipe.name is not None else set()
    return list(found)


def _require_sound_names(recipes: Sequence[Recipe]) -> None:
    names = [recipe.name for recipe in recipes]
    problems = [problem for problem in series_problems(recipes, names) if problem.level == "error"]
    if problems:
        raise RecipeError(problems)


def _require_sound_plans(
    recipes: Sequence[Recipe], places: Sequence[Path], options: RunOptions, policy: Policy | None
) -> None:
    from merger.plan import disk_problems

    plans = plan_recipes(recipes, options, places[-1], policy)
    for plan in plans:
        plan.close()
    new = sum(plan.bytes_out for plan, place in zip(plans, places, strict=False) if not place.exists())
    errors = [problem for plan in plans for problem in plan.errors]
    errors = errors or disk_problems(new, places[-1])
    if errors:
        raise PlanError(errors)


def _require_free(recipes: Sequence[Recipe], places: Sequence[Path], options: RunOptions) -> None:
    """Refuse places for the results before work begins on the first."""
    from merger.results import require_no_stranger

    target = places[-1]
    models = [model.path for model in _models_from_elsewhere(recipes)]
    check_target(target, [*models, *places[:-1]])
    check_free(resolved(target), overwrite=options.overwrite)
    for place in places[:-1]:
        check_target(place, models)
        require_no_stranger(place)


def titled(problems: Sequence[Problem], recipes: Sequence[Recipe], number: int) -> tuple[Problem, ...]:
    """The problems of one recipe of a series, each with what the recipe's document is called."""
    if len(recipes) == 1:
        return tuple(problems)
    title = document_title(recipes[number].name, number + 1)
    return tuple(
        problem
        if title in problem.where or problem.where.startswith("document ")
        else replace(problem, where=f"{title}, {problem.where}" if problem.where else title)
        for problem in problems
    )
