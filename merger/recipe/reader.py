"""Reading values out of a document: every door collects what is wrong and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from merger.errors import Problem, did_you_mean
from merger.recipe.document import Node
from merger.recipe.names import HOMES, KEYS, Place, home_of, key_hint, known_parameters
from merger.types import ModelReference, Vocabulary

Line = int | None


class Reader:
    """Typed access to nodes.  A door that finds a mistake reports it and returns None or what is left.

    Args:
        vocabulary: methods and parameters to check names against; None accepts all.
        lenient: whether names that nobody knows are warnings.
        source: what to call the document in messages.
    """

    def __init__(self, vocabulary: Vocabulary | None, lenient: bool, source: str) -> None:
        self.vocabulary = vocabulary
        self.lenient = lenient
        self.source = source
        self.known = known_parameters(vocabulary)
        self.found: list[tuple[int, Problem]] = []

    def report(
        self, line: Line, path: str, message: str, hint: str = "", level: Literal["error", "warning"] = "error"
    ) -> None:
        """Remember a problem at ``path``, such as ``models[1].parameters.weight``."""
        where = ", ".join(filter(None, (f"{self.source}, line {line}" if line else "", path)))
        self.found.append((line or 0, Problem(message, where, hint, level)))

    def refuse_name(self, line: Line, path: str, message: str, hint: str) -> None:
        """Report a name that nobody knows."""
        ending = " It is ignored." if self.lenient else ""
        self.report(line, path, message + ending, hint, "warning" if self.lenient else "error")

    def expected(self, node: Node, path: str, what: str, hint: str = "") -> None:
        """Report a value of the wrong type."""
        shown = f"{node.kind} ('{node.text}')" if node.text else node.kind
        self.report(node.line, path, f"Expected {what}, found {shown}.", hint)

    # Containers

    def mapping(self, node: Node, path: str, place: Place) -> dict[str, Node]:
        """The entries whose keys are known in ``place``."""
        entries = self.entries(node, path, f"a mapping ({', '.join(KEYS[place])})")
        for key, child in entries.items():
            if key not in KEYS[place]:
                self._report_key(key, child, path, place)
        return {key: child for key, child in entries.items() if key in KEYS[place]}

    def entries(self, node: Node, path: str, what: str) -> dict[str, Node]:
        """The entries of a mapping with free keys; an empty value is an empty mapping."""
        if isinstance(node.value, dict):
            return node.value
        if node.value is not None:
            self.expected(node, path, what)
        return {}

    def _report_key(self, key: str, child: Node, path: str, place: Place) -> None:
        home = home_of(key, self.known)
        where = f"{path}.{key}" if path else key
        if home is not None:
            self.report(child.line, where, f"'{key}' has no effect {HOMES[place]}.", f"It belongs {home}.", "warning")
        else:
            hint = key_hint(key, place, self.known)
            self.refuse_name(child.line, where, f"A {place} has no key '{key}'.", hint)

    def items(self, node: Node, path: str, what: str) -> list[Node]:
        """The items of a list that may not be empty."""
        if isinstance(node.value, list) and node.value:
            return node.value
        if node.value == []:
            self.report(node.line, path, f"The list is empty; expected {what}.")
        else:
            self.expected(node, path, what)
        return []

    # Scalars

    def text(self, node: Node, path: str, what: str) -> str | None:
        """A scalar as it was written, so that a name like 1234567 or no stays text."""
        if node.value is None or isinstance(node.value, (dict, list)) or not node.text.strip():
            self.expected(node, path, what)
            return None
        return node.text

    def integer(self, node: Node, path: str, minimum: int = 0) -> int | None:
        """A whole number of at least ``minimum`` that fits 64 bits."""
        if type(node.value) is int and minimum <= node.value < 2**63:
            return node.value
        self.expected(node, path, f"a whole number from {minimum}")
        return None

    def flag(self, node: Node, path: str) -> bool:
        """True or false."""
        if not isinstance(node.value, bool):
            self.expected(node, path, "true or false")
        return node.value is True

    def choice(self, node: Node, path: str, choices: Sequence[str], others: dict[str, str]) -> str | None:
        """One of ``choices``; ``others`` maps common ways of saying them."""
        name = self.text(node, path, f"one of {', '.join(choices)}")
        if name is None or name in choices:
            return name
        likely = others.get(name.lower())
        hint = f"Did you mean '{likely}'?" if likely else did_you_mean(name, choices)
        self.report(node.line, path, f"'{name}' is none of {', '.join(choices)}.", hint)
        return None

    # Models

    def reference(self, node: Node, path: str) -> ModelReference | None:
        """A model: text, or a mapping with ``path`` or ``model``, and ``revision`` or ``lora``."""
        if isinstance(node.value, ModelReference):
            return node.value
        if isinstance(node.value, dict):
            return self._reference_mapping(node, path)
        text = self.text(node, path, "the name of a model")
        model = None if text is None else ModelReference.parse(text)
        if model is not None and not (model.path and (model.lora is None or model.lora.path)):
            self.report(node.line, path, f"'{text}' names no model.", "Write it like owner/name@revision.")
            return None
        return model

    def _reference_mapping(self, node: Node, path: str) -> ModelReference | None:
        keys = self.mapping(node, path, "reference")
        if ("path" in keys) == ("model" in keys):
            self.report(node.line, path, "A model needs either 'path' or 'model'.", "Write the name of the model.")
            return None
        if given(keys, "override_architecture"):
            message = "'override_architecture' has no effect: every architecture is merged by its tensor names."
            self.report(node.line, path, message, level="warning")
        if "model" in keys:
            inner = self.reference(keys["model"], f"{path}.model")
        else:
            place = self.text(keys["path"], f"{path}.path", "a path or a name")
            inner = ModelReference(place) if place is not None else None
        revision = self.revision(keys, path)
        lora = self.reference(keys["lora"], f"{path}.lora") if given(keys, "lora") else None
        if inner is None:
            return None
        return ModelReference(inner.path, revision or inner.revision, lora or inner.lora)

    def revision(self, keys: dict[str, Node], path: str) -> str | None:
        """The revision that a mapping names."""
        if not given(keys, "revision"):
            return None
        return self.text(keys["revision"], f"{path}.revision", "a branch, tag or commit")


def given(keys: dict[str, Node], name: str) -> bool:
    """Whether a key is there and not empty."""
    return name in keys and keys[name].value is not None
