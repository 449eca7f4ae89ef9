"""One weight's name: where its layer index stands, and what is left without it."""

from __future__ import annotations

import re

STACK_WORD = re.compile(r"(?:^|_)(?:layers?|h|blk|(?:res)?blocks?|stages?|groups?|features)[0-9]*$")
"""What comes before a layer index: ``model.layers.0``, ``transformer.h.0``, ``encoder.block.0``, ``layer1.0``."""

INDEX = re.compile(r"[0-9]{1,9}")


def is_index(part: str) -> bool:
    """Whether one part of a name counts something."""
    return INDEX.fullmatch(part) is not None


def layer_place(parts: list[str]) -> int | None:
    """Which part of a name is the layer index: the first number after a word that means a stack of layers."""
    for place in range(1, len(parts)):
        if is_index(parts[place]) and STACK_WORD.search(parts[place - 1]):
            return place
    return None


def first_index(parts: list[str]) -> int | None:
    """The first number that does not count experts; the layer index of models that use none of the usual words."""
    places = (place for place, part in enumerate(parts) if is_index(part))
    return next((place for place in places if not place or not _counts_experts(parts[place - 1])), None)


def layer_of(name: str) -> int | None:
    """The layer that a weight with one of the usual names belongs to, None outside of layers."""
    parts = name.split(".")
    place = layer_place(parts)
    return None if place is None else int(parts[place])


def role_inside(parts: list[str], place: int) -> str:
    """What a weight does in its layer: the rest of its name without ``weight`` and without expert numbers."""
    rest = parts[place + 1 :]
    kept = [
        part for index, part in enumerate(rest) if not (is_index(part) and index and _counts_experts(rest[index - 1]))
    ]
    if len(kept) < 2:
        kept = [parts[place - 1] if place else "layer", *kept]
    return without_ending(kept)


def without_ending(parts: list[str]) -> str:
    """A name without a final ``weight``; other endings tell weights apart and stay."""
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "weight" else parts)


def _counts_experts(word: str) -> bool:
    return "expert" in word
