"""From the names of weights to layers, roles, embeddings, ties and prefixes; works on any naming."""

from merger.architecture.config import (
    configured_layers,
    hidden_size,
    language_part,
    model_kind,
    vocabulary_size,
)
from merger.architecture.heads import embedding_name, is_embedding, is_head, says_tied, tied_source
from merger.architecture.layer_config import broken_patterns, config_for_layers
from merger.architecture.names import layer_of
from merger.architecture.prefixes import prefix_between, prefix_difference
from merger.architecture.stacks import Architecture, Stack

__all__ = [
    "Architecture",
    "Stack",
    "broken_patterns",
    "config_for_layers",
    "configured_layers",
    "embedding_name",
    "hidden_size",
    "is_embedding",
    "is_head",
    "language_part",
    "layer_of",
    "model_kind",
    "prefix_between",
    "prefix_difference",
    "says_tied",
    "tied_source",
    "vocabulary_size",
]
