"""What can be wrong with slices once the models are known: layers, vocabularies, kinds of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from merger.architecture import broken_patterns, embedding_name, is_head, says_tied
from merger.checkpoints.base import Checkpoint
from merger.errors import Problem
from merger.matching import KEEP_VOCABULARY, ModelIndex
from merger.recipe import ModelEntry, Recipe
from merger.types import ModelReference

Indexes = Mapping[ModelReference, ModelIndex]


def slice_problems(recipe: Recipe, indexes: Indexes) -> Iterator[Problem]:
    """Layers that a model lacks, and parts that do not fit behind each other."""
    if recipe.slices:
        yield from _missing_layers(recipe, indexes)
        yield from _vocabularies(recipe, indexes)
        yield from _shared_embedding(recipe, indexes)
        yield from _broken_patterns(recipe, indexes)


def layer_origins(
    recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint] | Indexes
) -> tuple[list[int], list[Mapping[str, Any]]]:
    """For each output layer its index in the base, else the first source, of its slice, and that model's config."""
    layers: list[int] = []
    configs: list[Mapping[str, Any]] = []
    for part in recipe.slices:
        base = part.base_model or recipe.base_model
        source = next((source for source in part.sources if source.model == base), part.sources[0])
        chosen = range(*(source.layer_range or (0, 0)))
        layers += chosen
        configs += [checkpoints[source.model].config or {}] * len(chosen)
    return layers, configs


def _missing_layers(recipe: Recipe, indexes: Indexes) -> Iterator[Problem]:
    for number, part in enumerate(recipe.slices):
        for place, source in enumerate(part.sources):
            start, stop = source.layer_range or (0, 0)
            layers = indexes[source.model].architecture.layers
            if stop > layers:
                has = f"has {layers} layers" if layers else "has no numbered layers"
                yield Problem(
                    f"{source.model} {has}; layer_range [{start}, {stop}] goes beyond them.",
                    f"slices[{number}].sources[{place}].layer_range",
                    f"The last number is one past the last layer, {layers} at most." if layers else "",
                )


def _vocabularies(recipe: Recipe, indexes: Indexes) -> Iterator[Problem]:
    """Embedding and head come from different slices and must have rows for the same tokens."""
    sizes = {source.model: _rows(indexes[source.model]) for source in _ends(recipe)}
    known = [(model, rows) for model, rows in sizes.items() if rows is not None]
    for other, rows in known[1:]:
        first, expected = known[0]
        if rows != expected:
            message = f"{other} has {rows} vocabulary rows, {first} has {expected}"
            yield Problem(f"{message}; embedding and output head must fit each other.", "slices", KEEP_VOCABULARY)


def _ends(recipe: Recipe) -> Sequence[ModelEntry]:
    """The sources of embedding and head."""
    return (*recipe.slices[0].sources, *recipe.slices[-1].sources)


def _rows(index: ModelIndex) -> int | None:
    name = embedding_name(index.specs)
    return index.specs[name].shape[0] if name and index.specs[name].shape else None


def _shared_embedding(recipe: Recipe, indexes: Indexes) -> Iterator[Problem]:
    """Where all models tie their head, the embedding of the first slice is also the head."""
    first, last = ({source.model for source in part.sources} for part in (recipe.slices[0], recipe.slices[-1]))
    has_head = any(is_head(name) for index in indexes.values() for name in index.outside)
    if first != last and not has_head and says_tied(indexes[recipe.primary].config):
        message = "all models tie their output head to the embedding; that of the first slice serves as both."
        yield Problem(message, "slices", level="note")


def _broken_patterns(recipe: Recipe, indexes: Indexes) -> Iterator[Problem]:
    config = indexes[recipe.primary].config
    for key in broken_patterns(config, *layer_origins(recipe, indexes)) if config else ():
        yield Problem(
            f"'{key}' in config.json tells kinds of layers apart by their place, which these slices change.",
            "slices",
            "Check that the written config.json describes the layers, or choose slices that keep the pattern.",
            "warning",
        )
