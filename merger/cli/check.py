"""``check``: everything that is wrong with a recipe, at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from merger.cli.command import Command
from merger.cli.engine import add_plugin_option, load_plugins
from merger.cli.report import plain, print_json, print_problems, size_text
from merger.cli.run import add_lenient_option
from merger.errors import MergerError, Problem, RecipeError

if TYPE_CHECKING:
    from merger.methods.base import MergeMethod
    from merger.recipe import ModelEntry, Recipe, Setting
    from merger.types import ConfigParameterDef


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``check``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe in YAML, or the folder of an earlier merge")
    parser.add_argument("--no-open", action="store_true", help="say only what can be said without opening the models")
    add_lenient_option(parser)
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    """Find every problem; 0 when none of them stops the merge."""
    from merger.cli.recipes import read_recipe

    load_plugins(args.plugin)
    sizes: dict[str, int] = {}
    try:
        recipe = read_recipe(args.recipe, lenient=args.lenient, quiet=args.json)
        if args.no_open:
            problems: Sequence[Problem] = [*recipe.problems, *problems_without_models(recipe)]
        else:
            problems, sizes = _planned(recipe)
    except MergerError as error:
        problems = error.problems
    return _answer(problems, sizes, args.json)


def _planned(recipe: Recipe) -> tuple[Sequence[Problem], dict[str, int]]:
    """What the plan finds; models that cannot be opened do not hide what the recipe itself gets wrong."""
    from merger.api import make_plan

    try:
        plan = make_plan(recipe)
    except MergerError as error:
        return [*error.problems, *recipe.problems, *problems_without_models(recipe)], {}
    sizes = {
        "tensors": len(plan.outputs),
        "bytes_in": plan.bytes_in,
        "bytes_out": plan.bytes_out,
        "memory": plan.memory,
    }
    plan.close()
    return plan.problems, sizes


def _answer(problems: Sequence[Problem], sizes: Mapping[str, int], as_json: bool) -> int:
    is_fine = not any(problem.level == "error" for problem in problems)
    if as_json:
        print_json({"event": "Checked", "ok": is_fine, "problems": plain(problems), **sizes})
        return 0 if is_fine else 2
    print_problems(problems)
    if is_fine:
        print(f"The recipe is fine{_in_words(sizes)}.")
    return 0 if is_fine else 2


def _in_words(sizes: Mapping[str, int]) -> str:
    if not sizes:
        return ""
    read, written, memory = (size_text(sizes[name]) for name in ("bytes_in", "bytes_out", "memory"))
    return f": {sizes['tensors']} tensors, {read} to read, {written} to write, up to {memory} of working memory"


def problems_without_models(recipe: Recipe) -> Iterator[Problem]:
    """What can be said of a recipe before its models are opened: base, number of models, parameters."""
    from merger.methods import registry
    from merger.plan import recipe_problems

    method = registry.get(recipe.merge_method)
    yield from recipe_problems(recipe, method)
    yield from _settings_problems(recipe.parameters, (*method.parameters(), *method.tensor_parameters()), "")
    for part in recipe.slices:
        yield from _settings_problems(part.parameters, (*method.parameters(), *method.tensor_parameters()), "slice")
    for entry in recipe.entries():
        yield from _settings_problems(entry.parameters, method.tensor_parameters(), str(entry.model))
    yield from _missing(recipe, method)


def _settings_problems(
    settings: Mapping[str, Setting], definitions: Sequence[ConfigParameterDef], where: str
) -> Iterator[Problem]:
    """Values of another type or out of bounds."""
    from merger.settings import coerce

    for definition in definitions:
        for value in _scalars(settings[definition.name]) if definition.name in settings else ():
            try:
                coerce(value, definition)
            except RecipeError as error:
                yield from (Problem(p.message, where or "parameters", p.hint) for p in error.problems)


def _scalars(setting: Setting) -> Iterator[bool | int | float | str]:
    """Every single value in a setting: of a gradient all, of lines with filters each line's."""
    if not isinstance(setting, tuple):
        yield setting
        return
    for part in setting:
        yield from (part,) if isinstance(part, float) else _scalars(part.value)


def _missing(recipe: Recipe, method: MergeMethod) -> Iterator[Problem]:
    """Required parameters that no level gives."""
    for definition in (*method.parameters(), *method.tensor_parameters()):
        if not definition.required or definition.name in recipe.parameters:
            continue
        is_own = definition in method.tensor_parameters()
        for levels, owner in _owners(recipe, is_own):
            if not any(definition.name in level for level in levels):
                yield Problem(
                    f"{owner} gives no value for '{definition.name}'",
                    hint=f"Add '{definition.name}' to its parameters; {method.name()} needs it.",
                )


def _owners(recipe: Recipe, per_model: bool) -> Iterator[tuple[list[Mapping[str, Setting]], str]]:
    """Where a parameter may stand besides the recipe's own level, and what to call the place."""
    if not per_model:
        parts: list[list[Mapping[str, Setting]]] = [[part.parameters] for part in recipe.slices] or [[]]
        yield from ((levels, "the recipe") for levels in parts)
        return
    groups: list[tuple[Sequence[ModelEntry], list[Mapping[str, Setting]]]] = [(recipe.models, [])]
    groups += [(part.sources, [part.parameters]) for part in recipe.slices]
    for entries, levels in groups:
        for entry in entries:
            if entry.model != recipe.base_model:
                yield [entry.parameters, *levels], str(entry.model)


COMMAND = Command(
    name="check",
    summary="Say everything that is wrong with a recipe, at once.",
    example="check recipe.yaml",
    add_arguments=add_arguments,
    run=run,
)
