"""The live what-if: samples of models, kept in memory, answer every move of a slider.

Two samples per set of models: a full one for when the hand rests, and a small one while it
moves.  They are shared by all visitors and the least used are dropped.  One computation runs at
a time: several at once would only slow each other down.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import merger
from components import access, text
from components.demo_skills import DemoSkills
from components.draft import Draft
from components.numbers import ORIGIN, Numbers, Shape, has_unknown
from components.recipes import recipe_of

if TYPE_CHECKING:
    from merger import MethodFacts, Recipe, Sample

FULL_BYTES = 64 << 20
FULL_ELEMENTS = 1 << 16
LIVE_ELEMENTS = 2048
CACHE_BYTES = 512 << 20
"""Samples are dropped, the least used first, when all of them together are larger."""


@dataclass(frozen=True)
class Samples:
    """What is kept of one set of models.

    Attributes:
        key: names the set, and the state of its files, in messages to the page.
        full, live: samples for a resting and for a moving hand.
        shape: arrangement of the figures.
    """

    key: str
    full: Sample
    live: Sample
    shape: Shape

    @property
    def bytes(self) -> int:
        """Memory that both samples take."""
        return self.full.bytes + self.live.bytes


@dataclass
class WhatIf:
    """Evaluates drafts on samples.

    Attributes:
        methods: facts of every merge method by name.
        skills: tries out merges of the demo's models.
    """

    methods: Mapping[str, MethodFacts]
    skills: DemoSkills = field(default_factory=DemoSkills)
    _cache: OrderedDict[str, Samples] = field(default_factory=OrderedDict)
    _lane: threading.Lock = field(default_factory=threading.Lock)

    def recipe(self, draft: Draft) -> Recipe:
        """The recipe of a draft: the pinned one, or what the controls mean.

        Raises:
            RecipeError: the settings contradict each other.
            UserError: a model may not be opened here.
        """
        pinned = draft.pinned
        recipe = draft.to_recipe(self.methods[draft.method]) if pinned is None else recipe_of(pinned)
        access.policy().require(recipe.all_models())
        return recipe

    def samples(self, draft: Draft) -> Samples:
        """The samples of a draft's models, read now if they are not at hand.

        Raises:
            CheckpointError: a model is missing or damaged.
            PlanError: the models do not fit together.
        """
        key = set_key(draft)
        with self._lane:
            if key not in self._cache:
                self._cache[key] = self._take(draft, key)
            self._cache.move_to_end(key)
            while len(self._cache) > 1 and sum(kept.bytes for kept in self._cache.values()) > CACHE_BYTES:
                self._cache.popitem(last=False)
            return self._cache[key]

    def numbers(self, draft: Draft, samples: Samples, chosen: int | None, *, full: bool) -> Numbers:
        """What the figures show for a draft.

        Args:
            draft: models and settings.
            samples: of the draft's models.
            chosen: place of the model whose change the map shows among ``samples.shape.models``; None for
                the merge.
            full: whether to use the full sample; for methods that need whole tensors it is used anyway.
        """
        recipe = self.recipe(draft)
        with self._lane:
            arrays = (samples.full if full else samples.live).evaluate_arrays(recipe)
            if not full and has_unknown(arrays):
                arrays = samples.full.evaluate_arrays(recipe)
            numbers = Numbers.of(arrays, samples.shape, chosen)
            if samples.shape.skills.views:
                numbers = replace(numbers, accuracy=self.skills.of(recipe), best=self.skills.best)
        return numbers

    def warm_up(self, draft: Draft) -> None:
        """Read the samples of the first page and search the demo's best setting, before anybody asks."""
        self.samples(draft)
        self.skills.search()

    def _take(self, draft: Draft, key: str) -> Samples:
        recipe = self.recipe(draft)
        full = merger.take_sample(recipe, elements_per_tensor=_full_elements(draft), policy=access.policy())
        names = [draft.names[place] for place in draft.compared]
        roles = [part.role for part in full.parts]
        origin = text.STACKED if recipe.slices else draft.names[0] if draft.base is None else ORIGIN
        shape = Shape.of(full.evaluate_arrays(recipe), names, roles, self.skills.known(draft), origin)
        return Samples(key, full, full.thinned(LIVE_ELEMENTS), shape)


def set_key(draft: Draft) -> str:
    """Names a set of models and the state of their files; a pinned recipe may put their layers together anew."""
    states = [(model, *_file_state(Path(os.path.expanduser(model)))) for model in draft.models]
    return hashlib.sha256(repr((states, draft.base, draft.pinned)).encode("utf-8", "replace")).hexdigest()[:16]


def _file_state(path: Path) -> list[tuple[str, int, int]]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return [(file.name, (status := file.stat()).st_size, status.st_mtime_ns) for file in files if file.exists()]


def _full_elements(draft: Draft) -> int:
    tensors = sum(facts.tensors for facts in merger.inspect(*draft.models, policy=access.policy()).models)
    return max(LIVE_ELEMENTS, min(FULL_ELEMENTS, FULL_BYTES // 4 // max(tensors, 1)))
