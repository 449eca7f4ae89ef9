"""The options of every command that merges, and running one merge with them."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from merger.cli.command import whole_number
from merger.cli.interrupt import cancel_on_signal
from merger.cli.progress import consume, make_reporter
from merger.cli.report import say, size_text, time_text
from merger.errors import Cancelled, printable

if TYPE_CHECKING:
    from merger.events import Event, Merged
    from merger.recipe import Recipe, RunOptions


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """How to run; none of it changes a value of the result."""
    group = parser.add_argument_group("how to run")
    group.add_argument(
        "--shard-size", default="5GB", metavar="SIZE", help="largest weight file, such as 500MB or 2GiB (default 5GB)"
    )
    group.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N or cuda:all")
    group.add_argument("--workers", type=whole_number(1), metavar="N", help="threads (default: one per processor)")
    group.add_argument("--overwrite", action="store_true", help="replace an output folder that exists")
    group.add_argument("--resume", action="store_true", help="go on with an interrupted merge")
    group.add_argument("--strict", action="store_true", help="refuse infinities, NaN and integer tensors that differ")
    add_plugin_option(group)


def add_plugin_option(parser: argparse._ActionsContainer) -> None:
    """Merge methods from files of the user's own."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE", help="Python file with merge methods of your own"
    )


def load_plugins(files: Sequence[str]) -> None:
    """Register the merge methods in these files."""
    if files:
        from merger.methods.registry import load_plugin

        with redirect_stdout(sys.stderr):
            for file in files:
                load_plugin(file)


def run_options(args: argparse.Namespace, cancel: threading.Event) -> RunOptions:
    """The run options that the command line gives."""
    from merger.recipe import RunOptions, parse_size

    return RunOptions(
        device=args.device,
        workers=args.workers,
        shard_size=parse_size(args.shard_size),
        overwrite=args.overwrite,
        resume=args.resume,
        strict=args.strict,
        cancel=cancel,
    )


def merge_and_report(recipe: Recipe, out: str, args: argparse.Namespace, label: str = "") -> Merged:
    """Merge into a folder while progress is shown.

    Raises:
        MergerError: whatever stops the merge.
    """
    from merger.api import merge

    return _report(lambda options: merge(recipe, Path(os.path.expanduser(out)), options), args, label)


def merge_series_and_report(recipes: Sequence[Recipe], out: str, args: argparse.Namespace) -> Merged:
    """Merge recipes that build on each other while progress is shown; see `merge_and_report`."""
    from merger.series import default_intermediate, merge_recipes

    place = Path(os.path.expanduser(out))
    parts = Path(os.path.expanduser(args.intermediate_dir)) if args.intermediate_dir else default_intermediate(place)
    result = _report(lambda options: merge_recipes(recipes, place, options, parts), args)
    if not args.json:
        say(f"Intermediate results are kept in {printable(str(parts))} and used again; delete them when you are done.")
    return result


def _report(
    begin: Callable[[RunOptions], Generator[Event, None, None]], args: argparse.Namespace, label: str = ""
) -> Merged:
    reporter = make_reporter(args.json, label)
    # What plugins print must not stand among the events.
    with cancel_on_signal() as cancel, redirect_stdout(sys.stderr):
        try:
            with closing(begin(run_options(args, cancel))) as events:
                result = consume(events, reporter)
        except KeyboardInterrupt:
            raise Cancelled("The merge was stopped at once.") from None
    if not args.json:
        say(f"Merged in {time_text(result.seconds)}, {size_text(result.bytes_out)}.")
    return result


def print_result(result: Merged) -> None:
    """Where the model is, and three lines that load it."""
    from merger.card import usage_of_folder

    print(result.path)
    say("\n".join(["Load it with:", *(f"    {line}" for line in usage_of_folder(Path(result.path)))]))
