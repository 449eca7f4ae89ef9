"""Takes out of messages what the server must not tell: its paths and anyone's tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SECRETS = (
    (re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{6,}"), r"\1_***"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 ***"),
    (re.compile(r"(?i)\b([\w-]*(?:token|password|secret|api[_-]?key))(\s*[=:]\s*)[^\s,;&]+"), r"\1\2***"),
    (re.compile(r"(\w+://)[^\s/@]+@"), r"\1***@"),
)
_ABSOLUTE_PATH = re.compile(r"(?:file://|(?<![\w:/.~*-]))/(?:[^\s/'\"`:;,()<>|]+/)*([^\s/'\"`:;,()<>|]+)/?")
_PATH_IN_RECIPE = re.compile(r"[:,\[-]\s*['\"]?(/[^\n'\"#]*[^\s'\"#])")


class Scrubber:
    """Shortens every absolute path to its last part and blanks tokens.

    Args:
        paths: paths known to occur, also those with spaces that no pattern could find.
    """

    def __init__(self, paths: Iterable[str | Path] = ()) -> None:
        known = {str(path).rstrip("/") for path in paths}
        self._known = sorted((path for path in known if path.startswith("/")), key=len, reverse=True)

    @classmethod
    def for_recipe(cls, recipe: str, *folders: Path) -> Scrubber:
        """A scrubber that also knows the paths that a recipe's text names."""
        return cls([*_PATH_IN_RECIPE.findall(recipe), *folders])

    def __call__(self, text: str) -> str:
        for path in self._known:
            text = text.replace(path, path.rsplit("/", 1)[-1])
        text = _ABSOLUTE_PATH.sub(r"\1", text)
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
        return text

    def values(self, value: Any) -> Any:
        """The same for every text inside plain JSON values."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(key)): self.values(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.values(item) for item in value]
        return value
