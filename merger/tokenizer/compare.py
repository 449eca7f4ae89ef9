"""Whether two models have the same tokens under the same numbers, from their tokenizer files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Protocol

TOKENIZER = "tokenizer.json"
VOCABULARY_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")
SETTINGS_OF_A_RUN = ("truncation", "padding")
"""Parts of ``tokenizer.json`` that say how it was last used, not what its tokens are."""


class Readable(Protocol):
    """A file of a model."""

    def read(self) -> bytes:
        """Its bytes."""
        ...


Files = Mapping[str, Readable]


def has_tokenizer(files: Files) -> bool:
    """Whether any of a model's files defines tokens."""
    return any(name in files for name in (TOKENIZER, *VOCABULARY_FILES))


def can_compare(first: Files, second: Files) -> bool:
    """Whether two models have files that say whether their tokens are the same."""
    return any(name in first and name in second for name in (TOKENIZER, *VOCABULARY_FILES))


def same_tokenizer(first: Files, second: Files) -> bool:
    """Whether two models have the same tokens under the same numbers, as far as their files tell."""
    if TOKENIZER in first and TOKENIZER in second:
        mine, theirs = first[TOKENIZER].read(), second[TOKENIZER].read()
        return mine == theirs or _tokens_only(mine) == _tokens_only(theirs)
    common = [name for name in VOCABULARY_FILES if name in first and name in second]
    return bool(common) and all(_sha256(first[name]) == _sha256(second[name]) for name in common)


def _sha256(file: Readable) -> str:
    return hashlib.sha256(file.read()).hexdigest()


def _tokens_only(data: bytes) -> object:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(content, dict):
        return content
    return {key: value for key, value in content.items() if key not in SETTINGS_OF_A_RUN}
