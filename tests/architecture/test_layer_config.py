"""What configurations say of layers and sizes, and how they follow a change of layers."""

import pytest

from merger.architecture import (
    broken_patterns,
    config_for_layers,
    configured_layers,
    hidden_size,
    model_kind,
    vocabulary_size,
)


@pytest.mark.parametrize(
    ("config", "layers", "width", "tokens"),
    [
        ({"num_hidden_layers": 32, "hidden_size": 64, "vocab_size": 100}, 32, 64, 100),
        ({"n_layer": 12, "n_embd": 768}, 12, 768, None),
        ({"n_layers": 6, "dim": 8}, 6, 8, None),
        ({"text_config": {"num_hidden_layers": 4, "hidden_size": 2, "vocab_size": 3}, "hidden_size": 9}, 4, 2, 3),
        ({"thinker_config": {"text_config": {"num_layers": 5}}}, 5, None, None),
        ({"num_hidden_layers": "32"}, None, None, None),
        ({}, None, None, None),
        (None, None, None, None),
    ],
)
def test_sizes_are_found_under_their_many_names(config, layers, width, tokens) -> None:
    assert (configured_layers(config), hidden_size(config), vocabulary_size(config)) == (layers, width, tokens)


def test_the_kind_of_a_model_is_its_class_or_its_type() -> None:
    assert model_kind({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) == "LlamaForCausalLM"
    assert model_kind({"architectures": None, "model_type": "llama"}) == "llama"
    assert model_kind({}) is None


def test_layer_count_and_lists_follow_the_layers() -> None:
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "c", "d"],
        "eos_token_id": [1, 2, 3, 4],
        "architectures": ["w", "x", "y", "z"],
        "rope": {"factors": [1, 2, 3, 4]},
    }
    changed = config_for_layers(config, [0, 1, 1, 2, 3, 3])
    assert changed == {
        "num_hidden_layers": 6,
        "layer_types": ["a", "b", "b", "c", "d", "d"],
        "eos_token_id": [1, 2, 3, 4],
        "architectures": ["w", "x", "y", "z"],
        "rope": {"factors": [1, 2, 3, 4]},
    }
    assert config["num_hidden_layers"] == 4
    assert config_for_layers(config, [0, 1])["layer_types"] == ["a", "b"]


def test_values_come_from_the_model_that_the_layer_comes_from() -> None:
    one = {"num_hidden_layers": 2, "layer_types": ["a", "b"]}
    other = {"num_hidden_layers": 3, "layer_types": ["c", "d", "e"]}
    assert config_for_layers(one, [0, 2, 1], [one, other, other]) == {
        "num_hidden_layers": 3,
        "layer_types": ["a", "e", "d"],
    }


def test_a_multimodal_configuration_changes_in_its_language_part() -> None:
    config = {
        "text_config": {"num_hidden_layers": 2, "layer_types": ["a", "b"]},
        "vision_config": {"num_hidden_layers": 2},
    }
    assert config_for_layers(config, [1]) == {
        "text_config": {"num_hidden_layers": 1, "layer_types": ["b"]},
        "vision_config": {"num_hidden_layers": 2},
    }


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
def test_the_number_of_layers_has_many_names(key: str) -> None:
    assert config_for_layers({key: 4, "n_head": 4}, [0, 1, 2, 2, 3]) == {key: 5, "n_head": 4}


def test_a_number_of_layers_that_stands_twice_changes_twice() -> None:
    inner = {"num_hidden_layers": 2, "layer_types": ["a", "b"]}
    changed = config_for_layers({"num_hidden_layers": 2, "text_config": inner}, [1])
    assert changed == {"num_hidden_layers": 1, "text_config": {"num_hidden_layers": 1, "layer_types": ["b"]}}


@pytest.mark.parametrize("key", ["mlp_only_layers", "moe_layers", "cross_attention_layers", "hybrid_layer_ids"])
def test_lists_of_layers_hold_the_new_places_of_the_same_layers(key: str) -> None:
    config = {"num_hidden_layers": 4, key: [1, 3]}
    assert config_for_layers(config, [0, 1, 1, 3, 2])[key] == [1, 2, 3]
    assert config_for_layers(config, [0, 2])[key] == []
    everything = {"num_hidden_layers": 3, key: [0, 1, 2]}
    assert config_for_layers(everything, [0, 1, 1, 2])[key] == [0, 1, 2, 3]


def test_lists_of_layers_follow_the_model_of_each_layer() -> None:
    one, other = {"num_hidden_layers": 2, "mlp_only_layers": []}, {"num_hidden_layers": 2, "mlp_only_layers": [0]}
    assert config_for_layers(one, [0, 1, 0, 1], [one, one, other, other])["mlp_only_layers"] == [2]


def test_flags_per_layer_are_picked_like_values() -> None:
    config = {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "hybrid_override_pattern": "M*-M"}
    changed = config_for_layers(config, [3, 0, 1])
    assert (changed["no_rope_layers"], changed["hybrid_override_pattern"]) == ([0, 1, 1], "MM*")


@pytest.mark.parametrize(
    ("layers", "first"), [([0, 1, 2, 3], 2), ([0, 1, 0, 1, 2, 3], 4), ([2, 3], 0), ([0, 1], 2), ([0, 2, 1, 3], 1)]
)
def test_a_count_of_first_layers_follows(layers: list[int], first: int) -> None:
    config = {"num_hidden_layers": 4, "first_k_dense_replace": 2}
    assert config_for_layers(config, layers)["first_k_dense_replace"] == first


def test_a_window_for_no_layer_stays_a_window_for_no_layer() -> None:
    config = {"num_hidden_layers": 4, "max_window_layers": 4, "use_sliding_window": False}
    assert config_for_layers(config, [0, 1, 2, 1, 2, 3])["max_window_layers"] == 6


@pytest.mark.parametrize(
    ("keys", "layers", "broken"),
    [
        ({"decoder_sparse_step": 2}, [0, 1, 2, 3, 2, 3], []),
        ({"decoder_sparse_step": 2}, [0, 1, 3], ["decoder_sparse_step"]),
        ({"decoder_sparse_step": 1}, [0, 1, 3], []),
        ({"first_k_dense_replace": 1}, [0, 0, 1, 2], []),
        ({"first_k_dense_replace": 1}, [0, 1, 0, 1], ["first_k_dense_replace"]),
        ({"max_window_layers": 2, "use_sliding_window": False}, [3, 0], []),
        ({"max_window_layers": 2, "use_sliding_window": True}, [3, 0], ["max_window_layers"]),
        ({"sliding_window_pattern": 2}, [1, 2], ["sliding_window_pattern"]),
        ({"sliding_window_pattern": 2, "layer_types": ["a", "b", "a", "b"]}, [1, 2], []),
    ],
)
def test_rules_that_the_new_order_breaks_are_named(keys: dict, layers: list[int], broken: list[str]) -> None:
    config = {"num_hidden_layers": 4, **keys}
    assert broken_patterns(config, layers, [config] * len(layers)) == broken
