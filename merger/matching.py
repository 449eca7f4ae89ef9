"""Which tensor of which model feeds which output tensor: names, layers, ties and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from merger.architecture import Architecture, is_head, prefix_between, tied_source
from merger.checkpoints.base import Checkpoint
from merger.recipe import ModelEntry, Recipe, Setting, Slice
from merger.settings import relative_depth
from merger.types import ModelReference, TensorSpec

FINAL_WORDS = ("lm_head", "head", "norm", "ln_f", "pooler", "classifier", "score", "embed_out", "output", "predictions")

KEEP_VOCABULARY = (
    "Say in the recipe whose tokens to keep: tokenizer: {source: base}, {source: union} or {source: <model>}."
)
SAME_FAMILY = "Choose models that were fine-tuned from one base."

Entries = list[tuple[ModelEntry, ModelReference, int | None]]
"""Recipe lines with a reference that is unique among them and the position for the noise."""


@dataclass(frozen=True, slots=True)
class Source:
    """One model's part in one output tensor.

    Attributes:
        entry: the recipe's line for the model, None for a base that is not listed.
        model: its reference, unique among the sources of the tensor.
        position: its place among the recipe's non-base models, None for the base.
        spec: its tensor, None when the model lacks it.
        slot: its place among the recipe's lines, -1 for a base that is not listed.
    """

    entry: ModelEntry | None
    model: ModelReference
    position: int | None
    spec: TensorSpec | None
    slot: int = -1

    @property
    def owner(self) -> ModelReference:
        """The model as the recipe names it, which may stand there several times."""
        return self.entry.model if self.entry else self.model

    def filter_name(self, output: str) -> str:
        """What filters of the model's own parameters look at: its tensor's name, the output's for a tied weight."""
        if self.spec is None or is_head(output) != is_head(self.spec.name):
            return output
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Match:
    """One output tensor and what could feed it.

    Attributes:
        name: its output name.
        base: the base's part, when the recipe has a base.
        sources: the listed models' parts, in the recipe's order, the base left out when it is listed.
        relative_depth: place of its layer in [0, 1] inside its slice; 0 outside of layers.
        slice_parameters: settings of the slice it comes from.
    """

    name: str
    base: Source | None
    sources: tuple[Source, ...]
    relative_depth: float
    slice_parameters: Mapping[str, Setting] = field(default_factory=dict)


class ModelIndex:
    """One checkpoint's tensors under the names of the primary model, its main stack sorted into layers.

    Args:
        checkpoint: the model.
        primary: the model whose names the output uses.
    """

    def __init__(self, checkpoint: Checkpoint, primary: Checkpoint) -> None:
        rename = prefix_between(primary.tensors, checkpoint.tensors) if checkpoint is not primary else None
        self.rename = rename
        self.config = checkpoint.config
        self.specs = {rename(name) if rename else name: spec for name, spec in checkpoint.tensors.items()}
        self.architecture = Architecture.of(frozenset(self.specs))

    @cached_property
    def layers(self) -> dict[int | None, list[str]]:
        """Names by layer of the main stack; under None those outside of it."""
        names: dict[int | None, list[str]] = {}
        for name in self.specs:
            names.setdefault(self._main_layer(name), []).append(name)
        return names

    @property
    def outside(self) -> list[str]:
        """Names outside of the main stack."""
        return self.layers.get(None, [])

    @cached_property
    def final(self) -> frozenset[str]:
        """Names outside of all layers that belong behind the main stack: final norm, head, pooler."""
        towers = {stack.label.split(".")[0] for stack in self.architecture.stacks if stack.label}
        alone = [name for name in self.outside if towers.isdisjoint(name.split("."))]
        return frozenset(name for name in alone if self.architecture.stack_of(name) is None and is_final(name))

    def _main_layer(self, name: str) -> int | None:
        stack = self.architecture.stack_of(name)
        return self.architecture.layer_of(name) if stack is not None and not stack.label else None

    def find(self, name: str) -> TensorSpec | None:
        """The tensor of that name, or the one it is tied to in this model."""
        spec = self.specs.get(name)
        if spec is None:
            tied = tied_source(name, self.specs, self.config)
            spec = self.specs.get(tied) if tied else None
        return spec

    def depth(self, name: str) -> float:
        """Where a tensor's layer stands in its stack, as gradients count it."""
        stack = self.architecture.stack_of(name)
        return relative_depth(self.architecture.layer_of(name), stack.layers) if stack else 0.0


def index_models(recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]) -> dict[ModelReference, ModelIndex]:
    """Every model under the names of the primary one, which comes first."""
    primary = checkpoints[recipe.primary]
    order = dict.fromkeys([recipe.primary, *checkpoints])
    return {reference: ModelIndex(checkpoints[reference], primary) for reference in order}


def match_tensors(
    recipe: Recipe,
    checkpoints: Mapping[ModelReference, Checkpoint],
    indexes: Mapping[ModelReference, ModelIndex] | None = None,
) -> list[Match]:
    """Every output tensor of a recipe, in the order in which it will be written.

    Args:
        recipe: what to merge.
        checkpoints: its models.
        indexes: what `index_models` made of them, where that is known already.
    """
    indexes = indexes or index_models(recipe, checkpoints)
    return list(_match_slices(recipe, indexes) if recipe.slices else _match_models(recipe, indexes))


