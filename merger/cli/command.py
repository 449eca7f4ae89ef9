"""What a command is, and the parser that they share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from merger.errors import UserError, did_you_mean

NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

SETTINGS = {
    "weight": "share of each model; divided by their sum, unless the method has a default of its own",
    "density": "part of each task vector that is kept, 0 to 1",
    "epsilon": "how far the chance of being kept spreads around the density",
    "t": "slerp: place between the first model (0) and the second (1); nearswap: the furthest that a value moves",
    "lambda": "factor on the merged task vector",
}
"""Parameters of methods that have an option of their own, with its help."""


class UsageError(UserError):
    """The command line says something that cannot be done."""


@dataclass(frozen=True)
class Command:
    """One word after ``python -m merger``.

    Attributes:
        name: the word.
        summary: one sentence of what it does.
        example: a command line that works.
        add_arguments: describes its options.
        run: does the work and returns the exit code.
    """

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors and takes ``-1e-3`` as a number."""

    def __init__(self, prog: str | None = None, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._negative_number_matcher = NEGATIVE_NUMBER

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UsageError: always.
        """
        text = message.removeprefix("argument ")
        text = re.sub(r"^the following arguments are required: (.*)$", r"\1 must be given", text)
        raise UsageError(text.rstrip(".") + ".", hint=f"See '{self.prog} --help'.")


def refuse_unknown_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Say which option a misspelt one was meant to be, before anything else is said.

    Raises:
        UsageError: an option is unknown.
    """
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise UsageError(f"{name} is not an option of '{parser.prog}'.", hint=_option_hint(name, known))


def _option_hint(name: str, known: Sequence[str]) -> str:
    """The option that was probably meant, and how to give a method's parameter that has none."""
    if "--set" not in known:
        return did_you_mean(name, known)
    parameter = name.removeprefix("--")
    return f"{did_you_mean(name, known)} A parameter of the method is written --set {parameter} VALUE."


def finite_number(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a finite number")
    return value


def model_name(text: str) -> str:
    """The name of a model as a person wrote it."""
    if not text.strip():
        raise argparse.ArgumentTypeError("a model's name is empty")
    return text


def whole_number(minimum: int) -> Callable[[str], int]:
    """Reads a whole number that is not below ``minimum``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below {minimum}")
        return value

    return read


def add_models_option(parser: argparse.ArgumentParser) -> None:
    """Which models are merged."""
    parser.add_argument(
        "--models",
        required=True,
        nargs="+",
        action="extend",
        type=model_name,
        metavar="MODEL",
        help="the models to merge",
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text for people")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
