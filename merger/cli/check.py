"""``check``: everything that is wrong with a recipe, at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
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
    from merger.cli.recipes import read_recipe
    from merger.cli.unopened import problems_without_models

    load_plugins(args.plugin)
    sizes: dict[str, int] = {}
    try:
        find = not args.no_open
        recipe = read_recipe(args.recipe, lenient=args.lenient, quiet=args.json, models_dir=args.models_dir, find=find)
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
    from merger.cli.unopened import problems_without_models

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