def _match_models(recipe: Recipe, indexes: Mapping[ModelReference, ModelIndex]) -> Iterator[Match]:
    entries = _numbered(recipe.models, recipe.base_model)
    base = recipe.base_model
    order = ([base] if base else []) + [entry.model for entry, _, _ in entries]
    homes: dict[str, ModelIndex] = {}
    for model in order:
        for name in indexes[model].specs:
            homes.setdefault(name, indexes[model])
    for name, home in homes.items():
        yield _match(name, entries, base, _finder(indexes, name), home.depth(name), {})


def _finder(
    indexes: Mapping[ModelReference, ModelIndex], name: str
) -> Callable[[ModelReference, int | None], TensorSpec | None]:
    return lambda model, _: indexes[model].find(name)


def _numbered(entries: Sequence[ModelEntry], base: ModelReference | None) -> Entries:
    """Entries with a unique reference and the position that the noise uses."""
    seen: dict[ModelReference, int] = {}
    numbered: Entries = []
    position = 0
    for entry in entries:
        occurrence = seen.get(entry.model, 0)
        seen[entry.model] = occurrence + 1
        is_base = entry.model == base
        reference = replace(entry.model, occurrence=occurrence) if occurrence else entry.model
        numbered.append((entry, reference, None if is_base else position))
        position += not is_base
    return numbered


def _match(
    output: str,
    entries: Entries,
    base: ModelReference | None,
    find: Callable[[ModelReference, int | None], TensorSpec | None],
    depth: float,
    parameters: Mapping[str, Setting],
) -> Match:
    """Collect one output tensor's sources; ``find`` gets a model and its slot among the entries, None for the base."""
    places = ((slot, entry) for slot, (entry, _, position) in enumerate(entries) if position is None)
    base_slot, listed_base = next(places, (-1, None))
    return Match(
        name=output,
        base=Source(listed_base, base, None, find(base, None), base_slot) if base else None,
        sources=tuple(
            Source(entry, reference, position, find(entry.model, slot), slot)
            for slot, (entry, reference, position) in enumerate(entries)
            if position is not None
        ),
        relative_depth=depth,
        slice_parameters=parameters,
    )


def _match_slices(recipe: Recipe, indexes: Mapping[ModelReference, ModelIndex]) -> Iterator[Match]:
    order = [model for model in recipe.all_models() if model != recipe.base_model]
    slices = [(part, _slice_entries(part, recipe, order)) for part in recipe.slices]
    first, last = slices[0], slices[-1]
    yield from _match_outside(first, recipe, indexes, final=False)
    offset = 0
    for part, entries in slices:
        length = _length(part, indexes)
        for step in range(length):
            yield from _match_layer(part, entries, recipe, indexes, step, length, offset + step)
        offset += length
    yield from _match_outside(last, recipe, indexes, final=True)


def _slice_entries(part: Slice, recipe: Recipe, order: Sequence[ModelReference]) -> Entries:
    base = _slice_base(part, recipe)
    numbered = _numbered(part.sources, base)
    return [
        (entry, reference, None if position is None else order.index(entry.model))
        for entry, reference, position in numbered
    ]


def _slice_base(part: Slice, recipe: Recipe) -> ModelReference | None:
    return part.base_model or recipe.base_model


def _range(entry: ModelEntry, indexes: Mapping[ModelReference, ModelIndex]) -> tuple[int, int]:
    return entry.layer_range or (0, indexes[entry.model].architecture.layers)


def _length(part: Slice, indexes: Mapping[ModelReference, ModelIndex]) -> int:
    start, stop = _range(part.sources[0], indexes)
    return stop - start


def _match_outside(
    chosen: tuple[Slice, Entries], recipe: Recipe, indexes: Mapping[ModelReference, ModelIndex], *, final: bool
) -> Iterator[Match]:
    part, entries = chosen
    base = _slice_base(part, recipe)
    models = ([base] if base else []) + [entry.model for entry, _, _ in entries]
    last = frozenset(name for index in indexes.values() for name in index.final)
    names = dict.fromkeys(name for model in models for name in indexes[model].outside if (name in last) == final)
    if final:
        # The head of a model that ties it is written where another model's slice begins with an own embedding.
        names |= dict.fromkeys(name for index in indexes.values() for name in index.final if is_head(name))
    for name in names:
        yield _match(name, entries, base, _finder(indexes, name), 0.0, part.parameters)


def is_final(name: str) -> bool:
    """Whether the name of a tensor outside of all layers is that of a final norm, a head or a pooler."""
    return any(word in name for word in FINAL_WORDS) and "emb" not in name.replace("embed_out", "")


def _match_layer(
    part: Slice,
    entries: Entries,
    recipe: Recipe,
    indexes: Mapping[ModelReference, ModelIndex],
    step: int,
    length: int,
    layer: int,
) -> Iterator[Match]:
    """The tensors of output layer ``layer``, which is layer ``step`` of its slice."""
    base = _slice_base(part, recipe)
    starts: list[int] = [_range(entry, indexes)[0] for entry, _, _ in entries]
    listed = [start for (_, _, position), start in zip(entries, starts, strict=True) if position is None]
    base_layer = [*listed, *starts][0] + step

    def find(model: ModelReference, slot: int | None) -> TensorSpec | None:
        own = base_layer if slot is None else starts[slot] + step
        return indexes[model].find(indexes[model].architecture.rename_layer(name, own))

    layers = [(base, base_layer)] if base else []
    layers += [(entry.model, start + step) for (entry, _, _), start in zip(entries, starts, strict=True)]
    names = dict.fromkeys(
        indexes[model].architecture.rename_layer(name, layer)
        for model, own in layers
        for name in indexes[model].layers.get(own, ())
    )
    for name in names:
        yield _match(name, entries, base, find, relative_depth(step, length), part.parameters)
