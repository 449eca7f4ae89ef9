"""Results that later merges need: what they were made from, and whether that is still the same."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.source import open_checkpoint
from merger.checkpoints.target import output_errors, repair, resolved
from merger.errors import CheckpointError, OutputError
from merger.methods import registry
from merger.portable import portable_documents
from merger.recipe import Recipe
from merger.sidefiles import RECIPE_FILE
from merger.types import ModelReference

VERSION = 1


class Result:
    """The folder of one result and, beside it, a hidden file that says what it was made from.

    Args:
        recipe: what makes it.
        place: its folder.
        models: the opened models of the recipe.
    """

    def __init__(self, recipe: Recipe, place: Path, models: Mapping[ModelReference, Checkpoint]) -> None:
        self.place = resolved(place)
        self._note = _note_of(self.place)
        self._documents = portable_documents(recipe, models)
        self._origin = {
            "version": VERSION,
            "recipe": self._documents[-1],
            "method": _method_state(recipe.merge_method),
            "models": {str(model): _state(checkpoint) for model, checkpoint in models.items()},
        }

    def require_ours(self) -> None:
        """Insist that a folder in this place is such a result which nobody changed since, so that a new one may follow.

        Raises:
            OutputError: it is not.
        """
        if self.place.exists() and not (self._is_as_recorded() or self._has_this_recipe()):
            require_no_stranger(self.place, noted=False)

    def is_current(self) -> bool:
        """Whether the folder holds what the recipe would make of the models as they are."""
        repair(self.place)
        return self._recorded().get("origin") == self._origin and self._is_as_recorded()

    def record(self) -> None:
        """Note what the folder, which was just made, was made from."""
        with self.opened() as made, output_errors(self.place):
            self._note.write_text(json.dumps({"origin": self._origin, "result": _state(made)}), encoding="utf-8")

    def _is_as_recorded(self) -> bool:
        recorded = self._recorded()
        if not recorded:
            return False
        try:
            with self.opened() as made:
                return recorded.get("result") == _state(made)
        except CheckpointError:
            return False

    def _has_this_recipe(self) -> bool:
        """Whether the folder is the result of this recipe, of which a run that was killed left no note."""
        file = self.place / RECIPE_FILE
        return file.is_file() and file.read_bytes() == "---\n".join(self._documents).encode("utf-8", "backslashreplace")

    def opened(self) -> Checkpoint:
        """The result as a model.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        made = open_checkpoint(ModelReference(str(self.place)))
        made.documents = self._documents
        return made

    def _recorded(self) -> dict[str, Any]:
        """What the note says; nothing when there is none or it is damaged."""
        try:
            content = json.loads(self._note.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and self.place.is_dir() else {}


def require_no_stranger(place: Path, *, noted: bool = True) -> None:
    """Refuse a place where something stands that no series of recipes made.

    Args:
        place: where a result will be.
        noted: whether a note or a recipe is enough to take it for the result of a series.

    Raises:
        OutputError: naming the place.
    """
    folder = resolved(place)
    marks = (_note_of(folder), folder / RECIPE_FILE)
    if not folder.exists() or (noted and any(mark.exists() for mark in marks)):
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise OutputError(
            "this is in the way of an intermediate result; it was not made by this series, or was changed since.",
            where=str(folder),
            hint="Move it, or choose another place for intermediate results (--intermediate-dir).",
        )


def _note_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.made-from.json")


def _state(checkpoint: Checkpoint) -> str:
    """Weights and side files of a model as they are on this machine."""
    files = {name: file.size for name, file in sorted(checkpoint.files.items())}
    text = json.dumps([checkpoint.state, checkpoint.config, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _method_state(name: str) -> str:
    """Digest of the file that defines a merge method, so that a changed plugin makes its results anew."""
    method = registry.get(name)
    defined_by = getattr(method, "function", type(method))
    try:
        return hashlib.sha256(Path(inspect.getfile(defined_by)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""
