"""Weights whose rows belong to tokens: input embeddings and output heads, and which of them are one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from merger.architecture.config import language_part
from merger.architecture.names import layer_of

EMBEDDINGS = frozenset(
    {
        "embed_tokens",
        "embed_tokens_per_layer",
        "wte",
        "word_embeddings",
        "word_embedding",
        "tok_embeddings",
        "token_embedding",
        "token_embeddings",
        "token_embd",
        "tokens_embed",
        "embed_in",
        "embedding",
        "embeddings",
    }
)
HEADS = frozenset({"lm_head", "embed_out", "output_layer", "vocab_projector"})
TOP_EMBEDDINGS = frozenset({"shared"})
"""Modules that hold token rows only where nothing stands before them."""

TOP_HEADS = frozenset({"output"})
ENDINGS = ("weight", "bias")


def is_embedding(name: str) -> bool:
    """Whether the name is that of an input embedding of tokens (positions and patches are none)."""
    *modules, ending = name.split(".")
    if ending != "weight" or not modules:
        return False
    return modules[-1] in EMBEDDINGS or (len(modules) == 1 and modules[0] in TOP_EMBEDDINGS)


def is_head(name: str) -> bool:
    """Whether the name is that of an output head: one row, or one bias, per token."""
    *modules, ending = name.split(".")
    if ending not in ENDINGS or not modules:
        return False
    if modules[-1] == "decoder":
        return modules[-2:-1] in (["predictions"], ["lm_head"])
    if modules[-1] == "predictions":
        return ending == "bias"
    return modules[-1] in HEADS or (len(modules) == 1 and modules[0] in TOP_HEADS)


def embedding_name(names: Collection[str]) -> str | None:
    """The input embedding of a model: the shortest name that is one."""
    found = [name for name in names if is_embedding(name) and layer_of(name) is None]
    return min(found, key=lambda name: (len(name), name), default=None)


def tied_source(name: str, names: Collection[str], config: Mapping[str, Any] | None) -> str | None:
    """The weight that stands in for one that a model lacks because both are the same.

    Args:
        name: an embedding or head that another model has.
        names: the weights of this model.
        config: its configuration; ``tie_word_embeddings: false`` means that nothing is tied.

    Returns:
        The input embedding for a missing head, the head for a missing embedding, or None.
    """
    if name in names or not name.endswith(".weight") or says_tied(config) is False:
        return None
    if is_head(name):
        return embedding_name(names)
    if not is_embedding(name):
        return None
    shared = [other for other in ("shared.weight",) if other in names]
    heads = sorted(other for other in names if is_head(other) and other.endswith(".weight"))
    return next(iter([*shared, *heads]), None)


def says_tied(config: Mapping[str, Any] | None) -> bool | None:
    """What ``tie_word_embeddings`` says; None where the configuration is silent."""
    for part in (config or {}, language_part(config or {})):
        value = part.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None
