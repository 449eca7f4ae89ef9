"""A configuration that follows when layers are taken from several models and put in another order."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from merger.architecture.config import LAYER_KEYS, NESTED_PARTS, configured_layers, language_part

NOT_PER_LAYER = ("architectures", "pruned_heads")
FIRST_LAYERS = ("max_window_layers", "first_k_dense_replace")
"""Counts of the layers at the beginning that are of another kind than those behind them."""

INTERVALS = (
    *("attn_layer_period", "expert_layer_period", "decoder_sparse_step", "interleave_moe_layer_step"),
    *("global_attn_every_n_layers", "no_rope_layer_interval", "full_attention_interval"),
    *("sliding_window_pattern", "_sliding_window_pattern"),
)
"""Every how many layers one is of another kind."""

WINDOW_KEYS = ("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval")
"""Keys that ``layer_types`` overrules."""

INDEX_LISTS = ("_layers", "_layer_ids", "_layer_indices", "_layer_idxs", "_attn_idxs")
"""How keys end whose lists hold indices of layers."""

FLAG_LISTS = ("no_rope_layers",)
"""Keys that end so, too, and hold one flag per layer."""


def config_for_layers(
    config: Mapping[str, Any],
    layers: Sequence[int],
    sources: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The configuration of a model that is put together from layers of others.

    Args:
        config: of the model that gives everything else.
        layers: for each output layer its index in the model it comes from.
        sources: for each output layer the configuration it comes from; ``config`` when left out.

    Returns:
        A copy in which the number of layers, lists with one value per layer, lists of layers and
        counts of first layers are put right.
    """
    result = copy.deepcopy(dict(config))
    old = configured_layers(config)
    origins = [language_part(source) for source in sources] if sources else [language_part(config)] * len(layers)
    places = list(zip(layers, origins, strict=True))
    for part in _counting_parts(result, old):
        for key, value in part.items():
            part[key] = _following(key, value, old, places)
    return result


def broken_patterns(
    config: Mapping[str, Any], layers: Sequence[int], sources: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Keys that tell kinds of layers apart by a rule which the new order of layers does not follow.

    Args:
        config: of the model that gives everything else.
        layers: for each output layer its index in the model it comes from.
        sources: for each output layer the configuration it comes from.
    """
    part = language_part(config)
    places = [(layer, language_part(source)) for layer, source in zip(layers, sources, strict=True)]
    overruled = set(WINDOW_KEYS) if "layer_types" in part or not part.get("use_sliding_window", True) else set()
    keys = [key for key in (*FIRST_LAYERS, *INTERVALS) if _is_count(part.get(key)) and key not in overruled]
    return [key for key in keys if _is_broken(key, part[key], places)]


Places = Sequence[tuple[int, Mapping[str, Any]]]
"""For each output layer its index in the model it comes from, and that model's configuration."""


def _counting_parts(config: dict[str, Any], layers: int | None) -> Iterator[dict[str, Any]]:
    """The configuration and the parts of it that describe the language model, where they count its layers."""
    if any(key in config and config[key] == layers for key in LAYER_KEYS):
        yield config
    for name in NESTED_PARTS:
        if isinstance(config.get(name), dict):
            yield from _counting_parts(config[name], layers)


def _following(key: str, value: Any, old: int | None, places: Places) -> Any:
    """What a key says once the layers stand in their new places."""
    if key in LAYER_KEYS and value == old:
        return len(places)
    if key in FIRST_LAYERS and _is_count(value):
        return sum(1 for _ in takewhile(lambda place: place[0] < _count(place[1], key, value), places))
    if _is_index_list(key, value, old):
        return [new for new, (layer, origin) in enumerate(places) if layer in origin.get(key, value)]
    if _is_per_layer(key, value, old):
        return [_picked(value, origin.get(key), layer) for layer, origin in places]
    if isinstance(value, str) and key.endswith("_pattern") and len(value) == old:
        return "".join(_picked(value, origin.get(key), layer) for layer, origin in places)
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _count(origin: Mapping[str, Any], key: str, own: int) -> int:
    value = origin.get(key)
    return value if type(value) is int else own


def _is_index_list(key: str, value: object, layers: int | None) -> bool:
    if layers is None or not isinstance(value, list) or key in FLAG_LISTS or not key.endswith(INDEX_LISTS):
        return False
    whole = all(type(item) is int and 0 <= item < layers for item in value)
    return whole and all(left < right for left, right in pairwise(value))


def _is_per_layer(key: str, value: object, layers: int | None) -> bool:
    if key in NOT_PER_LAYER or key.endswith(("_token_id", "_token_ids")):
        return False
    return isinstance(value, list) and len(value) == layers


def _picked(own: Any, others: Any, layer: int) -> Any:
    """The value of one layer from the model that the layer comes from, where that model says it."""
    if isinstance(others, type(own)) and layer < len(others):
        return others[layer]
    return own[layer % len(own)]


def _is_broken(key: str, own: int, places: Places) -> bool:
    counts = [_count(origin, key, own) for _, origin in places]
    if key in FIRST_LAYERS:
        late = [layer >= count for (layer, _), count in zip(places, counts, strict=True)]
        return late != sorted(late)
    return any(
        count != own or layer % own != new % own
        for new, ((layer, _), count) in enumerate(zip(places, counts, strict=True))
    )
