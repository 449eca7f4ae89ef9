"""``preview``: what a merge will change, in numbers, before it runs."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from merger.cli.command import Command, finite_number
from merger.cli.engine import add_plugin_option, load_plugins
from merger.cli.report import counted, plain, print_json, put, say, table
from merger.cli.run import add_recipe_options

if TYPE_CHECKING:
    import pandas as pd

    from merger.statistics.preview import Preview

DEFAULT_SHARE = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``preview``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe in YAML, or the folder of an earlier merge")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--sample", type=_share, metavar="F", help=f"share of each tensor to read (default {DEFAULT_SHARE})"
    )
    extent.add_argument("--exact", action="store_true", help="read everything")
    parser.add_argument("--csv", metavar="FILE", help="also write every figure of every tensor to a table")
    add_recipe_options(parser)
    add_plugin_option(parser)


def _share(text: str) -> float:
    value = finite_number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from merger.api import preview
    from merger.cli.recipes import read_recipe

    load_plugins(args.plugin)
    recipe = read_recipe(args.recipe, lenient=args.lenient, quiet=args.json, models_dir=args.models_dir)
    found = preview(recipe, sample=args.sample, exact=args.exact)
    if args.csv:
        found.to_csv(args.csv)
    if args.json:
        print_json(_as_json(found))
    else:
        _print(found)
        if args.csv:
            say(f"Every figure is in {args.csv}.")
    return 0


def _as_json(found: Preview) -> dict[str, Any]:
    tables = {"models": found.models, "tensors": found.tensors, "cosines": found.cosines}
    summary = {**found.summary(), "cosine": [[*pair, value] for pair, value in found.summary()["cosine"].items()]}
    return {
        "reference": found.reference,
        "summary": _finite(plain(summary)),
        **{name: _records(frame) for name, frame in tables.items()},
    }


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is undefined becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(found: Preview) -> None:
    """One table of models and one of layers; the ends of 95 % intervals stand in brackets."""
    summary = found.summary()
    share = summary["sampled_share"]
    looked = "all of them looked at" if share == 1 else f"{share:.1%} of them looked at"
    put(f"{summary['tensors']} tensors, {summary['elements']:,} numbers, {looked}.")
    put(f"Changes are measured from {found.reference}.\n")
    put(table([["model", "change", "unchanged", "kept"], *_model_rows(found.overall().models)]))
    for (first, second), cosine in summary["cosine"].items():
        put(f"cosine of the changes of {first} and {second}: {_number(cosine)}")
    put("")
    put(table([["layer", *found.model_names, "one sign", "merged"], *_layer_rows(found.by_layer())]))
    if summary["non_finite"]:
        say(f"warning: {summary['non_finite']} of the numbers looked at are infinite or NaN.")
    opposite = int((found.tensors["opposite_share"] > 0).sum())
    if opposite:
        say(
            f"warning: {counted(opposite, 'tensor')} {'holds' if opposite == 1 else 'hold'} vectors that are nearly "
            "opposite; no arc between them is the shortest, so they are mixed on the straight line."
        )
    if found.exact_only:
        say(f"note: --exact is needed for the figures of {counted(len(found.exact_only), 'tensor')}.")
    if found.left_out:
        name, reason = found.left_out[0]
        say(f"note: no figures for {counted(len(found.left_out), 'tensor')}, such as {name}: {reason}")


def _model_rows(models: pd.DataFrame) -> list[list[str]]:
    names = ("relative_delta", "zero_share", "kept_share")
    return [[str(row["model"]), *(_range(row, name) for name in names)] for row in models.to_dict("records")]


def _layer_rows(layers: Preview) -> list[list[str]]:
    changes = {
        (row["tensor"], row["model"]): _percent(row["relative_delta"]) for row in layers.models.to_dict("records")
    }
    return [
        [
            str(row["tensor"]),
            *(changes.get((row["tensor"], model), "") for model in layers.model_names),
            _percent(row["sign_agreement"]),
            _percent(row["merged_relative"]),
        ]
        for row in layers.tensors.to_dict("records")
    ]


def _range(row: dict[Any, Any], name: str) -> str:
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    if math.isnan(value) or math.isnan(low) or low == high:
        return _percent(value)
    return f"{_percent(value)} ({_percent(low)} to {_percent(high)})"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.3g} %"


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"


COMMAND = Command(
    name="preview",
    summary="Show what a merge will change, in numbers, before it runs.",
    example="preview recipe.yaml --sample 0.05",
    add_arguments=add_arguments,
    run=run,
)
