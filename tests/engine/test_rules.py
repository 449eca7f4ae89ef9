"""What becomes of each tensor: merged, copied or refused, and how that is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import Recipe, RunOptions
from merger.recipe import Filtered


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict | None = None) -> str:
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def ones(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def merged(recipe: Recipe) -> dict[str, torch.Tensor]:
    return merger.merge_in_memory(recipe)


def messages(recipe: Recipe, level: str, options: RunOptions | None = None) -> str:
    plan = merger.make_plan(recipe, options)
    return "\n".join(str(problem) for problem in plan.problems if problem.level == level)


@pytest.fixture
def place(tmp_path: Path):
    return lambda name, tensors, config=None: write(tmp_path / name, tensors, config)


# Tensors that only some models have


def test_a_model_that_lacks_a_tensor_is_left_out_there(place):
    base = place("base", {"w": ones(0, 4), "v": ones(0, 4)})
    a = place("a", {"w": ones(1, 4), "v": ones(1, 4)})
    b = place("b", {"w": ones(3, 4)})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 1}), (b, {"weight": 1})], base=base)
    assert merged(recipe)["w"].tolist() == [4] * 4
    assert merged(recipe)["v"].tolist() == [1] * 4
    assert "b lacks it and is left out" in messages(recipe, "note")


def test_a_tensor_that_the_base_lacks_is_copied_from_its_only_owner(place):
    base = place("base", {"w": ones(0, 4)})
    a = place("a", {"w": ones(1, 4), "extra": ones(5, 2)})
    b = place("b", {"w": ones(1, 4)})
    recipe = Recipe.build("ties", [(a, {"weight": 1}), (b, {"weight": 1})], base=base)
    assert merged(recipe)["extra"].tolist() == [5, 5]
    assert "the base lacks it; copied from" in messages(recipe, "note")


def test_a_tensor_that_the_base_lacks_is_averaged_when_several_have_it(place):
    base = place("base", {"w": ones(0, 4)})
    a = place("a", {"w": ones(1, 4), "extra": ones(4, 2)})
    b = place("b", {"w": ones(1, 4), "extra": ones(8, 2)})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 3}), (b, {"weight": 1})], base=base)
    assert merged(recipe)["extra"].tolist() == [5, 5]


def test_a_tensor_that_only_the_base_has_is_kept(place):
    base = place("base", {"w": ones(0, 4), "only": ones(7, 2)})
    a = place("a", {"w": ones(1, 4)})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 1})], base=base)
    assert merged(recipe)["only"].tolist() == [7, 7]


def test_slerp_copies_what_only_one_model_has(place):
    a = place("a", {"w": ones(1, 4), "position_ids_float": ones(2, 3)})
    b = place("b", {"w": ones(1, 4)})
    recipe = Recipe.build("slerp", [(a, {}), (b, {})], base=a, parameters={"t": 0.5})
    assert merged(recipe)["position_ids_float"].tolist() == [2, 2, 2]


def test_nothing_is_dropped(place):
    base = place("base", {"w": ones(0, 4), "x": ones(0, 1)})
    a = place("a", {"w": ones(1, 4), "y": ones(0, 1)})
    b = place("b", {"w": ones(1, 4), "z": ones(0, 1)})
    recipe = Recipe.build("dare_ties", [(a, {"weight": 1}), (b, {"weight": 1})], base=base)
    assert set(merged(recipe)) == {"w", "x", "y", "z"}


# Integers


def test_equal_integer_tensors_are_copied_silently(place):
    counter = torch.tensor([1, 2, 3])
    a, b = (place(name, {"w": ones(1, 4), "ids": counter}) for name in "ab")
    recipe = Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})])
    assert merged(recipe)["ids"].tolist() == [1, 2, 3]
    assert "ids" not in messages(recipe, "warning") + messages(recipe, "note")


def test_integer_tensors_that_differ_come_from_the_base_and_are_reported(place):
    base = place("base", {"w": ones(1, 4), "ids": torch.tensor([1, 2])})
    a = place("a", {"w": ones(1, 4), "ids": torch.tensor([3, 4])})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 1})], base=base)
    assert merged(recipe)["ids"].tolist() == [1, 2]
    assert "is not a float tensor and differs" in messages(recipe, "warning")
    assert "differs" in messages(recipe, "error", RunOptions(strict=True))


def test_integers_keep_their_dtype_whatever_the_recipe_says(place):
    a = place("a", {"w": ones(1, 4), "flags": torch.tensor([True, False])})
    out = merged(Recipe.build("linear", [(a, {"weight": 1})], dtype="float16"))
    assert out["flags"].dtype == torch.bool and out["w"].dtype == torch.float16


# Ties and prefixes


def llama(tie: bool) -> dict:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": tie, "vocab_size": 4}


def test_a_tied_head_is_the_embedding_of_its_model(place, tmp_path):
    tied = place("tied", {"model.embed_tokens.weight": ones(2, 4, 3)}, llama(True))
    untied = place(
        "untied", {"model.embed_tokens.weight": ones(4, 4, 3), "lm_head.weight": ones(6, 4, 3)}, llama(False)
    )
    recipe = Recipe.build("linear", [(tied, {"weight": 1}), (untied, {"weight": 1})])
    assert merged(recipe)["lm_head.weight"].unique().tolist() == [4]
    list(merger.merge(recipe, tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


def test_models_that_all_tie_their_head_still_do_afterwards(place, tmp_path):
    models = [place(name, {"model.embed_tokens.weight": ones(2, 4, 3)}, llama(True)) for name in "ab"]
    recipe = Recipe.build("linear", [(model, {"weight": 1}) for model in models])
    list(merger.merge(recipe, tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"model.embed_tokens.weight"}


def test_a_prefix_that_is_the_only_difference_is_no_difference(place):
    names = [f"encoder.layer.{i}.output.dense.weight" for i in range(3)] + ["pooler.dense.weight"]
    plain = place("plain", {name: ones(1, 2, 2) for name in names})
    prefixed = place("prefixed", {f"bert.{name}": ones(3, 2, 2) for name in names})
    recipe = Recipe.build("linear", [(plain, {"weight": 1}), (prefixed, {"weight": 1})])
    assert {name: tensor.unique().tolist() for name, tensor in merged(recipe).items()} == {name: [2] for name in names}


# Refusals


def test_shapes_that_do_not_fit_are_named_both(place):
    a, b = place("a", {"w": ones(1, 4, 2)}), place("b", {"w": ones(1, 4, 3)})
    text = messages(Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})]), "error")
    assert "w" in text and "[4, 3]" in text and "[4, 2]" in text


def test_models_of_another_architecture_get_one_sentence_not_hundreds(place):
    a = place("a", {f"layers.{i}.w": ones(1, 4, 2) for i in range(300)})
    b = place("b", {f"layers.{i}.w": ones(1, 8, 2) for i in range(300)})
    text = messages(Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})]), "error")
    assert len(text.splitlines()) <= 4 and "not fine-tunes of one model" in text


@pytest.mark.parametrize("method", ["linear", "ties"])
def test_models_without_common_names_are_refused(place, method):
    a = place("a", {f"layers.{i}.w": ones(1, 4) for i in range(30)})
    b = place("b", {f"blocks.{i}.v": ones(1, 4) for i in range(30)} | {"layers.0.w": ones(1, 4)})
    base, models = (a, [b]) if method == "ties" else (None, [a, b])
    text = messages(Recipe.build(method, [(model, {"weight": 1}) for model in models], base=base), "error")
    assert "have only 1 tensor names in common: they are different architectures" in text


def test_models_without_tensors_are_refused(place):
    empty, full = place("empty", {}), place("full", {"w": ones(1, 4)})
    assert "hold no tensors" in messages(Recipe.build("linear", [(empty, {"weight": 1})]), "error")
    both = Recipe.build("linear", [(full, {"weight": 1}), (empty, {"weight": 1})])
    assert "have only 0 tensor names in common" in messages(both, "error")


def test_vocabularies_of_different_size_name_both_sizes_and_the_ways_out(place):
    a = place("a", {"model.embed_tokens.weight": ones(1, 10, 2)}, llama(True))
    b = place("b", {"model.embed_tokens.weight": ones(1, 12, 2)}, llama(True))
    text = messages(Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})]), "error")
    assert "12" in text and "10" in text and "union" in text


def test_a_method_without_its_base_is_refused(place):
    a = place("a", {"w": ones(1, 4)})
    assert "ties needs a base model" in messages(Recipe.build("ties", [(a, {"weight": 1})]), "error")


@pytest.mark.parametrize("count", [1, 3])
def test_slerp_wants_exactly_two_models(place, count):
    models = [place(f"m{i}", {"w": ones(1, 4)}) for i in range(count)]
    recipe = Recipe.build("slerp", [(model, {}) for model in models], base=models[0], parameters={"t": 0.5})
    assert "exactly 1 model besides the base" in messages(recipe, "error")


def test_several_problems_are_listed_together(place):
    base = place("base", {"w": ones(0, 4), "v": ones(0, 2)})
    a = place("a", {"w": ones(1, 4), "v": ones(1, 3)})
    recipe = Recipe.build("ties", [(a, {"weight": 1, "density": 1.5})], base=base)
    text = messages(recipe, "error")
    assert "density" in text and "[3]" in text
    with pytest.raises(merger.PlanError) as caught:
        merged(recipe)
    assert len(caught.value.problems) == 2


def test_weights_that_add_up_to_zero_are_refused_before_anything_is_read(place):
    a, b = place("a", {"w": ones(1, 4)}), place("b", {"w": ones(1, 4)})
    assert "0" in messages(Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": -1})]), "error")


def test_a_gradient_may_not_run_through_a_zero_sum(place):
    names = {f"layers.{i}.w": ones(1, 4) for i in range(3)}
    a, b = place("a", names), place("b", names)
    recipe = Recipe.build("linear", [(a, {"weight": (1.0, -1.0, 1.0)}), (b, {"weight": 1.0})])
    assert "layers.1.w" in messages(recipe, "error")


def test_missing_models_are_reported_together():
    recipe = Recipe.build("linear", [("/nowhere/a", {"weight": 1}), ("/nowhere/b", {"weight": 1})])
    with pytest.raises(merger.CheckpointError) as caught:
        merger.make_plan(recipe)
    assert len(caught.value.problems) == 2


# What is read


def test_a_model_with_weight_zero_is_not_read(place):
    base = place("base", {"w": ones(0, 4)})
    a, b = place("a", {"w": ones(1, 4)}), place("b", {"w": ones(float("nan"), 4)})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 1}), (b, {"weight": 0})], base=base)
    (output,) = merger.make_plan(recipe).outputs
    assert [reference.path for reference, _ in output.sources] == [base, a]
    assert merged(recipe)["w"].tolist() == [1] * 4


def test_planning_reads_no_weights(tiny_family):
    recipe = Recipe.build(
        "ties", [(str(path), {"weight": 1, "density": 0.5}) for path in tiny_family.experts], base=str(tiny_family.base)
    )
    plan = merger.make_plan(recipe)
    assert plan.outputs and sum(checkpoint.bytes_read for checkpoint in plan.checkpoints.values()) == 0


@pytest.mark.parametrize(("method", "passes"), [("linear", 1), ("task_arithmetic", 1), ("dare_ties", 1), ("slerp", 2)])
def test_passes_over_the_data(tiny_family, tmp_path, method, passes):
    parameters = {"t": 0.5} if method == "slerp" else {}
    models = [(str(path), {} if method == "slerp" else {"weight": 1.0}) for path in tiny_family.experts]
    recipe = Recipe.build(
        method,
        models[:1] if method == "slerp" else models,
        base=None if method == "linear" else str(tiny_family.base),
        parameters=parameters,
    )
    events = list(merger.merge(recipe, tmp_path / "out"))
    assert events[-1].bytes_read == passes * events[0].bytes_in


def test_a_copied_tensor_is_copied_by_the_kernel(place, tmp_path, monkeypatch):
    if not hasattr(os, "copy_file_range"):
        pytest.skip("this system copies through memory")
    kernel, copied = os.copy_file_range, []

    def counting(*arguments: int) -> int:
        copied.append(kernel(*arguments))
        return copied[-1]

    monkeypatch.setattr(os, "copy_file_range", counting)
    a = place("a", {"w": ones(1, 300, 300)})
    list(merger.merge(Recipe.build("passthrough", [a]), tmp_path / "out"))
    assert sum(copied) == 300 * 300 * 4
    assert load_file(tmp_path / "out" / "model.safetensors")["w"].eq(1).all()


# dtypes


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "expected"),
    [(None, None, torch.bfloat16), ("float32", None, torch.float32), ("float32", "float16", torch.float16)],
)
def test_the_output_dtype_is_out_dtype_else_dtype_else_the_stored_one(place, dtype, out_dtype, expected):
    a = place("a", {"w": ones(1, 4, dtype=torch.bfloat16)})
    recipe = Recipe.build("linear", [(a, {"weight": 1})], dtype=dtype, out_dtype=out_dtype)
    assert merged(recipe)["w"].dtype == expected


def test_float16_overflow_is_counted_by_tensor_and_refused_when_strict(place, tmp_path):
    a = place("a", {"w": ones(60000, 4), "v": ones(1, 4)})
    base = place("base", {"w": ones(0, 4), "v": ones(0, 4)})
    recipe = Recipe.build("task_arithmetic", [(a, {"weight": 2})], base=base, dtype="float16")
    verified = next(e for e in merger.merge(recipe, tmp_path / "out") if isinstance(e, merger.Verified))
    assert verified.non_finite == {"w": 4}
    with pytest.raises(merger.NonFiniteError, match="bfloat16"):
        list(merger.merge(recipe, tmp_path / "strict", RunOptions(strict=True)))
    assert not (tmp_path / "strict").exists()


def test_scalars_and_empty_tensors_pass_through(place):
    tensors = {"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 4)}
    a, b = place("a", tensors), place("b", {**tensors, "scalar": torch.tensor(4.0)})
    out = merged(Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})]))
    assert out["scalar"].item() == 3 and out["empty"].shape == (0, 4)


# Vocabularies


def with_tokenizer(path: str, vocabulary: dict[str, int], padding: str | None = None) -> str:
    content = {"version": "1.0", "padding": padding, "model": {"type": "WordLevel", "vocab": vocabulary}}
    Path(path, "tokenizer.json").write_text(json.dumps(content))
    return path


def test_equal_vocabularies_need_no_matching(place):
    a = with_tokenizer(place("a", {"w": ones(1, 4)}), {"x": 0, "y": 1})
    b = with_tokenizer(place("b", {"w": ones(1, 4)}), {"x": 0, "y": 1}, padding="left")
    recipe = Recipe.build("linear", [(a, {"weight": 1}), (b, {"weight": 1})], tokenizer_source="union")
    assert messages(recipe, "error") == ""


def test_vocabularies_that_differ_stop_a_recipe_that_wants_them_matched(place):
    a = with_tokenizer(place("a", {"w": ones(1, 4)}), {"x": 0, "y": 1})
    b = with_tokenizer(place("b", {"w": ones(1, 4)}), {"x": 1, "y": 0})
    models = [(a, {"weight": 1}), (b, {"weight": 1})]
    for source in ("union", "base", b):
        text = messages(Recipe.build("linear", models, tokenizer_source=source), "error")
        assert "differ, and matching them by token cannot be done yet" in text
    plain = Recipe.build("linear", models)
    assert messages(plain, "error") == ""
    assert "merged rows may belong to different tokens" in messages(plain, "warning")


# Settings that reach nothing


def test_a_filter_that_is_in_no_name_is_pointed_out(place):
    a = place("a", {"layers.0.mlp.w": ones(1, 4), "layers.0.attn.w": ones(1, 4)})
    filters = (Filtered("attention", 2.0), Filtered("mlp", 3.0), Filtered(None, 1.0))
    text = messages(Recipe.build("linear", [(a, {"weight": filters})]), "warning")
    assert text.count("no tensor's name has") == 1
    assert "'attention'" in text and "attn.w" in text
