"""What the names of weights say: layer, role, embedding, tie."""

import pytest

from merger.architecture import Architecture, layer_of, tied_source


@pytest.mark.parametrize(
    ("name", "layer", "role"),
    [
        ("model.layers.3.self_attn.q_proj.weight", 3, "self_attn.q_proj"),
        ("model.layers.3.self_attn.q_proj.bias", 3, "self_attn.q_proj.bias"),
        ("transformer.h.11.attn.c_attn.weight", 11, "attn.c_attn"),
        ("encoder.layer.0.attention.self.query.weight", 0, "attention.self.query"),
        ("bert.encoder.layer.5.output.LayerNorm.bias", 5, "output.LayerNorm.bias"),
        ("gpt_neox.layers.2.mlp.dense_h_to_4h.weight", 2, "mlp.dense_h_to_4h"),
        ("layers.1.norm.weight", 1, "norm"),
        ("transformer.blocks.7.ffn.up_proj.weight", 7, "ffn.up_proj"),
        ("encoder.block.4.layer.1.DenseReluDense.wi_0.weight", 4, "layer.1.DenseReluDense.wi_0"),
        ("model.layers.9.block_sparse_moe.experts.6.w1.weight", 9, "block_sparse_moe.experts.w1"),
        ("model.layers.9.mlp.experts.127.up_proj.weight", 9, "mlp.experts.up_proj"),
        ("model.layers.9.mlp.shared_expert.up_proj.weight", 9, "mlp.shared_expert.up_proj"),
        ("backbone.layers.0.mixer.A_log", 0, "mixer.A_log"),
        ("0.auto_model.encoder.layer.3.output.dense.weight", 3, "output.dense"),
        (
            "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.weight",
            1,
            "attentions.0.transformer_blocks.0.attn1.to_q",
        ),
        ("features.4.weight", 4, "features"),
        ("features.4.bias", 4, "features.bias"),
        ("layer3.5.conv2.weight", 5, "conv2"),
        ("embeddings.word_embeddings.weight", None, "embeddings.word_embeddings"),
        ("model.norm.weight", None, "model.norm"),
        ("lm_head.weight", None, "lm_head"),
        ("weight", None, "weight"),
        ("logit_scale", None, "logit_scale"),
        ("classifier.2.bias", None, "classifier.2.bias"),
    ],
)
def test_layer_and_role_come_from_the_name(name: str, layer: int | None, role: str) -> None:
    names = {name, "model.layers.0.x.weight"} if layer is None else {name}
    info = Architecture.of(names).weight_info(name)
    assert (info.name, info.layer, info.role) == (name, layer, role)
    assert layer_of(name) == layer


def test_models_without_the_usual_words_are_numbered_by_the_first_number() -> None:
    architecture = Architecture.of(["net.0.weight", "net.0.bias", "net.2.weight", "head.weight"])
    infos = [architecture.weight_info(name) for name in ("net.0.weight", "net.2.weight", "head.weight")]
    assert [(info.layer, info.role) for info in infos] == [(0, "net"), (2, "net"), (None, "head")]
    assert Architecture.of(["0.weight", "1.weight"]).weight_info("1.weight").layer == 1


def test_numbers_outside_of_layers_mean_nothing_where_there_are_layers() -> None:
    architecture = Architecture.of(["model.layers.0.a.weight", "mm_projector.2.weight"])
    assert architecture.layer_of("mm_projector.2.weight") is None


