"""``check``: everything that is wrong with a recipe, at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from merger.cli.command import Command
from merger.cli.engine import add_plugin_option, load_plugins
from merger.cli.report import counted, plain, print_json, print_problems, size_text
from merger.cli.run import add_recipe_options
from merger.errors import MergerError, Problem

if TYPE_CHECKING:
    from merger.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``check``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe in YAML, or the folder of an earlier merge")
    parser.add_argument("--no-open", action="store_true", help="say only what can be said without opening the models")
    add_recipe_options(parser)
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    """Find every problem; 0 when none of them stops the merge."""
    from merger.cli.recipes import read_recipes

    load_plugins(args.plugin)
    sizes: dict[str, int] = {}
    try:
        find = not args.no_open
        recipes = read_recipes(
            args.recipe, lenient=args.lenient, quiet=args.json, models_dir=args.models_dir, find=find
        )
        problems, sizes = ([*_adapters(recipes), *_unopened(recipes)], {}) if args.no_open else _planned(recipes)
    except MergerError as error:
        problems = error.problems
    return _answer(problems, sizes, args.json)


def _unopened(recipes: Sequence[Recipe]) -> Sequence[Problem]:
    from merger.cli.unopened import problems_without_models
    from merger.series import titled

    return [
        problem
        for number, recipe in enumerate(recipes)
        for problem in titled([*recipe.problems, *problems_without_models(recipe)], recipes, number)
    ]


def _adapters(recipes: Sequence[Recipe]) -> Iterator[Problem]:
    """What opening a model with an adapter would say."""
    for model in dict.fromkeys(model for recipe in recipes for model in recipe.all_models() if model.lora):
        yield Problem("adapters cannot be applied yet.", str(model), "Merge the adapter into its model first.")


def _planned(recipes: Sequence[Recipe]) -> tuple[Sequence[Problem], dict[str, int]]:
    """What the plans find; models that cannot be opened do not hide what the recipes themselves get wrong."""
    from merger.series import plan_recipes

    try:
        plans = plan_recipes(recipes)
    except MergerError as error:
        return [*error.problems, *_unopened(recipes)], {}
    sizes = {
        "tensors": sum(len(plan.outputs) for plan in plans),
        "bytes_in": sum(plan.bytes_in for plan in plans),
        "bytes_out": sum(plan.bytes_out for plan in plans),
        "memory": max(plan.memory for plan in plans),
    }
    for plan in plans:
        plan.close()
    problems = [problem for plan in plans for problem in plan.problems]
    # A recipe behind one that cannot be planned cannot be planned either.
    return [*problems, *(problem for problem in _unopened(recipes[len(plans) :]))], sizes


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
    return (
        f": {counted(sizes['tensors'], 'tensor')}, {read} to read, {written} to write, up to {memory} of working memory"
    )


COMMAND = Command(
    name="check",
    summary="Say everything that is wrong with a recipe, at once.",
    example="check recipe.yaml",
    add_arguments=add_arguments,
    run=run,
)
