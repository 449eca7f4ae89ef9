"""The names of large public models, all at once."""

import json
from collections import Counter
from pathlib import Path

import pytest

from merger.architecture import (
    Architecture,
    configured_layers,
    embedding_name,
    hidden_size,
    vocabulary_size,
)

INDEXES = Path(__file__).parents[2].parent / "shared" / "cases" / "indexes"
skip_without = pytest.mark.skipif(not INDEXES.is_dir(), reason="the index files are not part of the project")


def read(model: str) -> tuple[frozenset[str], dict]:
    names = json.loads((INDEXES / f"{model}.index.json").read_text())["weight_map"]
    return frozenset(names), json.loads((INDEXES / f"{model}.config.json").read_text())


@skip_without
@pytest.mark.parametrize(
    ("model", "layers", "roles", "embeddings", "outside", "width", "tokens"),
    [
        ("falcon-180b", 80, 8, {"transformer.word_embeddings.weight", "lm_head.weight"}, 4, 14848, 65024),
        ("llama31-70b", 80, 9, {"model.embed_tokens.weight", "lm_head.weight"}, 3, 8192, 128262),
        ("mixtral-8x22b", 56, 10, {"model.embed_tokens.weight", "lm_head.weight"}, 3, 6144, 32000),
        ("phi3-mini-merge", 32, 6, {"model.embed_tokens.weight", "lm_head.weight"}, 3, 3072, 32064),
        ("gemma3-27b-vlm", 62, 13 + 16, {"language_model.model.embed_tokens.weight"}, 9, 5376, 262208),
    ],
)
def test_large_models_are_understood(model, layers, roles, embeddings, outside, width, tokens) -> None:
    names, config = read(model)
    infos = [Architecture.of(names).weight_info(name) for name in names]
    assert Architecture.of(names).layers == configured_layers(config) == layers
    assert len({info.role for info in infos if info.layer is not None}) == roles
    assert {info.name for info in infos if info.is_embed} == embeddings
    assert sum(info.layer is None for info in infos) == outside
    assert (hidden_size(config), vocabulary_size(config)) == (width, tokens)


@skip_without
def test_vision_and_language_of_a_large_model_stay_apart() -> None:
    architecture = Architecture.of(read("gemma3-27b-vlm")[0])
    assert [(stack.label, stack.layers, stack.tensors) for stack in architecture.stacks] == [
        ("", 62, 806),
        ("vision_tower", 27, 432),
    ]


@skip_without
def test_experts_of_a_layer_share_their_roles() -> None:
    names = read("mixtral-8x22b")[0]
    roles = Counter(Architecture.of(names).weight_info(name).role for name in names)
    assert {role: count for role, count in roles.items() if "experts" in role} == {
        f"block_sparse_moe.experts.{part}": 56 * 8 for part in ("w1", "w2", "w3")
    }


def test_sixteen_thousand_names_are_read_together_once() -> None:
    parts = ("gate_proj", "up_proj", "down_proj")
    names = frozenset(
        f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
        for layer in range(43)
        for expert in range(128)
        for part in parts
    )
    assert len(names) > 16_000
    infos = [Architecture.of(names).weight_info(name) for name in names]
    assert embedding_name(names) is None
    assert {info.role for info in infos} == {f"mlp.experts.{part}" for part in parts}