def test_the_smaller_of_two_stacks_is_marked_in_the_role() -> None:
    names = [f"language_model.model.layers.{layer}.self_attn.q_proj.weight" for layer in range(4)]
    names += [f"vision_tower.encoder.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)]
    architecture = Architecture.of(names)
    assert [(stack.prefix, stack.layers) for stack in architecture.stacks] == [
        ("language_model.model.layers", 4),
        ("vision_tower.encoder.layers", 2),
    ]
    assert architecture.layers == 4
    assert architecture.weight_info(names[0]).role == "self_attn.q_proj"
    assert architecture.weight_info(names[-1]).role == "vision_tower.self_attn.q_proj"
    stack = architecture.stack_of(names[-1])
    assert stack is not None
    assert stack.layers == 2
    assert architecture.stack_of("norm.weight") is None


def test_encoder_and_decoder_do_not_mix() -> None:
    encoder = [f"encoder.block.{layer}.layer.0.SelfAttention.q.weight" for layer in range(3)]
    decoder = [f"decoder.block.{layer}.layer.{sub}.x.weight" for layer in range(3) for sub in range(3)]
    architecture = Architecture.of(encoder + decoder)
    assert architecture.weight_info(decoder[0]).role == "layer.0.x"
    assert architecture.weight_info(encoder[0]).role == "encoder.layer.0.SelfAttention.q"


def test_stacks_with_one_beginning_get_their_whole_difference_as_mark() -> None:
    names = [f"text.layers.{layer}.x.weight" for layer in range(9)]
    names += [f"vision.a.layers.{layer}.x.weight" for layer in range(3)]
    names += [f"vision.b.layers.{layer}.x.weight" for layer in range(2)]
    assert [stack.label for stack in Architecture.of(names).stacks] == ["", "vision.a.layers", "vision.b.layers"]


@pytest.mark.parametrize(
    ("name", "layer", "renamed"),
    [
        ("model.layers.3.mlp.experts.3.w1.weight", 10, "model.layers.10.mlp.experts.3.w1.weight"),
        ("encoder.block.1.layer.1.x.weight", 0, "encoder.block.0.layer.1.x.weight"),
        ("lm_head.weight", 1, "lm_head.weight"),
    ],
)
def test_layers_are_renumbered(name: str, layer: int, renamed: str) -> None:
    assert Architecture.of([name]).rename_layer(name, layer) == renamed


def test_layers_of_unusual_names_are_renumbered_knowing_all_names() -> None:
    architecture = Architecture.of(["net.0.weight", "net.1.weight"])
    assert architecture.rename_layer("net.1.weight", 5) == "net.5.weight"


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "transformer.wte.weight",
        "transformer.word_embeddings.weight",
        "embeddings.word_embeddings.weight",
        "tok_embeddings.weight",
        "gpt_neox.embed_in.weight",
        "shared.weight",
        "backbone.embeddings.weight",
        "text_model.embeddings.token_embedding.weight",
        "lm_head.weight",
        "lm_head.bias",
        "lm_head.decoder.weight",
        "embed_out.weight",
        "output.weight",
        "cls.predictions.decoder.weight",
        "cls.predictions.bias",
        "transformer.output_layer.weight",
    ],
)
def test_rows_of_these_belong_to_tokens(name: str) -> None:
    assert Architecture.of([name]).weight_info(name, (100, 8) if name.endswith("weight") else (100,)).is_embed


@pytest.mark.parametrize(
    "name",
    [
        "transformer.wpe.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.LayerNorm.weight",
        "vision_model.embeddings.patch_embedding.weight",
        "encoder.layer.0.output.weight",
        "model.layers.0.embeddings.weight",
        "lm_head.dense.weight",
        "cls.predictions.transform.dense.weight",
        "embed.weight",
        "decoder.weight",
        "pooler.output.weight",
    ],
)
def test_rows_of_these_do_not(name: str) -> None:
    assert not Architecture.of([name, "model.layers.0.x.weight"]).weight_info(name, (100, 8)).is_embed


def test_an_embedding_has_at_most_two_dimensions() -> None:
    assert not Architecture.of(["embeddings.weight"]).weight_info("embeddings.weight", (8, 3, 4, 4)).is_embed


def test_a_head_knows_the_embedding_that_may_stand_in_for_it() -> None:
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.rotary_emb.inv_freq"]
    architecture = Architecture.of(names)
    head, buffer = (architecture.weight_info(name) for name in names[1:])
    assert (head.aliases, head.optional) == (("model.embed_tokens.weight",), True)
    assert (buffer.aliases, buffer.optional) == ((), True)
    assert not architecture.weight_info(names[0]).optional


LLAMA = ["model.embed_tokens.weight", "model.norm.weight"]


@pytest.mark.parametrize(
    ("name", "names", "config", "source"),
    [
        ("lm_head.weight", LLAMA, None, "model.embed_tokens.weight"),
        ("lm_head.weight", LLAMA, {"tie_word_embeddings": True}, "model.embed_tokens.weight"),
        ("lm_head.weight", LLAMA, {"tie_word_embeddings": False}, None),
        ("lm_head.weight", LLAMA, {"text_config": {"num_hidden_layers": 1, "tie_word_embeddings": False}}, None),
        ("lm_head.weight", [*LLAMA, "lm_head.weight"], None, None),
        ("lm_head.bias", LLAMA, None, None),
        ("score.weight", LLAMA, None, None),
        ("lm_head.weight", ["model.norm.weight"], None, None),
        ("model.embed_tokens.weight", ["lm_head.weight"], None, "lm_head.weight"),
        ("decoder.embed_tokens.weight", ["shared.weight", "lm_head.weight"], None, "shared.weight"),
        ("lm_head.weight", ["encoder.embed_tokens.weight", "shared.weight"], None, "shared.weight"),
    ],
)
def test_which_weight_stands_in_for_a_tied_one(name: str, names: list, config: dict | None, source: str | None) -> None:
    assert tied_source(name, names, config) == source
