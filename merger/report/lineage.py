"""Which model the others were fine-tuned from, as far as their own files tell."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from merger.checkpoints.base import Checkpoint
from merger.errors import Problem
from merger.types import ModelReference

CARD = "README.md"
CACHED_NAME = re.compile(r"models--(.+?)--([^/\\]+)")


def suggest_base(checkpoints: Sequence[Checkpoint]) -> tuple[ModelReference | None, list[Problem]]:
    """The given model that all others name as their origin, and a sentence about it.

    Returns:
        The base, or None when configurations and cards do not agree on one of the models.
    """
    if len(checkpoints) < 2:
        return None, []
    for candidate in checkpoints:
        others = [checkpoint for checkpoint in checkpoints if checkpoint is not candidate]
        if all(any(_means(name, other, candidate) for name in parents(other)) for other in others):
            reference = candidate.reference
            message = f"The other models name {reference.short_name} as the model they come from: it is the base."
            return reference, [Problem(message, level="note")]
    shared = set.intersection(*(set(parents(checkpoint)) for checkpoint in checkpoints))
    if shared:
        message = f"All models come from {_shown(min(shared))}, which is not among them."
        hint = "Methods that work with task vectors (TIES, DARE, task arithmetic) need it as base."
        return None, [Problem(message, hint=hint, level="note")]
    message = "The models do not say which of them is the base."
    return None, [Problem(message, hint="Choose one if the method works with task vectors.", level="note")]


def parents(checkpoint: Checkpoint) -> list[str]:
    """The names under which a model's configuration and card mention its origin."""
    name = (checkpoint.config or {}).get("_name_or_path")
    found = [name] if isinstance(name, str) and name else []
    if CARD in checkpoint.files:
        found += _card_parents(checkpoint.files[CARD].read())
    return list(dict.fromkeys(found))


def _card_parents(data: bytes) -> list[str]:
    """``base_model`` from the front matter of a model card, one name or several."""
    front = re.match(r"---\r?\n(.*?)\r?\n---", data.decode("utf-8", "replace"), re.DOTALL)
    entry = re.search(r"^base_model:[ \t]*(.*(?:\r?\n[ \t]*-[ \t].*)*)", front[1] if front else "", re.MULTILINE)
    lines = entry[1].splitlines() if entry else []
    return [name for line in lines if (name := line.strip().removeprefix("- ").strip().strip("'\""))]


def _means(name: str, user: Checkpoint, candidate: Checkpoint) -> bool:
    """Whether ``name``, written in the files of ``user``, means ``candidate``."""
    path = candidate.reference.path
    place = os.path.realpath(os.path.expanduser(path))
    home = os.path.realpath(os.path.expanduser(user.reference.path))
    if os.path.realpath(os.path.join(home, name)) == place or os.path.realpath(name) == place:
        return True
    return _hub_name(name).lower() in (_hub_name(path).lower(), _last_part(_hub_name(path)).lower()) or (
        not _is_id(path) and _last_part(name).lower() == _last_part(_hub_name(path)).lower()
    )


def _shown(name: str) -> str:
    """A Hub id as it is; of a path its last part, since the folders belong to somebody else's machine."""
    return name if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) else _last_part(name)


def _hub_name(path: str) -> str:
    """``owner/name`` of a path into the Hub's cache; other paths stay."""
    cached = CACHED_NAME.search(path)
    return f"{cached[1]}/{cached[2]}" if cached else path


def _is_id(path: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not os.path.exists(path)


def _last_part(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]
