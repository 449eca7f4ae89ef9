"""What a model's ``config.json`` says of its size, whatever the keys are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
NESTED_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: the configuration itself, or one nested in it."""
    if any(key in config for key in LAYER_KEYS):
        return config
    for name in NESTED_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return language_part(part)
    return config


def model_kind(config: Mapping[str, Any] | None) -> str | None:
    """The class that the model was saved as, else its type; None where the configuration is silent."""
    classes = (config or {}).get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        return classes[0]
    kind = (config or {}).get("model_type")
    return kind if isinstance(kind, str) else None


def configured_layers(config: Mapping[str, Any] | None) -> int | None:
    """Number of layers, or None where the configuration is silent."""
    return _whole_number(config, LAYER_KEYS)


def hidden_size(config: Mapping[str, Any] | None) -> int | None:
    """Width of the model, or None where the configuration is silent."""
    return _whole_number(config, HIDDEN_KEYS)


def vocabulary_size(config: Mapping[str, Any] | None) -> int | None:
    """Number of tokens, or None where the configuration is silent."""
    return _whole_number(config, ("vocab_size",))


def _whole_number(config: Mapping[str, Any] | None, keys: Sequence[str]) -> int | None:
    parts = (language_part(config or {}), config or {})
    values = (part.get(key) for part in parts for key in keys)
    return next((value for value in values if type(value) is int), None)
