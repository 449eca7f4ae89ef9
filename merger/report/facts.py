"""What one model is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from merger.architecture import (
    Architecture,
    configured_layers,
    embedding_name,
    hidden_size,
    is_head,
    model_kind,
    says_tied,
    vocabulary_size,
)
from merger.card import licence_of
from merger.checkpoints.base import Checkpoint
from merger.errors import CheckpointError
from merger.types import DTYPES

CLASSES_WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")


@dataclass(frozen=True)
class ModelFacts:
    """What headers and configuration say of one model.

    Attributes:
        name: what people call it.
        reference: how it was named.
        architecture: class or type from the configuration, or None.
        layers: number of layers, 0 when nothing is numbered.
        parameters: elements of all floating-point tensors.
        dtype: dtype of most elements, by its recipe name.
        bytes: size of all tensors.
        vocab_size: rows of the input embedding, or what the configuration says, or None.
        tied: whether the output head is the input embedding; None for a model without a head.
        licence: title of the licence, or None.
        tensors: how many there are.
        hidden_size: width, or None.
    """

    name: str
    reference: str
    architecture: str | None
    layers: int
    parameters: int
    dtype: str
    bytes: int
    vocab_size: int | None
    tied: bool | None
    licence: str | None
    tensors: int
    hidden_size: int | None


def facts_of(checkpoint: Checkpoint) -> ModelFacts:
    """Read the facts of an opened model."""
    config = checkpoint.config
    embedding = embedding_name(checkpoint.tensors)
    rows = checkpoint.tensors[embedding].shape if embedding else ()
    return ModelFacts(
        name=checkpoint.reference.short_name,
        reference=str(checkpoint.reference),
        architecture=model_kind(config),
        layers=Architecture.of(checkpoint.tensors).layers or configured_layers(config) or 0,
        parameters=sum(spec.numel for spec in checkpoint.tensors.values() if spec.is_float),
        dtype=_main_dtype(checkpoint),
        bytes=checkpoint.weight_bytes,
        vocab_size=rows[0] if rows else vocabulary_size(config),
        tied=_tied(checkpoint) if embedding else None,
        licence=licence_of(checkpoint),
        tensors=len(checkpoint.tensors),
        hidden_size=hidden_size(config),
    )


def _tied(checkpoint: Checkpoint) -> bool | None:
    """Whether the head is the embedding; None for a model that has no head at all."""
    if any(map(is_head, checkpoint.tensors)):
        return False
    kind = model_kind(checkpoint.config) or ""
    return True if says_tied(checkpoint.config) or kind.endswith(CLASSES_WITH_HEAD) else None


def _main_dtype(checkpoint: Checkpoint) -> str:
    elements: Counter[str] = Counter()
    for spec in checkpoint.tensors.values():
        elements[spec.dtype] += spec.numel
    return DTYPES[elements.most_common(1)[0][0]].name if elements else ""


def read_json_file(checkpoint: Checkpoint, name: str) -> object:
    """The content of a JSON side file, None when it is missing or damaged."""
    try:
        return json.loads(checkpoint.files[name].read()) if name in checkpoint.files else None
    except (ValueError, RecursionError, CheckpointError):
        return None
