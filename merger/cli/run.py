"""``run``: merge what a recipe file says."""

from __future__ import annotations

import argparse
from dataclasses import replace

from merger.cli.command import Command, whole_number
from merger.cli.engine import add_run_options, load_plugins, merge_and_report, merge_series_and_report, print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``run``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe in YAML, or the folder of an earlier merge")
    parser.add_argument("out", metavar="OUT", help="folder for the result")
    parser.add_argument(
        "--intermediate-dir",
        metavar="DIR",
        help="where results stay that only later recipes of the file use (default: OUT.parts)",
    )
    parser.add_argument("--seed", type=whole_number(0), metavar="N", help="replaces the recipe's seed")
    add_recipe_options(parser)
    add_run_options(parser)


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """How a recipe is read, for every command that takes one."""
    parser.add_argument("--models-dir", metavar="DIR", help="where models written as ./name lie")
    parser.add_argument("--lenient", action="store_true", help="only warn of keys and parameters that nobody knows")


def run(args: argparse.Namespace) -> int:
    """Read the recipe, or several that build on each other, and merge."""
    from merger.cli.recipes import read_recipes

    load_plugins(args.plugin)
    recipes = read_recipes(args.recipe, lenient=args.lenient, quiet=args.json, models_dir=args.models_dir)
    if args.seed is not None:
        recipes = tuple(replace(recipe, seed=args.seed) for recipe in recipes)
    if len(recipes) == 1:
        result = merge_and_report(recipes[0], args.out, args)
    else:
        result = merge_series_and_report(recipes, args.out, args)
    if not args.json:
        print_result(result)
    return 0


COMMAND = Command(
    name="run",
    summary="Merge what a recipe file says (the YAML vocabulary of mergekit), several recipes in order.",
    example="run recipe.yaml merged",
    add_arguments=add_arguments,
    run=run,
)
