"""What merges of the demo family can do: accuracy on the test images while sliders move."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import numpy as np

import merger
from components import access, demo
from components.draft import Draft, portable_path
from components.numbers import Floats, Skills
from merger import Recipe

TRIED_LAMBDAS = tuple(round(0.1 * step, 1) for step in range(3, 16))
START_LAMBDA = 0.33
"""About the plain average of three task vectors: the skills are still asleep there."""


def family() -> Draft:
    """The draft that the page opens with."""
    models = (demo.BASE, *demo.EXPERTS.values())
    return Draft(
        models=tuple(portable_path(model) for model in models),
        base=0,
        method="task_arithmetic",
        per_model={"weight": (1.0,) * len(models)},
        parameters={"lambda": START_LAMBDA},
    )


def is_family(draft: Draft) -> bool:
    """Whether all of a draft's models are the demo's."""
    return bool(draft.models) and _places(draft.models) <= _places((demo.BASE, *demo.EXPERTS.values()))


def is_whole_family(draft: Draft) -> bool:
    """Whether it mixes the demo's three fine-tunes on their base."""
    return (
        is_family(draft)
        and _places(draft.models[place] for place in draft.experts) == _places(demo.EXPERTS.values())
        and draft.base is not None
    )


def _places(models: Iterable[str | os.PathLike[str]]) -> set[str]:
    return {os.path.realpath(model) for model in models}


class DemoSkills:
    """Tries models and merges of the demo family; knows nothing of other models.

    Attributes:
        best: accuracy by view of the best plain task arithmetic; None until `search` is done.
    """

    def __init__(self) -> None:
        self.best: Floats | None = None
        self._parents: dict[str, Floats] = {}
        self._searching = threading.Lock()

    def known(self, draft: Draft) -> Skills | None:
        """Views and the skills of the draft's models; None when they are not all of the family."""
        places = [os.path.realpath(model) for model in draft.models]
        if not is_family(draft):
            return None
        order = sorted(range(len(places)), key=lambda place: place != draft.base)
        rows = [self._parent(places[place]) for place in order]
        return Skills(tuple(demo.views()), tuple(draft.names[place] for place in order), np.array(rows))

    def of(self, recipe: Recipe) -> Floats | None:
        """Accuracy by view of a merge; None when its layers are put together anew."""
        if recipe.slices:
            return None
        return _row(demo.accuracy(merger.merge_in_memory(recipe, policy=access.policy())))

    def of_folder(self, folder: str | os.PathLike[str]) -> Floats:
        """Accuracy by view of a model of the family on disk."""
        return _row(demo.accuracy(merger.merge_in_memory(Recipe.build("passthrough", [os.fspath(folder)]))))

    def search(self) -> None:
        """Find the best lambda of plain task arithmetic; a second call returns at once."""
        if not self._searching.acquire(blocking=False):
            return
        for value in TRIED_LAMBDAS:
            found = self.of(_plain_merge(value))
            if found is not None and (self.best is None or found.mean() > self.best.mean()):
                self.best = found

    def _parent(self, folder: str) -> Floats:
        if folder not in self._parents:
            self._parents[folder] = self.of_folder(folder)
        return self._parents[folder]


def _row(accuracy: dict[str, float]) -> Floats:
    return np.array(list(accuracy.values()))


def _plain_merge(strength: float) -> Recipe:
    models = [(portable_path(expert), {"weight": 1.0}) for expert in demo.EXPERTS.values()]
    return Recipe.build("task_arithmetic", models, base=portable_path(demo.BASE), parameters={"lambda": strength})
