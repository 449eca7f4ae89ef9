"""Every failure as what happened, why, and what to do; details stay folded."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from components import text
from merger import MergerError, Problem

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Explained:
    """One failure in words.

    Attributes:
        what: happened.
        why: the cause, as far as it is known.
        todo: what to do about it.
        details: for people who want to know, or report it.
    """

    what: str
    why: str = ""
    todo: str = ""
    details: str = ""

    @property
    def lines(self) -> list[str]:
        """The words, without the details."""
        return [line for line in (self.what, self.why, self.todo) if line]


def explain(error: BaseException, what: str) -> list[Explained]:
    """What to tell a visitor.

    Args:
        error: what was raised.
        what: the thing that did not work, as a sentence.
    """
    if isinstance(error, MergerError):
        return [of_problem(problem, what) for problem in error.problems if problem.level == "error"]
    for kind, (why, todo) in text.EXCEPTIONS.items():
        if isinstance(error, kind):
            return [Explained(what, why, todo, _details(error))]
    log.error("unexpected failure", exc_info=error)
    return [Explained(what, *text.UNEXPECTED, _details(error))]


def of_problem(problem: Problem, what: str) -> Explained:
    """A finding of the engine: its message says why, its hint what to do."""
    return Explained(what, sentence(_placed(problem)), sentence(problem.hint))


def sentence(words: str) -> str:
    """The words with a capital and a full stop, where they begin and end like words."""
    words = words.strip()
    if words[:1].islower() and words.split(" ", 1)[0].isalpha():
        words = words[0].upper() + words[1:]
    return f"{words}." if words and (words[-1].isalnum() or words[-1] in "'\")") else words


def alert(problems: Sequence[Explained]) -> str:
    """A red card; empty when there is nothing to say."""
    if not problems:
        return ""
    reasons = [
        f"{html.escape(problem.why)} <span class='todo'>{html.escape(problem.todo)}</span>{_folded(problem)}"
        for problem in problems
        if problem.why or problem.todo
    ]
    body = f"<p>{reasons[0]}</p>" if len(reasons) == 1 else f"<ul>{''.join(f'<li>{r}</li>' for r in reasons)}</ul>"
    return f"<div class='alert' role='alert'><strong>{html.escape(problems[0].what)}</strong>{body}</div>"


def _folded(problem: Explained) -> str:
    if not problem.details:
        return ""
    return f"<details><summary>{text.DETAILS}</summary><code>{html.escape(problem.details)}</code></details>"


def _details(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def listed(found: Sequence[Problem], fine: Sequence[str] = ()) -> str:
    """Good news and findings as a list, each with a mark for its kind; empty when there are none."""
    lines = [("fine", words, "") for words in fine]
    lines += [(problem.level, sentence(_placed(problem)), sentence(problem.hint)) for problem in found]
    items = "".join(
        f"<li class='{kind}'><span class='mark' aria-hidden='true'></span>"
        f"<span>{html.escape(words)} <span class='todo'>{html.escape(todo)}</span></span></li>"
        for kind, words, todo in lines
    )
    return f"<ul class='findings'>{items}</ul>" if items else ""


def _placed(problem: Problem) -> str:
    """The message after its place; keys of a recipe are left out, because the page has no recipe in view."""
    is_place = problem.where and not re.fullmatch(r"[a-z_]+", problem.where)
    return f"{problem.where}: {problem.message}" if is_place else problem.message
