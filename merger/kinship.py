"""Whether models are relatives at all, and how their names were brought together: said alike by report and plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from merger.architecture import hidden_size, is_embedding, is_head, model_kind
from merger.errors import Problem
from merger.matching import SAME_FAMILY, ModelIndex
from merger.types import ModelReference, TensorSpec

SHOWN = 3
"""How many tensors a sentence names."""


@dataclass(frozen=True)
class Kin:
    """What is compared of one model.

    Attributes:
        name: what it is called in sentences.
        specs: its tensors, under names that both models use.
        config: its ``config.json``.
    """

    name: str
    specs: Mapping[str, TensorSpec]
    config: Mapping[str, Any] | None


def stranger_problem(first: Kin, second: Kin) -> Problem | None:
    """One sentence for models that cannot be merged whatever their single tensors are.

    Strangers share less than half of the names of the smaller one, or differ in width.
    """
    a, b = first.name, second.name
    common = [name for name in second.specs if name in first.specs]
    widths = hidden_size(first.config), hidden_size(second.config)
    differ = any(first.specs[name].shape != second.specs[name].shape for name in common) or not common
    if differ and None not in widths and widths[0] != widths[1]:
        message = f"{b} is {widths[1]} wide, {a} is {widths[0]} wide (hidden size): they cannot be merged."
        return Problem(message, hint=SAME_FAMILY)
    if common and len(common) * 2 >= min(len(first.specs), len(second.specs)):
        return None
    kinds = model_kind(first.config), model_kind(second.config)
    if None not in kinds and kinds[0] != kinds[1]:
        message = f"{b} is a {kinds[1]}, {a} is a {kinds[0]}: models of different architecture cannot be merged."
    else:
        message = f"{b} and {a} have only {len(common)} tensor names in common: they are different architectures."
    return Problem(message, hint=SAME_FAMILY)


def kinship_problems(indexes: Mapping[ModelReference, ModelIndex]) -> Iterator[Problem]:
    """Strangers among the models of a recipe, the first of which is compared with the others."""
    first, *others = [Kin(str(model), index.specs, index.config) for model, index in indexes.items()]
    if not any(kin.specs for kin in (first, *others)):
        yield Problem("the models hold no tensors", "models", "Choose models with weights in their files.")
        return
    for other in others:
        problem = stranger_problem(first, other)
        if problem is not None:
            yield Problem(problem.message, "models", problem.hint)


def naming_notes(indexes: Mapping[ModelReference, ModelIndex]) -> Iterator[Problem]:
    """Prefixes that were looked past, and weights that stand in for others that are tied to them."""
    first, *_ = indexes
    for model, index in indexes.items():
        if index.rename is not None:
            yield prefix_note(str(first), str(model), (index.rename.strip, index.rename.add))
    every = dict.fromkeys(name for index in indexes.values() for name in index.specs)
    names = [name for name in every if is_head(name) or is_embedding(name)]
    for model, index in indexes.items():
        tied = [name for name in names if name not in index.specs and index.find(name) is not None]
        owners = [other for other, theirs in indexes.items() if any(name in theirs.specs for name in tied)]
        if tied:
            yield tied_note(str(model), tied, " and ".join(map(str, owners)))


def prefix_note(first: str, second: str, difference: tuple[str, str]) -> Problem:
    """That names were matched without a prefix, from what is taken from and added to those of ``second``."""
    strip, add = difference
    if strip and add:
        message = f"{second} begins its tensor names with '{strip}' where {first} has '{add}'; they are matched so."
    else:
        where, prefix = (second, strip) if strip else (first, add)
        message = f"Only {where} begins its tensor names with '{prefix}'; they are matched without it."
    return Problem(message, level="note")


def tied_note(model: str, names: Sequence[str], owner: str) -> Problem:
    """That a model's own weight stands in for one that it ties."""
    message = f"{model} ties {listed(names)} to another weight, {owner} stores it; the tied weight stands in."
    return Problem(message, level="note")


def listed(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    return ", ".join(names[:SHOWN]) + more(names)


def more(names: Sequence[str]) -> str:
    """How many names a sentence leaves out, as its ending."""
    return f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
