"""All names of a model together: its stacks of layers, and what each weight is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from merger.architecture.heads import embedding_name, is_embedding, is_head
from merger.architecture.names import first_index, layer_place, role_inside, without_ending
from merger.types import WeightInfo

BUFFERS = frozenset({"position_ids", "token_type_ids", "inv_freq", "masked_bias"})
"""Last parts of names of values that every implementation computes itself."""


@dataclass(frozen=True)
class Stack:
    """Layers that are numbered together.

    Attributes:
        prefix: what stands before the layer index, such as ``model.layers``.
        layers: one more than the greatest index.
        tensors: how many weights belong to it.
        label: what tells its roles from those of the main stack; empty for the main stack.
    """

    prefix: str
    layers: int
    tensors: int
    label: str = ""


@dataclass(frozen=True)
class Architecture:
    """What the names of one model's weights say.

    Attributes:
        stacks: the stacks of layers, the one with most weights first; a text model with a vision
            tower has two, an encoder-decoder too.
        embedding: name of the input embedding, or None.
    """

    stacks: tuple[Stack, ...]
    embedding: str | None
    _place: Callable[[list[str]], int | None]

    @classmethod
    def of(cls, names: Iterable[str]) -> Architecture:
        """Read the names of all weights of a model."""
        return _read(names if isinstance(names, frozenset) else frozenset(names))

    @property
    def layers(self) -> int:
        """Layers of the main stack; 0 when nothing is numbered."""
        return self.stacks[0].layers if self.stacks else 0

    def layer_of(self, name: str) -> int | None:
        """The layer that a weight belongs to, None outside of layers."""
        parts = name.split(".")
        place = self._place(parts)
        return None if place is None else int(parts[place])

    def stack_of(self, name: str) -> Stack | None:
        """The stack that a weight belongs to, None outside of layers."""
        parts = name.split(".")
        place = self._place(parts)
        prefix = None if place is None else ".".join(parts[:place])
        return next((stack for stack in self.stacks if stack.prefix == prefix), None)

    def rename_layer(self, name: str, layer: int) -> str:
        """The name of the same weight in another layer; names outside of layers stay as they are."""
        parts = name.split(".")
        place = self._place(parts)
        if place is not None:
            parts[place] = str(layer)
        return ".".join(parts)

    def weight_info(self, name: str, shape: tuple[int, ...] | None = None) -> WeightInfo:
        """What one weight is."""
        parts = name.split(".")
        place = self._place(parts)
        is_output = is_head(name)
        return WeightInfo(
            name=name,
            is_embed=place is None and (is_output or is_embedding(name)) and (shape is None or len(shape) <= 2),
            optional=is_output or _is_buffer(parts, shape),
            aliases=(self.embedding,) if is_output and self.embedding and parts[-1] == "weight" else (),
            layer=None if place is None else int(parts[place]),
            role=without_ending(parts) if place is None else self._role(parts, place),
        )

    def _role(self, parts: list[str], place: int) -> str:
        role = role_inside(parts, place)
        prefix = ".".join(parts[:place])
        label = next((stack.label for stack in self.stacks if stack.prefix == prefix), "")
        return f"{label}.{role}" if label else role


@lru_cache(maxsize=32)
def _read(names: frozenset[str]) -> Architecture:
    split = [name.split(".") for name in names]
    place_of = layer_place if any(layer_place(parts) is not None for parts in split) else first_index
    tensors: Counter[str] = Counter()
    layers: dict[str, int] = {}
    for parts in split:
        place = place_of(parts)
        if place is not None:
            prefix = ".".join(parts[:place])
            tensors[prefix] += 1
            layers[prefix] = max(layers.get(prefix, 0), int(parts[place]) + 1)
    order = sorted(tensors, key=lambda prefix: (-tensors[prefix], prefix))
    labels = _labels(order)
    stacks = tuple(Stack(prefix, layers[prefix], tensors[prefix], labels[prefix]) for prefix in order)
    return Architecture(stacks, embedding_name(names), place_of)


def _labels(prefixes: list[str]) -> dict[str, str]:
    """For each stack but the first: the first part of its prefix that the first stack does not share."""
    if not prefixes:
        return {}
    main, *others = (prefix.split(".") for prefix in prefixes)
    rests = []
    for parts in others:
        shared = next((i for i, (mine, its) in enumerate(zip(main, parts, strict=False)) if mine != its), len(main))
        rests.append(parts[shared:] or parts)
    firsts = Counter(rest[0] for rest in rests)
    labels = [rest[0] if firsts[rest[0]] == 1 else ".".join(rest) for rest in rests]
    return dict(zip(prefixes, ["", *labels], strict=True))


def _is_buffer(parts: list[str], shape: tuple[int, ...] | None) -> bool:
    is_causal_mask = parts[-2:] == ["attn", "bias"] and shape is not None and len(shape) == 4
    return parts[-1] in BUFFERS or is_causal_mask
