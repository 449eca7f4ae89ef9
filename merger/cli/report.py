"""How findings and results are said: text for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from merger.errors import MergerError, Problem, origin_of, printable, words_of

SHOWN_PLACES = 3
SHOWN_CHARACTERS = 1000


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """One value on one line of standard output, or of ``stream``."""
    print(json.dumps(value), file=stream, flush=True)


def say(text: str) -> None:
    """Lines for people on standard error, where they do not mix with results."""
    print(harmless(text), file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Lines for people on standard output."""
    print(harmless(text))


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey, such as a colour code in a tensor's name."""
    return "\n".join(map(printable, text.split("\n")))


def print_failure(problems: Sequence[Problem], as_json: bool, extra: Mapping[str, Any] | None = None) -> None:
    """Say why nothing was done; ``extra`` are further keys for programs."""
    if as_json:
        print_json({"event": "Failed", "problems": [asdict(problem) for problem in problems], **(extra or {})})
        return
    errors = [problem for problem in problems if problem.level == "error"]
    lines = grouped(errors)
    if len(lines) == 1:
        say(f"error: {lines[0]}")
    else:
        say("\n".join([f"error: {len(errors)} problems were found.", *(f"  - {line}" for line in lines)]))
    print_problems(problem for problem in problems if problem.level != "error")


def problems_of(error: Exception) -> tuple[Problem, ...]:
    """What an exception says to people; a bug is said in one sentence."""
    if isinstance(error, MergerError):
        return error.problems
    if isinstance(error, OSError):
        return (Problem(f"{error.strerror or error}.", where=str(error.filename or "")),)
    return (
        Problem(
            f"something unexpected went wrong in {origin_of(error)}: {words_of(error)}.",
            hint="Run the command again with --debug to see the traceback.",
        ),
    )


def print_cancelled(message: str, as_json: bool) -> None:
    """Say that the work was stopped on request."""
    if as_json:
        print_json({"event": "Cancelled"})
    else:
        say(f"cancelled: {message}")


def print_problems(problems: Iterable[Problem]) -> None:
    """Warnings and notes, one line per kind however many tensors are meant."""
    found = list(problems)
    for level in ("error", "warning", "note"):
        for line in grouped([problem for problem in found if problem.level == level]):
            say(f"{level}: {line}")


def grouped(problems: Sequence[Problem]) -> list[str]:
    """One line per kind of finding; findings that differ only in their place share a line."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.message, problem.hint), []).append(problem)
    return [_line([problem.where for problem in group], *kind) for kind, group in groups.items()]


def _line(places: Sequence[str], message: str, hint: str) -> str:
    named = [place for place in dict.fromkeys(places) if place]
    more = f" and {len(named) - SHOWN_PLACES} more" if len(named) > SHOWN_PLACES else ""
    text = printable(str(Problem(message, ", ".join(named[:SHOWN_PLACES]) + more, hint)))
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[: SHOWN_CHARACTERS // 2]} ... {text[-SHOWN_CHARACTERS // 2 :]}"


def counted(count: int, word: str) -> str:
    """A number and what it counts."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def size_text(count: float) -> str:
    """Bytes as people write them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def time_text(seconds: float) -> str:
    """A duration as people write it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to the same width; the first row is the head."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def plain(value: Any) -> Any:
    """A value made of what JSON knows: mappings, lists, strings, numbers."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, type):
        return value.__name__
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
