"""What configurations say of layers and sizes, and how they follow a change of layers."""

import pytest

from merger.architecture import config_for_layers, configured_layers, hidden_size, model_kind, vocabulary_size


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
