"""Models that are put together from ranges of layers: every tensor's origin, settings and written configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import Recipe

ROWS, WIDTH = 6, 2
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "vocab_size": ROWS}


class Shelf:
    """Models whose tensors hold one number each: 10 times the model's, plus the layer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        number: int,
        *,
        layers: int = 4,
        rows: int = ROWS,
        width: int = WIDTH,
        head: bool = True,
        extra: Mapping[str, torch.Tensor] | None = None,
        **config: Any,
    ) -> str:
        def full(value: float, *shape: int) -> torch.Tensor:
            return torch.full(shape, float(value))

        tensors = {"model.embed_tokens.weight": full(10 * number, rows, width)}
        for layer in range(layers):
            for part in ("mlp.up", "self_attn.q"):
                tensors[f"model.layers.{layer}.{part}.weight"] = full(10 * number + layer, width, width)
        tensors["model.norm.weight"] = full(10 * number + 8, width)
        if head:
            tensors["lm_head.weight"] = full(10 * number + 9, rows, width)
        place = self.folder / name
        place.mkdir()
        save_file(tensors | dict(extra or {}), place / "model.safetensors")
        own = CONFIG | {"num_hidden_layers": layers, "hidden_size": width, "tie_word_embeddings": not head}
        (place / "config.json").write_text(json.dumps(own | config))
        return str(place)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def part(*sources: tuple[Any, ...], **keys: Any) -> dict[str, Any]:
    """A slice; each source is a model, first layer, one past the last, and settings by name."""
    listed = []
    for model, start, stop, *settings in sources:
        listed.append({"model": model, "layer_range": [start, stop], "parameters": settings[0] if settings else {}})
    return {"sources": listed, **keys}


def values(recipe: Recipe) -> dict[str, float]:
    """Each output tensor's one number."""
    found = {}
    for name, tensor in merger.merge_in_memory(recipe).items():
        (found[name],) = tensor.unique().tolist()
    return found


def layer_values(recipe: Recipe, role: str = "mlp.up") -> list[float]:
    found = values(recipe)
    return [
        found[f"model.layers.{layer}.{role}.weight"]
        for layer in range(len(found))
        if f"model.layers.{layer}.{role}.weight" in found
    ]


def problems(recipe: Recipe, level: str = "error") -> str:
    plan = merger.make_plan(recipe)
    plan.close()
    return "\n".join(str(problem) for problem in plan.problems if problem.level == level)


def written_config(recipe: Recipe, folder: Path) -> dict[str, Any]:
    list(merger.merge(recipe, folder / "out"))
    config: dict[str, Any] = json.loads((folder / "out" / "config.json").read_text())
    return config


# Where tensors come from


