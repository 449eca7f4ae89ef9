"""The names that a recipe may use, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from merger.errors import did_you_mean, nearest
from merger.types import Vocabulary

Place = Literal[
    "recipe",
    "model entry",
    "slice",
    "source",
    "module",
    "reference",
    "tokenizer",
    "token",
    "token source",
    "filter",
]

KEYS: Mapping[Place, tuple[str, ...]] = {
    "recipe": (
        "merge_method",
        "models",
        "slices",
        "modules",
        "base_model",
        "parameters",
        "dtype",
        "out_dtype",
        "tokenizer_source",
        "tokenizer",
        "chat_template",
        "seed",
        "name",
    ),
    "model entry": ("model", "parameters", "revision"),
    "slice": ("sources", "base_model", "parameters"),
    "source": ("model", "layer_range", "parameters", "revision"),
    "module": ("models", "slices", "parameters"),
    "reference": ("path", "revision", "model", "lora", "override_architecture"),
    "tokenizer": ("source", "tokens", "pad_to_multiple_of"),
    "token": ("source", "force"),
    "token source": ("kind", "model", "token", "token_id"),
    "filter": ("filter", "value"),
}

HOMES: Mapping[Place, str] = {
    "recipe": "at the top of the recipe",
    "model entry": "in an entry of `models`",
    "slice": "in an entry of `slices`",
    "source": "in a source of a slice",
    "module": "in a module",
    "reference": "in a mapping under `model`",
    "tokenizer": "under `tokenizer`",
    "token": "in an entry of `tokenizer: tokens`",
    "token source": "under the `source` of a token",
    "filter": "in a line of a parameter",
}

FIELD_PARAMETERS = (
    *("weight", "density", "lambda", "epsilon", "gamma", "t", "scale", "normalize", "rescale", "int8_mask"),
    *(
        "select_topk",
        "filter_wise",
        "nuslerp_flatten",
        "nuslerp_row_wise",
        "normalize_weights",
        "eps",
        "max_iter",
        "tol",
    ),
)
"""Parameters of published recipes: known names even where no installed method has them."""


def known_parameters(vocabulary: Vocabulary | None) -> set[str]:
    """Every parameter name that some method understands."""
    methods = vocabulary.methods.values() if vocabulary else ()
    return set(FIELD_PARAMETERS).union(*(common | per_model for common, per_model in methods))


def home_of(name: str, parameters: Iterable[str]) -> str | None:
    """Where a known name belongs, in words; None for a name that nobody knows."""
    if name in parameters:
        return "under `parameters`"
    return next((HOMES[place] for place, keys in KEYS.items() if name in keys), None)


def key_hint(name: str, place: Place, parameters: Iterable[str]) -> str:
    """What an unknown key probably means: first among the keys of its place, then among all names."""
    close = nearest(name, KEYS[place])
    if close is not None:
        return f"Did you mean '{close}'?"
    everything = {*parameters, *(key for keys in KEYS.values() for key in keys)}
    close = nearest(name, everything)
    if close is not None:
        return f"Did you mean '{close}', {home_of(close, parameters)}?"
    return did_you_mean(name, KEYS[place])


def method_users(name: str, vocabulary: Vocabulary) -> str:
    """A sentence naming the methods that use a parameter, or nothing."""
    users = sorted(method for method, (common, own) in vocabulary.methods.items() if name in common | own)
    return f"It is for {', '.join(users)}." if users else ""
