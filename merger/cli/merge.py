"""``merge``: a method and models on the command line, no file needed."""

from __future__ import annotations

import argparse

from merger.cli.command import SETTINGS, Command, add_models_option, finite_number, model_name, whole_number
from merger.cli.engine import add_run_options, load_plugins, merge_and_report, print_result
from merger.types import OUTPUT_DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``merge``."""
    parser.add_argument("--method", required=True, help="how to merge; 'methods' lists them")
    add_models_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the result")
    add_setting_options(parser)
    parser.add_argument("--dtype", choices=OUTPUT_DTYPES, help="dtype of the result (default: as the base is stored)")
    parser.add_argument("--out-dtype", choices=OUTPUT_DTYPES, help="dtype of the result, before --dtype")
    add_run_options(parser)


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """What decides the values of the result."""
    parser.add_argument(
        "--base", type=model_name, metavar="MODEL", help="the model that the others were fine-tuned from"
    )
    for name, text in SETTINGS.items():
        parser.add_argument(
            f"--{name}", nargs="+", action="extend", type=finite_number, metavar="X", dest=f"set_{name}", help=text
        )
    parser.add_argument(
        "--set",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="any other parameter of the method: one value, or one per model",
    )
    parser.add_argument("--seed", type=whole_number(0), metavar="N", help="seed of random methods (default 0)")


def given_settings(args: argparse.Namespace) -> dict[str, list[str]]:
    """Every parameter that the command line gives, by name, as written."""
    named = {name: getattr(args, f"set_{name}") for name in SETTINGS}
    given = {name: [repr(value) for value in values] for name, values in named.items() if values is not None}
    return {**given, **{words[0]: words[1:] for words in args.set}}


def run(args: argparse.Namespace) -> int:
    """Build the recipe and merge."""
    from merger.cli.build import Request, build_recipe
    from merger.methods import registry

    load_plugins(args.plugin)
    request = Request(
        models=tuple(args.models),
        base=args.base,
        settings=given_settings(args),
        seed=args.seed or 0,
        dtype=args.dtype,
        out_dtype=args.out_dtype,
    )
    result = merge_and_report(build_recipe(registry.facts(args.method), request), args.out, args)
    if not args.json:
        print_result(result)
    return 0


COMMAND = Command(
    name="merge",
    summary="Merge models with one method.",
    example="merge --method linear --models A B --weight 0.6 0.4 --out DIR",
    add_arguments=add_arguments,
    run=run,
)