def test_layers_are_renumbered_in_the_order_of_the_slices(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    recipe = Recipe.build("passthrough", slices=[part((a, 0, 3)), part((b, 1, 4)), part((a, 2, 3))])
    assert layer_values(recipe) == [10, 11, 12, 21, 22, 23, 12]
    assert layer_values(recipe, "self_attn.q") == layer_values(recipe)


def test_the_embedding_is_of_the_first_slice_and_norm_and_head_of_the_last(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    found = values(Recipe.build("passthrough", slices=[part((a, 0, 1)), part((b, 3, 4))]))
    assert found["model.embed_tokens.weight"] == 10
    assert (found["model.norm.weight"], found["lm_head.weight"]) == (28, 29)


def test_all_sources_of_the_last_slice_take_part_in_norm_and_head(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    one = {"weight": 1.0}
    recipe = Recipe.build("linear", slices=[part((a, 0, 2, one)), part((a, 2, 4, one), (b, 2, 4, {"weight": 3.0}))])
    found = values(recipe)
    assert found["model.embed_tokens.weight"] == 10
    assert (found["model.norm.weight"], found["lm_head.weight"]) == (25.5, 26.5)
    assert layer_values(recipe) == [10, 11, (12 + 3 * 22) / 4, (13 + 3 * 23) / 4]


def test_sources_of_one_slice_may_give_different_layers(shelf: Shelf) -> None:
    a, deep = shelf.add("a", 1), shelf.add("deep", 3, layers=8)
    recipe = Recipe.build("linear", slices=[part((a, 0, 2), (deep, 6, 8))], parameters={"weight": 1.0})
    assert layer_values(recipe) == [(10 + 36) / 2, (11 + 37) / 2]


def test_a_base_that_is_listed_in_a_slice_keeps_its_place_for_methods_without_base(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    recipe = Recipe.build("linear", slices=[part((a, 0, 2, {"weight": 1}), (b, 0, 2, {"weight": 3}))], base=b)
    assert layer_values(recipe) == [17.5, 18.5]


def test_each_slice_may_have_a_base_and_settings_of_its_own(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    recipe = Recipe.build(
        "slerp",
        slices=[
            part((a, 0, 2), (b, 0, 2), base_model=a, parameters={"t": 0.0}),
            part((a, 2, 4), (b, 2, 4), base_model=b),
        ],
        parameters={"t": 1.0},
    )
    assert layer_values(recipe) == [10, 11, 12, 13]
    found = values(recipe)
    assert found["model.embed_tokens.weight"] == 10
    assert (found["model.norm.weight"], found["lm_head.weight"]) == (18, 19)


# Settings


def test_gradients_run_from_the_first_to_the_last_layer_of_a_slice(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    recipe = Recipe.build(
        "linear",
        slices=[
            part((a, 0, 4, {"weight": [1, 0]}), (b, 0, 4, {"weight": [0, 1]})),
            part((a, 0, 1, {"weight": [1, 5]})),
        ],
        parameters={"normalize": False},
    )
    thirds = [10 + 0, 11 + 10 / 3, 12 + 20 / 3, 23, 5 * 10]
    assert layer_values(recipe) == pytest.approx(thirds)
    assert values(recipe)["model.norm.weight"] == 18  # outside of layers a gradient is at its beginning


def test_the_innermost_level_whose_filter_matches_decides(shelf: Shelf) -> None:
    base, a = shelf.add("base", 0), shelf.add("a", 2)
    source = {"weight": [{"filter": "layers.3.mlp", "value": 4.0}]}
    recipe = Recipe.build(
        "task_arithmetic",
        slices=[
            part(
                (base, 0, 4),
                (a, 0, 4, source),
                parameters={"weight": [{"filter": "mlp", "value": 3.0}], "lambda": [{"filter": "q", "value": 0.5}]},
            )
        ],
        base=base,
        parameters={"weight": [{"filter": "layers.0", "value": 2.0}, {"value": 1.0}], "lambda": 1.0},
    )
    assert layer_values(recipe) == [60, 61, 62, 83]
    assert layer_values(recipe, "self_attn.q") == [20, 11, 12, 13]


def test_filters_see_source_names_for_one_model_and_output_names_for_all(shelf: Shelf) -> None:
    base, a = shelf.add("base", 0), shelf.add("a", 2)
    recipe = Recipe.build(
        "task_arithmetic",
        slices=[part((a, 2, 4, {"weight": [{"filter": "layers.2", "value": 1.0}, {"value": 0.0}]}))],
        base=base,
        parameters={"lambda": [{"filter": "layers.0", "value": 2.0}, {"value": 1.0}]},
    )
    assert layer_values(recipe) == [2 + 2 * 20, 3]


def test_one_module_is_the_recipe_itself(shelf: Shelf) -> None:
    a = shelf.add("a", 1)
    slices = f"    slices:\n    - sources: [{{model: {a}, layer_range: [1, 3]}}]\n"
    text = f"merge_method: passthrough\nmodules:\n  default:\n{slices}"
    assert layer_values(merger.load_recipe(text)) == [11, 12]


def test_dtypes_and_int8_mask_in_slices(shelf: Shelf) -> None:
    base, a = shelf.add("base", 0), shelf.add("a", 2)
    slices = [part((base, 0, 2), (a, 0, 2, {"weight": 1.0, "density": 1.0}))]
    recipe = Recipe.build("ties", slices=slices, base=base, parameters={"int8_mask": True}, out_dtype="float16")
    assert {tensor.dtype for tensor in merger.merge_in_memory(recipe).values()} == {torch.float16}
    assert layer_values(recipe) == [20, 21]


# Heads that are tied


@pytest.mark.parametrize(("first_ties", "head"), [(True, 29), (False, 20)])
def test_a_head_is_written_when_any_model_has_one(shelf: Shelf, tmp_path: Path, first_ties: bool, head: float) -> None:
    a, b = shelf.add("a", 1, head=not first_ties), shelf.add("b", 2, head=first_ties)
    recipe = Recipe.build("passthrough", slices=[part((a, 0, 2)), part((b, 2, 4))])
    assert values(recipe)["lm_head.weight"] == head
    assert values(recipe)["model.embed_tokens.weight"] == 10
    assert written_config(recipe, tmp_path)["tie_word_embeddings"] is False


def test_where_all_models_tie_the_first_embedding_serves_as_both_and_that_is_said(shelf: Shelf, tmp_path: Path) -> None:
    a, b = shelf.add("a", 1, head=False), shelf.add("b", 2, head=False)
    recipe = Recipe.build("passthrough", slices=[part((a, 0, 2)), part((b, 2, 4))])
    assert "that of the first slice serves as both" in problems(recipe, "note")
    assert "lm_head.weight" not in values(recipe)
    assert written_config(recipe, tmp_path)["tie_word_embeddings"] is True


def test_a_vision_tower_is_of_the_first_slice_as_a_whole(shelf: Shelf) -> None:
    def tower(value: float) -> dict[str, torch.Tensor]:
        names = ("vision.layers.0.norm1", "vision.layers.0.w", "vision.post_norm", "projector.emb_norm")
        return {f"{name}.weight": torch.full((2,), value) for name in names}

    a, b = shelf.add("a", 1, extra=tower(1)), shelf.add("b", 2, extra=tower(2))
    found = values(Recipe.build("passthrough", slices=[part((a, 0, 2)), part((b, 2, 4))]))
    assert {found[name] for name in tower(0)} == {1}


# The written configuration


def test_the_configuration_describes_the_new_layers(shelf: Shelf, tmp_path: Path) -> None:
    kinds = {"layer_types": ["full", "full", "window", "window"], "mlp_only_layers": [1, 3], "max_window_layers": 2}
    a = shelf.add("a", 1, **kinds)
    b = shelf.add("b", 2, layer_types=["w", "x", "y", "z"], mlp_only_layers=[0], max_window_layers=2)
    config = written_config(Recipe.build("passthrough", slices=[part((a, 0, 4)), part((b, 0, 3))]), tmp_path)
    assert config["num_hidden_layers"] == 7
    assert config["layer_types"] == ["full", "full", "window", "window", "w", "x", "y"]
    assert config["mlp_only_layers"] == [1, 3, 4]
    assert config["max_window_layers"] == 2


def test_kinds_of_layers_are_those_of_the_base_where_a_slice_lists_it(shelf: Shelf, tmp_path: Path) -> None:
    a, base = shelf.add("a", 1, layer_types=list("abcd")), shelf.add("base", 2, layer_types=list("wxyz"))
    recipe = Recipe.build("task_arithmetic", slices=[part((a, 0, 2, {"weight": 1}), (base, 2, 4))], base=base)
    assert written_config(recipe, tmp_path)["layer_types"] == ["y", "z"]
    assert layer_values(recipe) == [10, 11]


def test_a_pattern_of_layers_that_slices_break_is_pointed_out(shelf: Shelf) -> None:
    a = shelf.add("a", 1, full_attention_interval=2)
    assert problems(Recipe.build("passthrough", slices=[part((a, 0, 4)), part((a, 2, 4))]), "warning") == ""
    broken = Recipe.build("passthrough", slices=[part((a, 0, 4)), part((a, 1, 4))])
    assert "'full_attention_interval' in config.json" in problems(broken, "warning")


# Refusals


def test_layers_that_a_model_lacks_are_an_error_naming_place_and_number(shelf: Shelf) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    text = problems(Recipe.build("passthrough", slices=[part((a, 0, 4)), part((b, 2, 9))]))
    assert text.startswith("slices[1].sources[0].layer_range: ")
    assert f"{b} has 4 layers; layer_range [2, 9] goes beyond them. The last number is one past" in text


def test_a_model_without_layers_cannot_be_sliced(shelf: Shelf) -> None:
    flat = shelf.add("flat", 1, layers=0)
    assert "has no numbered layers" in problems(Recipe.build("passthrough", slices=[part((flat, 0, 2))]))


def test_models_of_another_width_cannot_follow_each_other(shelf: Shelf) -> None:
    a, wide = shelf.add("a", 1), shelf.add("wide", 2, width=4)
    text = problems(Recipe.build("passthrough", slices=[part((a, 0, 2)), part((wide, 2, 4))]))
    assert len(text.splitlines()) == 1
    assert "is 4 wide" in text and "is 2 wide" in text


def test_embedding_and_head_need_rows_for_the_same_tokens(shelf: Shelf) -> None:
    a, longer = shelf.add("a", 1), shelf.add("longer", 2, rows=8)
    text = problems(Recipe.build("passthrough", slices=[part((a, 0, 2)), part((longer, 2, 4))]))
    assert "has 8 vocabulary rows" in text and "has 6" in text
    between = Recipe.build("passthrough", slices=[part((a, 0, 2)), part((longer, 2, 4)), part((a, 2, 4))])
    assert problems(between) == ""


def test_what_is_written_can_be_sliced_again(shelf: Shelf, tmp_path: Path) -> None:
    a, b = shelf.add("a", 1), shelf.add("b", 2)
    list(merger.merge(Recipe.build("passthrough", slices=[part((a, 0, 4)), part((b, 0, 4))]), tmp_path / "out"))
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == 2 * 8 + 3
    again = Recipe.build("passthrough", slices=[part((tmp_path / "out", 3, 6))])
    assert layer_values(again) == [13, 20, 21]
