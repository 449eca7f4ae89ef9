"""Names that differ, weights that are tied or missing, buffers, tokens: report and plan say the same, values follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import Recipe

Place = Callable[..., str]
LAYERS = 3


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Makes a small language model in which every element is one number."""

    def make(
        name: str,
        number: float,
        *,
        prefix: str = "model.",
        head: float | None = None,
        rows: int = 4,
        width: int = 2,
        extra: Mapping[str, torch.Tensor] | None = None,
        tokens: Mapping[str, int] | None = None,
        **config: Any,
    ) -> str:
        body = [f"layers.{layer}.mlp.up" for layer in range(LAYERS)]
        tensors = {f"{prefix}{module}.weight": torch.full((width, width), float(number)) for module in body}
        tensors[f"{prefix}embed_tokens.weight"] = torch.full((rows, width), float(number))
        tensors[f"{prefix}norm.weight"] = torch.full((width,), float(number))
        if head is not None:
            tensors["lm_head.weight"] = torch.full((rows, width), head)
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors | dict(extra or {}), folder / "model.safetensors")
        own = {"model_type": "llama", "hidden_size": width, "num_hidden_layers": LAYERS, "vocab_size": rows}
        own |= {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": head is None}
        (folder / "config.json").write_text(json.dumps(own | config))
        if tokens is not None:
            content = {"version": "1.0", "model": {"type": "WordLevel", "vocab": tokens}}
            (folder / "tokenizer.json").write_text(json.dumps(content))
        return str(folder)

    return make


def mean(*models: str, **keys: Any) -> Recipe:
    return Recipe.build("linear", [(model, {"weight": 1.0}) for model in models], **keys)


def added(base: str, *models: str, **keys: Any) -> Recipe:
    return Recipe.build("task_arithmetic", [(model, {"weight": 1.0}) for model in models], base=base, **keys)


def planned(recipe: Recipe, level: str) -> list[str]:
    plan = merger.make_plan(recipe)
    plan.close()
    return [str(problem) for problem in plan.problems if problem.level == level]


def reported(level: str, *models: str) -> list[str]:
    return [str(problem) for problem in merger.inspect(*models).findings if problem.level == level]


def one(found: list[str], words: str) -> str:
    (only,) = [text for text in found if words in text]
    return only


# Tied weights


@pytest.mark.parametrize("tied_first", [True, False])
def test_a_tied_head_takes_part_as_its_embedding_and_both_doors_say_so(
    place: Place, tmp_path: Path, tied_first: bool
) -> None:
    tied, untied = place("tied", 2.0), place("untied", 4.0, head=8.0)
    models = (tied, untied) if tied_first else (untied, tied)
    for found in (planned(mean(*models), "note"), reported("note", *models)):
        assert "ties lm_head.weight to another weight" in one(found, "the tied weight stands in")
    list(merger.merge(mean(*models), tmp_path / "out"))
    assert load_file(tmp_path / "out/model.safetensors")["lm_head.weight"].unique().tolist() == [5]
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize(("base_ties", "expected"), [(True, 8 + 4 - 2), (False, 2 + 4 - 8)])
def test_task_vectors_of_a_head_count_from_the_base_embedding_where_the_base_ties(
    place: Place, base_ties: bool, expected: float
) -> None:
    base = place("base", 2.0, head=None if base_ties else 8.0)
    a = place("a", 2.0, head=8.0 if base_ties else None)
    b = place("b", 4.0)
    found = merger.merge_in_memory(added(base, a, b))
    assert found["lm_head.weight"].unique().tolist() == [expected]


def test_filters_for_the_head_reach_a_tied_model(place: Place) -> None:
    tied, untied = place("tied", 2.0), place("untied", 4.0, head=8.0)
    weights = [{"filter": "lm_head", "value": 3.0}, {"filter": "embed", "value": 1.0}, {"value": 1.0}]
    recipe = Recipe.build("linear", [(tied, {"weight": weights}), (untied, {"weight": 1.0})])
    found = merger.merge_in_memory(recipe)
    assert found["lm_head.weight"].unique().tolist() == [(3 * 2 + 8) / 4]
    assert found["model.embed_tokens.weight"].unique().tolist() == [3]


def test_a_nested_configuration_tells_of_ties_too(place: Place, tmp_path: Path) -> None:
    text = {"num_hidden_layers": LAYERS, "tie_word_embeddings": True}
    tied = place("tied", 2.0, text_config=text, tie_word_embeddings=True)
    untied = place("untied", 4.0, head=8.0)
    list(merger.merge(mean(tied, untied), tmp_path / "out"))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["tie_word_embeddings"] is False


# Prefixes


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("", "model.", "begins its tensor names with 'model.'; they are matched without it"),
        ("bert.", "", "begins its tensor names with 'bert.'; they are matched without it"),
        ("model.", "transformer.", "begins its tensor names with 'transformer.' where"),
        ("model.", "model.language_model.", "begins its tensor names with 'model.language_model.' where"),
    ],
)
def test_prefixes_are_looked_past_and_both_doors_say_so(place: Place, first: str, second: str, words: str) -> None:
    a, b = place("a", 2.0, prefix=first, head=4.0), place("b", 4.0, prefix=second, head=8.0)
    assert one(planned(mean(a, b), "note"), words) and one(reported("note", a, b), words)
    found = merger.merge_in_memory(mean(a, b))
    assert found[f"{first}layers.0.mlp.up.weight"].unique().tolist() == [3]
    assert found["lm_head.weight"].unique().tolist() == [6]
    assert len(found) == LAYERS + 3


