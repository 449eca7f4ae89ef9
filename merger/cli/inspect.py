"""``inspect``: whether models fit together, from their headers and configs."""

from __future__ import annotations

import argparse

from merger.cli.command import Command, model_name
from merger.cli.report import print_json, put


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``inspect``."""
    parser.add_argument("models", nargs="+", type=model_name, metavar="MODEL", help="folders or files")


def run(args: argparse.Namespace) -> int:
    """Print the compatibility report; 0 when nothing stands against merging."""
    from merger.api import inspect

    report = inspect(*args.models)
    if args.json:
        print_json(report.to_dict())
    else:
        put(report.to_text())
    return 0 if report.fits else 2


COMMAND = Command(
    name="inspect",
    summary="Say whether models fit together, without reading their weights.",
    example="inspect BASE A B",
    add_arguments=add_arguments,
    run=run,
)
