"""Names of models that mean the same on every machine: Hub id and commit, or a folder's own name.

A local folder is written as ``./name``, so that it can never be taken for a Hub id; where two
folders end alike, as many parents as tell them apart are kept (``./first/model``).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from merger.checkpoints.base import Checkpoint
from merger.errors import printable
from merger.recipe import Recipe, TokenizerRule
from merger.types import ImmutableMap, ModelReference

SEPARATORS = re.compile("|".join(re.escape(separator) for separator in (os.sep, os.altsep) if separator))
"""What parts a path on this system; on Linux a folder's name may hold a backslash."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_local(reference: ModelReference) -> bool:
    """Whether a reference names something on this machine rather than on the Hub."""
    path = reference.path
    return os.path.exists(os.path.expanduser(path)) or not re.fullmatch(HUB_ID, path)


def hub_id(reference: ModelReference) -> str | None:
    """``owner/name`` when the reference names a repository on the Hub."""
    return None if is_local(reference) else reference.path


def portable_names(references: Mapping[ModelReference, Checkpoint]) -> dict[ModelReference, ModelReference]:
    """What each model is called in anything that is written; results of a series keep their names."""
    places = {
        reference: os.path.abspath(os.path.expanduser(reference.path))
        for reference, checkpoint in references.items()
        if is_local(reference) and not checkpoint.documents
    }
    names = {place: f"./{name}" for place, name in _shortest_endings(set(places.values())).items()}
    return {
        reference: replace(reference, path=names[places[reference]])
        if reference in places
        else _name(checkpoint, reference)
        for reference, checkpoint in references.items()
    }


def _name(checkpoint: Checkpoint, reference: ModelReference) -> ModelReference:
    return reference if checkpoint.documents else checkpoint.reference


def _without_place(reference: ModelReference) -> ModelReference:
    """A model that is named but not merged, such as the source of a tokenizer."""
    return (
        replace(reference, path=f"./{os.path.basename(os.path.normpath(reference.path))}")
        if is_local(reference)
        else reference
    )


def _shortest_endings(places: set[str]) -> dict[str, str]:
    """The fewest last parts of each path that no other path ends in."""
    parts = {place: [part for part in SEPARATORS.split(place) if part] or ["root"] for place in places}
    depth = dict.fromkeys(places, 1)
    while True:
        endings = {place: "/".join(parts[place][-depth[place] :]) for place in places}
        shared = {ending for ending, count in Counter(endings.values()).items() if count > 1}
        longer = [place for place in places if endings[place] in shared and depth[place] < len(parts[place])]
        if not longer:
            return endings
        for place in longer:
            depth[place] += 1


def rename_models(recipe: Recipe, rename: Callable[[ModelReference], ModelReference]) -> Recipe:
    """The same recipe with every model called by another name."""
    slices = tuple(
        replace(
            part,
            sources=tuple(replace(entry, model=rename(entry.model)) for entry in part.sources),
            base_model=rename(part.base_model) if part.base_model else None,
        )
        for part in recipe.slices
    )
    return recipe.replace(
        models=tuple(replace(entry, model=rename(entry.model)) for entry in recipe.models),
        slices=slices,
        base_model=rename(recipe.base_model) if recipe.base_model else None,
        tokenizer_source=_renamed(recipe.tokenizer_source, rename),
        tokenizer=recipe.tokenizer and _renamed_rule(recipe.tokenizer, rename),
    )


T = TypeVar("T")


def _renamed(source: T | ModelReference, rename: Callable[[ModelReference], ModelReference]) -> T | ModelReference:
    return rename(source) if isinstance(source, ModelReference) else source


def _renamed_rule(rule: TokenizerRule, rename: Callable[[ModelReference], ModelReference]) -> TokenizerRule:
    tokens = {token: replace(part, source=_renamed(part.source, rename)) for token, part in rule.tokens.items()}
    return replace(rule, source=_renamed(rule.source, rename), tokens=ImmutableMap(tokens))


def portable_recipe(recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]) -> str:
    """The recipe as YAML that names no place of this machine, with the digests of its models.

    The same merge gives the same text wherever its models lie.  Recipes that made some of the models in the
    same series come first, as documents of their own.
    """
    return "---\n".join(portable_documents(recipe, checkpoints))


def portable_documents(recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]) -> tuple[str, ...]:
    """The documents of `portable_recipe`, this recipe's own last."""
    earlier = dict.fromkeys(document for checkpoint in checkpoints.values() for document in checkpoint.documents)
    names = portable_names(checkpoints)
    body = rename_models(recipe, lambda reference: names.get(reference) or _without_place(reference)).to_yaml()
    lines = ["# Models, each with the SHA-256 of its tensor headers:"]
    digests = {str(names[reference]): checkpoint.digest for reference, checkpoint in checkpoints.items()}
    lines += [f"#   {printable(name)}  {digest}" for name, digest in sorted(digests.items())]
    return (*earlier, "\n".join(lines) + "\n" + body)