# Strangers


def test_less_than_half_of_the_names_in_common_is_one_error_at_both_doors(place: Place) -> None:
    def others(count: int) -> dict[str, torch.Tensor]:
        return {f"blocks.{n}.{n}.w": torch.ones(2) for n in range(count)}

    a = place("a", 2.0, extra=others(0) | {f"own.{n}": torch.ones(1) for n in range(12)})
    near, far = place("near", 4.0, extra=others(5)), place("far", 4.0, extra=others(6))
    assert planned(mean(a, near), "error") == reported("error", a, near) == []
    for found in (planned(mean(a, far), "error"), reported("error", a, far)):
        assert "have only 5 tensor names in common: they are different architectures" in one(found, "in common")
        assert len(found) == 1


@pytest.mark.parametrize("method", ["linear", "slices"])
def test_another_width_is_one_error_at_both_doors(place: Place, method: str) -> None:
    a, wide = place("a", 2.0), place("wide", 2.0, width=4)
    parts = [{"sources": [{"model": model, "layer_range": [0, 2]}]} for model in (a, wide)]
    recipe = mean(a, wide) if method == "linear" else Recipe.build("passthrough", slices=parts)
    for found in (planned(recipe, "error"), reported("error", a, wide)):
        assert len(found) == 1
        assert "is 4 wide" in found[0] and "is 2 wide" in found[0]


def test_a_base_that_gives_only_its_configuration_must_be_a_relative_too(place: Place) -> None:
    a, b, wide = place("a", 2.0), place("b", 4.0), place("wide", 1.0, width=4)
    found = planned(mean(a, b, base=wide), "error")
    assert len(found) == 2
    assert all("is 4 wide" in text for text in found)


def test_a_base_that_is_not_listed_gives_a_method_without_base_its_configuration_only(
    place: Place, tmp_path: Path
) -> None:
    base, a, b = place("base", 1.0, rope_theta=7), place("a", 2.0), place("b", 4.0)
    recipe = mean(a, b, base=base)
    assert "only config and tokenizer are taken from it" in one(planned(recipe, "warning"), "base_model")
    list(merger.merge(recipe, tmp_path / "out"))
    assert load_file(tmp_path / "out/model.safetensors")["model.norm.weight"].unique().tolist() == [3]
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_theta"] == 7


# Missing weights and buffers


