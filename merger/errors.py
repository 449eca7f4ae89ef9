"""Everything that can go wrong, said so that a person can act on it."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """One finding: what is wrong, where, and what to do.

    ``error`` stops the merge, ``warning`` means something was ignored or changed,
    ``note`` reports a rule that was applied.
    """

    message: str
    where: str = ""
    hint: str = ""
    level: Literal["error", "warning", "note"] = "error"

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if not self.hint:
            return text
        return f"{text} {self.hint}" if text.endswith((".", "!", "?", ":", ";", ")")) else f"{text}. {self.hint}"


class MergerError(Exception):
    """Root of all errors that the engine raises on purpose.

    Attributes:
        problems: everything found, never empty.
    """

    def __init__(self, problem: str | Problem | Sequence[Problem], *, where: str = "", hint: str = "") -> None:
        if isinstance(problem, str):
            problem = Problem(problem, where, hint)
        self.problems: tuple[Problem, ...] = (problem,) if isinstance(problem, Problem) else tuple(problem)
        super().__init__("\n".join(map(str, self.problems)))


class UserError(MergerError, ValueError):
    """Input that cannot be used as it is; the message says what to change."""


class RecipeError(UserError):
    """The recipe names something unknown or contradicts itself."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or of an unsupported kind."""


class MethodError(UserError):
    """A merge method is defined or used wrongly."""


class PlanError(UserError):
    """Recipe and checkpoints do not fit together."""


class OutputError(UserError):
    """The output place cannot be used."""


class InputChangedError(MergerError):
    """An input file changed while it was being read."""


class NonFiniteError(MergerError):
    """``--strict`` found infinities or NaN in the result."""


class Cancelled(MergerError):
    """The merge was stopped on request; the journal is kept for ``--resume``."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` most likely means, or None."""
    candidates = list(known)
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest valid name, or lists the valid ones."""
    candidates = sorted(known)
    close = nearest(name, candidates)
    if close is not None:
        return f"Did you mean '{close}'?"
    return f"Known: {', '.join(candidates)}." if candidates else ""


def words_of(error: BaseException) -> str:
    """Kind and words of an exception on one line, also of one that cannot say its words."""
    try:
        words = " ".join(str(error).split())
    except Exception:
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def printable(text: str) -> str:
    """The text on one line: control characters and broken Unicode escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def origin_of(error: BaseException) -> str:
    """File and line where an exception was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}, line {last.lineno}"


@contextmanager
def foreign_code(what: str, where: str = "") -> Iterator[None]:
    """Whatever code that is not ours raises becomes an error that says whose code it is.

    Args:
        what: the code, such as "merge method 'towards'".
        where: the tensor or file it works on.

    Raises:
        MethodError: from anything but our own errors and Ctrl-C; even from ``sys.exit()``.
    """
    try:
        yield
    except (MergerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise MethodError(f"{what} failed in {origin_of(error)}: {words_of(error)}.", where=where) from error
