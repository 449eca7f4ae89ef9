"""What a recipe says of tokens, where carrying it out would mean to move rows of the embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from merger.architecture import is_embedding, is_head
from merger.checkpoints.base import Checkpoint
from merger.errors import Problem
from merger.recipe import Recipe
from merger.tokenizer import can_compare, same_tokenizer
from merger.types import ModelReference

Checkpoints = Mapping[ModelReference, Checkpoint]

ONE_VOCABULARY = "Choose models with one vocabulary."
MATCHING_LATER = f"Matching them by token cannot be done yet. {ONE_VOCABULARY}"


def vocabulary_problems(recipe: Recipe, checkpoints: Checkpoints) -> Iterator[Problem]:
    """Why rows would have to be matched, added or padded; nothing where the models agree anyway."""
    rule = recipe.tokenizer
    source = rule.source if rule else recipe.tokenizer_source
    key = "tokenizer" if rule else "tokenizer_source"
    if rule and rule.tokens:
        hint = "Leave out 'tokens'."
        yield Problem("rules for single tokens cannot be carried out yet", "tokenizer.tokens", hint)
    if rule and rule.pad_to_multiple_of:
        yield from _padding(rule.pad_to_multiple_of, checkpoints[recipe.primary])
    if isinstance(source, ModelReference) and source not in checkpoints:
        message = f"{source} is not among the merged models, and taking its vocabulary cannot be done yet"
        yield Problem(message, key, f"Name one of the models, or leave it out to keep that of {recipe.primary}.")
    yield from _differences(recipe, checkpoints, None if source is None else key)
    if recipe.chat_template not in (None, "auto"):
        message = f"chat_template is not carried out yet; that of {recipe.primary} is kept"
        yield Problem(message, "chat_template", level="warning")


def _padding(multiple: int, primary: Checkpoint) -> Iterator[Problem]:
    """Embeddings whose rows are not a multiple already."""
    rows = {
        spec.shape[0]
        for name, spec in primary.tensors.items()
        if spec.shape and (is_embedding(name) or is_head(name)) and spec.shape[0] % multiple
    }
    if rows:
        message = f"{min(rows)} vocabulary rows are no multiple of {multiple}, and adding rows cannot be done yet"
        yield Problem(message, "tokenizer.pad_to_multiple_of", "Leave it out.")


def _differences(recipe: Recipe, checkpoints: Checkpoints, key: str | None) -> Iterator[Problem]:
    """Models whose tokens are not those of the first; an error where the recipe wants them matched."""
    first = recipe.primary
    files = checkpoints[first].files
    for model, checkpoint in checkpoints.items():
        if model == first or not can_compare(files, checkpoint.files) or same_tokenizer(files, checkpoint.files):
            continue
        if key is not None:
            message = f"the vocabularies of {first} and {model} differ, and matching them by token cannot be done yet"
            yield Problem(message, key, ONE_VOCABULARY)
        else:
            message = f"the tokenizers of {first} and {model} differ: merged rows may belong to different tokens"
            yield Problem(message, "tokenizer", ONE_VOCABULARY, "warning")
