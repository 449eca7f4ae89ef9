"""Reading the command line, running one command, and saying what went wrong."""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from merger.cli import check, inspect, merge, methods, preview, run, sweep
from merger.cli.command import Command, Parser, UsageError, add_output_arguments, refuse_unknown_options
from merger.cli.interrupt import stop_at_once
from merger.cli.report import print_cancelled, print_failure, problems_of
from merger.errors import Cancelled, did_you_mean

PROGRAM = "python -m merger"
COMMANDS: tuple[Command, ...] = (
    merge.COMMAND,
    run.COMMAND,
    check.COMMAND,
    inspect.COMMAND,
    preview.COMMAND,
    methods.COMMAND,
    sweep.COMMAND,
)
KEPT = "the output folder is as it was and finished work is kept; the same command with --resume goes on from there."
STOPPED = "stopped on request."
FAILED, CANCELLED, READER_GONE = 2, 130, 141

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 when all is well, 2 when something was refused or failed, 130 when it was cancelled.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    _tolerate_odd_names()
    stopping = threading.Event()
    try:
        with stop_at_once() as stopping:
            return _run(arguments)
    except (Cancelled, KeyboardInterrupt) as error:
        _last_words(print_cancelled, KEPT if isinstance(error, Cancelled) else STOPPED, as_json)
        return CANCELLED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        if stopping.is_set():
            _last_words(print_cancelled, STOPPED, as_json)
            return CANCELLED
        _last_words(print_failure, problems_of(error), as_json)
        if "--debug" in arguments:
            traceback.print_exc()
    return FAILED


def _last_words(tell: Callable[[T, bool], None], what: T, as_json: bool) -> None:
    """Say how it ended; for people where programs cannot be told, because the disk is full or nobody reads."""
    for form in (True, False) if as_json else (False,):
        try:
            tell(what, form)
        except OSError:
            continue
        return


def _run(arguments: list[str]) -> int:
    parser, commands = build_parser()
    if not arguments:
        parser.print_help()
        return 0
    if not arguments[0].startswith("-"):
        if arguments[0] not in commands:
            raise UsageError(f"there is no command '{arguments[0]}'.", hint=did_you_mean(arguments[0], commands))
        refuse_unknown_options(commands[arguments[0]], arguments[1:])
    parsed = parser.parse_args(arguments)
    command: Command = parsed.command
    return command.run(parsed)


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and those of the single commands by name."""
    parser = Parser(prog=PROGRAM, description="Merge fine-tuned models, straight from their safetensors files.")
    words = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parsers: dict[str, Parser] = {}
    for command in COMMANDS:
        parsers[command.name] = words.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog=f"example:\n  {PROGRAM} {command.example}",
        )
        command.add_arguments(parsers[command.name])
        add_output_arguments(parsers[command.name])
        parsers[command.name].set_defaults(command=command)
    return parser, parsers


def _tolerate_odd_names() -> None:
    """A file name that the terminal cannot show is escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
