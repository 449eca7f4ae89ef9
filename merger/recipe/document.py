"""Text or plain Python values -> a tree that knows for each value how it was written and where."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from merger.errors import Problem, RecipeError
from merger.recipe.entries import Filtered
from merger.types import ModelReference

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_NODES = 10_000
MAX_DOCUMENTS = 100

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
INTEGER = re.compile(r"[-+]?[0-9]+")
NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
WORDS: Mapping[str, bool | None] = {
    form: value
    for word, value in {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.items()
    for form in (word, word.capitalize(), word.upper())
} | dict.fromkeys(("", "~", "null", "Null", "NULL"))


@dataclass(frozen=True)
class Node:
    """One value of a document.

    Attributes:
        value: a scalar, a list of nodes, or a dictionary of nodes.
        text: a scalar as it was written; names of models are read from it.
        line: where the value, or the key it belongs to, begins; None outside of text.
    """

    value: Any
    text: str = ""
    line: int | None = None

    @classmethod
    def of(cls, value: object) -> Node:
        """The tree of plain Python values, filters and model references.

        Raises:
            RecipeError: a value is of a type that no recipe holds.
        """
        if isinstance(value, Node):
            return value
        if isinstance(value, Filtered):
            return cls.of({"filter": value.filter, "value": value.value})
        if isinstance(value, Mapping):
            return cls({str(key): cls.of(item) for key, item in value.items()})
        if isinstance(value, (list, tuple)):
            return cls([cls.of(item) for item in value])
        return cls(_plain_scalar(value), "" if value is None else str(value))

    @property
    def kind(self) -> str:
        """What the value is, in words."""
        for kinds, words in KINDS:
            if isinstance(self.value, kinds):
                return words
        return "nothing" if self.value is None else "a model"


KINDS: tuple[tuple[Any, str], ...] = (
    (dict, "a mapping"),
    (list, "a list"),
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
)


def _plain_scalar(value: object) -> object:
    if value is None or isinstance(value, (bool, str, ModelReference)):
        return value
    if isinstance(value, os.PathLike):
        return ModelReference(os.fspath(value))
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    hint = "Use numbers, text, true or false, or lists of them."
    raise RecipeError(f"{value!r} cannot stand in a recipe.", hint=hint)


def scalar(text: str) -> bool | int | float | str | None:
    """The meaning of an unquoted scalar.  ``1e-5``, ``.4`` and ``1.`` are numbers, whatever YAML 1.1 says."""
    if text in WORDS:
        return WORDS[text]
    if NOT_FINITE.fullmatch(text):
        return math.nan if "nan" in text.lower() else math.inf
    if not NUMBER.fullmatch(text):
        return text
    number = float(text)
    return int(text) if INTEGER.fullmatch(text) and math.isfinite(number) else number


def load(text: str, source: str) -> tuple[Node, list[Problem]]:
    """Read one YAML document; keys that stand twice are reported, the first one counts.

    Args:
        text: the document.
        source: what to call it in messages.

    Raises:
        RecipeError: the text is not YAML, is too large or too deep, uses anchors, aliases or tags, or
            holds a second document.
    """
    nodes, problems = load_documents(text, source, at_most=1)
    return (nodes or [Node(None)])[0], problems


def load_documents(text: str, source: str, at_most: int = MAX_DOCUMENTS) -> tuple[list[Node], list[Problem]]:
    """Read YAML documents that stand behind each other in one text; see `load`."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise RecipeError(f"The recipe is {size} bytes long; at most {MAX_BYTES} are read.", where=source)
    builder = _Builder(text, source)
    try:
        return list(builder.documents(at_most)), builder.problems
    except yaml.MarkedYAMLError as error:
        place = f"{source}, line {error.problem_mark.line + 1}" if error.problem_mark else source
        raise RecipeError(f"This is not YAML: {error.problem}.", where=place, hint=SYNTAX_HINT) from error
    except yaml.YAMLError as error:
        first_line = str(error).splitlines()[0]
        raise RecipeError(f"This is not YAML: {first_line}.", where=source, hint=SYNTAX_HINT) from error


def read_text(path: str) -> str:
    """The text of a recipe file.

    Raises:
        RecipeError: the file is missing, is no text, or is too large to be a recipe.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) <= MAX_BYTES:
            raise RecipeError("The file is not text in UTF-8.", where=path, hint="A recipe is YAML text.") from error
        text = ""
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecipeError(f"The recipe cannot be read: {reason}.", where=path, hint="Check the name.") from error
    if len(data) > MAX_BYTES:
        raise RecipeError(f"The file is larger than {MAX_BYTES} bytes.", where=path, hint="No recipe needs that.")
    return text


SYNTAX_HINT = "Check the indentation (spaces, no tabs); put single quotes around text that holds : # * or a backslash."


class _Builder:
    """Builds nodes straight from parser events, so that nothing is expanded before the limits are checked."""

    def __init__(self, text: str, source: str) -> None:
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self.source = source
        self.nodes = 0
        self.problems: list[Problem] = []

    def documents(self, at_most: int) -> Iterator[Node]:
        """Every document; a text with nothing in it has none."""
        count = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                count += 1
                if count > at_most:
                    raise self._too_many(event, at_most)
                yield self._node(next(self.events), 1)

    def _too_many(self, event: Any, at_most: int) -> RecipeError:
        if at_most > 1:
            return self._refusal(event, f"More than {at_most} documents.", "Split the file.")
        hint = "Remove the '---'; several recipes in one file are for load_recipes, and for 'run' and 'check'."
        return self._refusal(event, "A second document begins here; one is expected.", hint)

    def _node(self, event: Any, depth: int) -> Node:
        self._check(event, depth)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(list(self._items(depth)), line=line)
        if isinstance(event, yaml.MappingStartEvent):
            return Node(self._entries(depth), line=line)
        return Node(scalar(event.value) if event.implicit[0] else event.value, event.value, line)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refusal(event, "A key must be one word.", SYNTAX_HINT)
            key = self._node(event, depth + 1)
            value = self._node(next(self.events), depth + 1)
            if key.text in entries:
                message = f"'{key.text}' stands twice, first in line {entries[key.text].line}."
                self.problems.append(Problem(message, f"{self.source}, line {key.line}", "Keep one of them."))
            else:
                entries[key.text] = Node(value.value, value.text, key.line)
        return entries

    def _check(self, event: Any, depth: int) -> None:
        self.nodes += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refusal(
                event, "Anchors (&) and aliases (*) are refused.", "Write the values out or quote them."
            )
        if event.tag is not None:
            raise self._refusal(event, f"The tag '{event.tag}' is refused.", "Write the value without it or quote it.")
        if depth > MAX_DEPTH:
            raise self._refusal(event, f"Values are nested more than {MAX_DEPTH} deep.", "No recipe needs that.")
        if self.nodes > MAX_NODES:
            raise self._refusal(event, f"The recipe has more than {MAX_NODES} values.", "No recipe needs that.")

    def _refusal(self, event: Any, message: str, hint: str) -> RecipeError:
        return RecipeError(message, where=f"{self.source}, line {event.start_mark.line + 1}", hint=hint)