def test_buffers_that_some_models_lack_are_kept_and_said(place: Place) -> None:
    frequencies = {"model.rotary_emb.inv_freq": torch.tensor([1.0, 0.5])}
    with_buffer, without = place("with", 2.0, extra=frequencies), place("without", 4.0)
    assert "lacks it and is left out here" in one(planned(mean(with_buffer, without), "note"), "inv_freq")
    assert "the base lacks it; copied from" in one(planned(added(without, with_buffer), "note"), "inv_freq")
    assert "only" in one(planned(added(with_buffer, without), "note"), "inv_freq")
    assert "inv_freq" in one(reported("note", with_buffer, without), "has model.rotary_emb")
    for recipe in (mean(with_buffer, without), added(without, with_buffer), added(with_buffer, without)):
        assert merger.merge_in_memory(recipe)["model.rotary_emb.inv_freq"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("values", [torch.tensor([3, 4]), torch.tensor([True, False])])
def test_whole_numbers_and_flags_come_from_the_base_when_they_differ(place: Place, values: torch.Tensor) -> None:
    other = values.flip(0)
    base, a, same = (place(n, 2.0, extra={"model.ids": v}) for n, v in zip("xyz", (values, other, values), strict=True))
    assert "differs; the one of" in one(planned(added(base, a), "warning"), "model.ids")
    assert "differ between" in one(reported("warning", base, a), "model.ids")
    assert planned(added(base, same), "warning") == reported("warning", base, same) == []
    assert merger.merge_in_memory(added(base, a))["model.ids"].tolist() == values.tolist()


def test_whole_numbers_that_only_some_models_have_are_copied_and_said(place: Place) -> None:
    base, a = place("base", 2.0, extra={"model.ids": torch.tensor([3])}), place("a", 2.0)
    for first, second in ((base, a), (a, base)):
        assert f"{a} lacks it; the one of {base} is copied" in one(planned(added(first, second), "note"), "model.ids")
        assert merger.merge_in_memory(added(first, second))["model.ids"].tolist() == [3]
        assert "has model.ids" in one(reported("note", first, second), "model.ids")


# Tokens


def test_vocabularies_of_two_sizes_are_an_error_with_both_and_three_ways_out(place: Place) -> None:
    a, b = place("a", 2.0, rows=4), place("b", 4.0, rows=6)
    for found in (planned(mean(a, b), "error"), reported("error", a, b)):
        (text,) = found
        assert "has 6 vocabulary rows" in text and "has 4" in text
        assert "tokenizer: {source: base}, {source: union} or {source: <model>}" in text


def test_a_way_out_that_cannot_be_gone_yet_is_not_offered_again(place: Place) -> None:
    a, b = place("a", 2.0, rows=4), place("b", 4.0, rows=6)
    (text,) = planned(mean(a, b, tokenizer={"source": "union"}), "error")
    assert "Matching them by token cannot be done yet" in text


def test_a_padded_embedding_keeps_its_rows(place: Place, tmp_path: Path) -> None:
    tokens = {"x": 0, "y": 1, "z": 2}
    a, b = (place(name, number, rows=8, tokens=tokens) for name, number in (("a", 2.0), ("b", 4.0)))
    recipe = mean(a, b, tokenizer={"source": "union", "pad_to_multiple_of": 4})
    list(merger.merge(recipe, tmp_path / "out"))
    assert load_file(tmp_path / "out/model.safetensors")["model.embed_tokens.weight"].shape == (8, 2)
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 8


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tokenizer": {"source": "base", "pad_to_multiple_of": 3}}, "4 vocabulary rows are no multiple of 3"),
        ({"tokenizer": {"tokens": {"x": {"source": {"kind": "zero"}}}}}, "rules for single tokens cannot be"),
        ({"tokenizer_source": "org/other"}, "org/other is not among the merged models"),
    ],
)
def test_token_rules_that_change_rows_stop_with_one_sentence(place: Place, keys: dict[str, Any], words: str) -> None:
    (text,) = planned(mean(place("a", 2.0), place("b", 4.0), **keys), "error")
    assert words in text


@pytest.mark.parametrize("source", ["union", "base", None])
def test_models_without_tokenizer_files_are_taken_as_they_are(place: Place, source: str | None) -> None:
    a, b = place("a", 2.0, tokens={"x": 0}), place("b", 4.0)
    recipe = mean(a, b, tokenizer_source=source) if source else mean(a, b)
    assert planned(recipe, "error") == planned(recipe, "warning") == []


def test_a_chat_template_is_not_written_yet_which_is_said(place: Place) -> None:
    a = place("a", 2.0)
    assert planned(mean(a, chat_template="auto"), "warning") == []
    assert "is not carried out yet" in one(planned(mean(a, chat_template="llama3"), "warning"), "chat_template")
