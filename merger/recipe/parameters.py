"""Reading what stands under ``parameters``: names that have an effect there, and their settings."""

from __future__ import annotations

import math

from merger.errors import did_you_mean, nearest
from merger.recipe.document import Node
from merger.recipe.entries import Filtered, Setting
from merger.recipe.names import home_of, method_users
from merger.recipe.reader import Reader, given
from merger.types import ImmutableMap, Vocabulary

NOTHING: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


class ParameterReader(Reader):
    """Adds settings to the values that can be read."""

    def __init__(self, vocabulary: Vocabulary | None, lenient: bool, source: str) -> None:
        super().__init__(vocabulary, lenient, source)
        self.method: str | None = None
        """Canonical name of the recipe's method, once it is known; None accepts the parameters of all."""

    def parameters(self, node: Node | None, path: str, *, per_model: bool) -> ImmutableMap[str, Setting]:
        """The settings of one level whose names have an effect there.

        Args:
            node: the mapping under ``parameters``.
            path: its place.
            per_model: whether the level belongs to one model.
        """
        settings: dict[str, Setting] = {}
        for name, child in (self.entries(node, path, "a mapping of parameters") if node else {}).items():
            where = f"{path}.{name}"
            value = self.setting(child, where)
            if self._has_effect(name, child, where, per_model) and value is not None:
                settings[name] = value
        return ImmutableMap(settings)

    def _has_effect(self, name: str, node: Node, path: str, per_model: bool) -> bool:
        if self.vocabulary is None:
            return True
        common, own = self.vocabulary.methods.get(self.method or "", NOTHING)
        if name in own or (name in common and not per_model):
            return True
        if name in common:
            message = f"'{name}' is one value for all models; for one model it has no effect."
            self.report(node.line, path, message, "Move it to `parameters` at the top or of a slice.", "warning")
        elif name in self.known:
            if self.method is None:
                return True
            hint = method_users(name, self.vocabulary)
            self.report(node.line, path, f"'{name}' has no effect with {self.method}.", hint, "warning")
        elif home := home_of(name, ()):
            self.report(node.line, path, f"'{name}' is not a parameter.", f"It belongs {home}.", "warning")
        elif self.method is not None or nearest(name, self.known) is not None:
            hint = did_you_mean(name, common | own or self.known)
            self.refuse_name(node.line, path, f"Nobody knows the parameter '{name}'.", hint)
        return False

    def setting(self, node: Node, path: str) -> Setting | None:
        """A scalar, a gradient, or lines with filters."""
        if isinstance(node.value, dict):
            return self._filters([node], path)
        if isinstance(node.value, list) and any(isinstance(item.value, dict) for item in node.value):
            return self._filters(node.value, path)
        return self._plain(node, path)

    def _filters(self, nodes: list[Node], path: str) -> tuple[Filtered, ...] | None:
        lines = [self._filter(node, f"{path}[{index}]") for index, node in enumerate(nodes)]
        fallback = next((index for index, line in enumerate(lines) if line and line.is_fallback), len(lines))
        if fallback + 1 < len(lines):
            message = "This line is never reached: one before it is for every tensor."
            where = f"{path}[{fallback + 1}]"
            self.report(nodes[fallback + 1].line, where, message, "Put the line without a filter last.", "warning")
        return tuple(line for line in lines if line is not None) or None

    def _filter(self, node: Node, path: str) -> Filtered | None:
        if not isinstance(node.value, dict):
            self.expected(node, path, "a mapping with 'filter' and 'value'")
            return None
        keys = self.mapping(node, path, "filter")
        pattern = None
        if given(keys, "filter"):
            pattern = self.text(keys["filter"], f"{path}.filter", "part of a tensor name, such as self_attn")
        if "value" not in keys:
            self.report(node.line, path, "A line with a filter needs a 'value'.")
            return None
        value = self._plain(keys["value"], f"{path}.value")
        return None if value is None else Filtered(pattern, value)

    def _plain(self, node: Node, path: str) -> bool | int | float | str | tuple[float, ...] | None:
        if isinstance(node.value, list):
            items = self.items(node, path, "numbers")
            numbers = [self._number(item, f"{path}[{index}]") for index, item in enumerate(items)]
            return tuple(float(number) for number in numbers if number is not None) or None
        if isinstance(node.value, (bool, str)):
            return node.value
        return self._number(node, path, "a number, true or false, text, or a list of numbers")

    def _number(self, node: Node, path: str, what: str = "a number") -> int | float | None:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            self.expected(node, path, what)
        elif not (abs(node.value) < 2**63 if isinstance(node.value, int) else math.isfinite(node.value)):
            self.report(node.line, path, f"'{node.text}' is not a finite number of common size.")
        else:
            return node.value
        return None
