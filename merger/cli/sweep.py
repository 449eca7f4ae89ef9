"""``sweep``: the common methods over the same models, one folder each, to compare them."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from merger.cli.command import Command, UsageError, add_models_option, finite_number, model_name, whole_number
from merger.cli.engine import add_run_options, load_plugins, merge_and_report
from merger.cli.report import plain, print_failure, print_json, problems_of, say, size_text, table, time_text
from merger.errors import Cancelled, MergerError, Problem
from merger.types import OUTPUT_DTYPES, ModelReference

TASK_VECTOR_METHODS = ("task", "ties", "dare_ties", "dare_linear", "della", "della_linear")
DENSITY = 0.5
LATER = ("--hf-user", "--hf-base-name")


@dataclass(frozen=True)
class Leg:
    """One merge of a sweep.

    Attributes:
        name: its folder.
        method: the merge method.
        models: what it merges.
    """

    name: str
    method: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How one merge of a sweep ended.

    Attributes:
        name: its folder.
        path: where the result is, empty when it failed.
        seconds, bytes: what it took.
        problems: why it failed.
    """

    name: str
    path: str = ""
    seconds: float = 0.0
    bytes: int = 0
    problems: tuple[Problem, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``sweep``."""
    add_models_option(parser)
    parser.add_argument(
        "--base", required=True, type=model_name, metavar="MODEL", help="the model that they were fine-tuned from"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the folders of the results")
    parser.add_argument(
        "--labels", nargs="+", action="extend", metavar="NAME", help="short names of the models (default: theirs)"
    )
    parser.add_argument(
        "--weight", nargs="+", action="extend", type=finite_number, metavar="X", help="share of each model"
    )
    parser.add_argument(
        "--density",
        nargs="+",
        type=finite_number,
        metavar="X",
        default=[DENSITY],
        help=f"part of each task vector that ties, dare and della keep (default {DENSITY})",
    )
    parser.add_argument("--t", type=finite_number, default=0.5, metavar="X", help="place between two models for slerp")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of random methods")
    parser.add_argument("--dtype", choices=OUTPUT_DTYPES, help="dtype of the results")
    for option in LATER:
        parser.add_argument(option, help=argparse.SUPPRESS)
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Merge every leg; one that fails does not stop the rest."""
    load_plugins(args.plugin)
    legs = list(plan_legs(args))
    outcomes = []
    for number, leg in enumerate(legs, 1):
        if not args.json:
            say(f"[{number}/{len(legs)}] {leg.name}")
        outcomes.append(_merge_leg(leg, args))
    if args.json:
        print_json({"event": "Swept", "results": plain(outcomes)})
    else:
        print(table([["folder", "result", "time", "size", "path"], *map(_row, outcomes)]))
    return 2 if any(outcome.problems for outcome in outcomes) else 0


def plan_legs(args: argparse.Namespace) -> Iterator[Leg]:
    """The merges of a sweep: slerp over every pair, each other method over all models.

    Raises:
        UsageError: too few models, labels that do not fit, or no place for the results.
    """
    if args.hf_user or args.hf_base_name:
        raise UsageError(
            "--hf-user and --hf-base-name would publish the results, which is not possible yet.",
            hint="Leave them out and give --out DIR; the merged folders can be uploaded as they are.",
        )
    if not args.out:
        raise UsageError("--out must be given: the folder that the results' folders go into.")
    if len(args.models) < 2:
        raise UsageError(f"a sweep needs at least two models; {len(args.models)} given.")
    labels = _labels(args.labels, args.models)
    models = tuple(args.models)
    yield Leg("linear", "linear", models)
    for (first, second), pair in zip(itertools.combinations(labels, 2), itertools.combinations(models, 2), strict=True):
        yield Leg(f"slerp-{first}-{second}", "slerp", pair)
    for method in TASK_VECTOR_METHODS:
        yield Leg(method, method, models)


def _labels(given: Sequence[str] | None, models: Sequence[str]) -> list[str]:
    labels = list(given) if given else [ModelReference.parse(model).short_name for model in models]
    if len(labels) != len(models):
        raise UsageError(f"--labels: {len(labels)} names for {len(models)} models.", hint="Give one per model.")
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise UsageError(f"two models are called '{twice[0]}'.", hint="Tell them apart with --labels.")
    for label in labels:
        if not re.fullmatch(r"[^\\/\x00-\x1f]+", label) or label in (".", ".."):
            raise UsageError(f"--labels: '{label}' cannot be part of a folder's name.")
    return labels


def _merge_leg(leg: Leg, args: argparse.Namespace) -> Outcome:
    from merger.cli.build import Request, build_recipe
    from merger.methods import registry

    try:
        request = Request(leg.models, _base(leg, args), _settings(leg, args), args.seed, args.dtype)
        out = os.path.join(args.out, leg.name)
        result = merge_and_report(build_recipe(registry.facts(leg.method), request), out, args, leg.name)
    except Cancelled:
        raise
    except (MergerError, OSError) as error:
        print_failure(problems_of(error), args.json, {"merge": leg.name})
        return Outcome(leg.name, problems=problems_of(error))
    return Outcome(leg.name, result.path, result.seconds, result.bytes_out)


def _base(leg: Leg, args: argparse.Namespace) -> str | None:
    base: str = args.base
    return None if leg.method in ("linear", "slerp") else base


def _settings(leg: Leg, args: argparse.Namespace) -> dict[str, list[str]]:
    if leg.method == "slerp":
        return {"t": [repr(args.t)]}
    settings = {} if args.weight is None else {"weight": [repr(value) for value in args.weight]}
    if leg.method not in ("linear", "task"):
        settings["density"] = [repr(value) for value in args.density]
    return settings


def _row(outcome: Outcome) -> list[str]:
    if outcome.problems:
        return [outcome.name, "failed", "", "", str(outcome.problems[0])]
    return [outcome.name, "merged", time_text(outcome.seconds), size_text(outcome.bytes), outcome.path]


COMMAND = Command(
    name="sweep",
    summary="Merge the same models by linear, slerp, task, ties, dare_* and della*, one folder each.",
    example="sweep --base BASE --models A B --labels a b --out DIR",
    add_arguments=add_arguments,
    run=run,
)
