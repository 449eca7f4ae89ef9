"""Plans over the tensor names of large public models: whole, and put together from their layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import merger
from merger import ModelReference, Plan, Recipe, TensorSpec
from merger.checkpoints.base import Checkpoint
from merger.report import build_report
from merger.sidefiles import output_config

INDEXES = Path(__file__).parents[2].parent / "shared" / "cases" / "indexes"
pytestmark = pytest.mark.skipif(not INDEXES.is_dir(), reason="the index files are not part of the project")

MODELS = {"falcon-180b": 80, "llama31-70b": 80, "mixtral-8x22b": 56, "phi3-mini-merge": 32, "gemma3-27b-vlm": 62}
ENDS = {"falcon-180b": 4, "llama31-70b": 3, "mixtral-8x22b": 3, "phi3-mini-merge": 3, "gemma3-27b-vlm": 9 + 432}
"""Tensors outside of the language model's layers."""


class Named(Checkpoint):
    """A model of which only names and configuration exist; every tensor is a vector of eight numbers."""

    def __init__(self, name: str, model: str) -> None:
        names = json.loads((INDEXES / f"{model}.index.json").read_text())["weight_map"]
        specs = {key: TensorSpec(key, "BF16", (8,), stop=16) for key in sorted(names)}
        config = json.loads((INDEXES / f"{model}.config.json").read_text())
        super().__init__(ModelReference(name), specs, name, config)

    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        raise AssertionError("a plan reads no weights")


def planned(recipe: Recipe, model: str) -> Plan:
    plan = merger.make_plan(recipe, checkpoints={name: Named(str(name), model) for name in recipe.all_models()})
    assert plan.errors == ()
    return plan


def config_of(plan: Plan) -> dict[str, Any]:
    return output_config(plan.recipe, plan.checkpoints, plan.outputs)


@pytest.mark.parametrize("model", MODELS)
def test_two_whole_models_of_a_kind(model: str) -> None:
    plan = planned(Recipe.build("linear", [("a", {"weight": [1, 2]}), ("b", {"weight": 1})]), model)
    assert len(plan.outputs) == len(Named("a", model).tensors)
    assert all(len(output.sources) == 2 for output in plan.outputs)
    weights = {
        output.weight.layer: output.tensor_parameters[ModelReference("a")]["weight"]
        for output in plan.outputs
        if "vision" not in output.weight.name
    }
    last = MODELS[model] - 1
    assert [weights[layer] for layer in (None, 0, last)] == [1, 1, 2]
    assert weights[last // 3] == pytest.approx(1 + (last // 3) / last)
    written = config_of(plan)
    has_head = any("lm_head" in name for name in Named("a", model).tensors)
    assert has_head is (model != "gemma3-27b-vlm")
    assert written.get("tie_word_embeddings") is (False if has_head else None)


@pytest.mark.parametrize("model", MODELS)
def test_a_taller_model_from_overlapping_layers(model: str) -> None:
    layers = MODELS[model]
    cuts = [("a", 0, layers // 2), ("b", layers // 4, layers)]
    slices = [{"sources": [{"model": name, "layer_range": [start, stop]}]} for name, start, stop in cuts]
    plan = planned(Recipe.build("passthrough", slices=slices), model)
    tall = layers // 2 + layers - layers // 4
    per_layer = (len(Named("a", model).tensors) - ENDS[model]) // layers
    assert len(plan.outputs) == per_layer * tall + ENDS[model]
    assert len({output.weight.name for output in plan.outputs}) == len(plan.outputs)
    places = {
        output.weight.layer: (str(reference), spec.name)
        for output in plan.outputs
        for reference, spec in output.sources
        if output.weight.layer is not None and "vision" not in output.weight.name
    }
    assert len(places) == tall
    assert places[layers // 2][0] == "b" and f".{layers // 4}." in places[layers // 2][1]
    assert places[tall - 1][0] == "b" and f".{layers - 1}." in places[tall - 1][1]
    owners = {output.weight.name: str(output.sources[0][0]) for output in plan.outputs}
    outside = [name for name in owners if "vision" in name or not any(part in name for part in ("layers.", ".h."))]
    behind = {name for name in outside if owners[name] == "b"}
    assert all(name.endswith(("lm_head.weight", "model.norm.weight", "ln_f.weight", "ln_f.bias")) for name in behind)
    assert behind
    written = config_of(plan)
    language = written.get("text_config", written)
    assert language["num_hidden_layers"] == tall
    if "layer_types" in language:
        original = Named("a", model).config["text_config"]["layer_types"]
        assert language["layer_types"] == original[: layers // 2] + original[layers // 4 :]
        assert written["vision_config"]["num_hidden_layers"] == 27


@pytest.mark.parametrize("model", MODELS)
def test_the_report_tells_layers_and_ties(model: str) -> None:
    report = build_report([Named("a", model), Named("b", model)])
    assert report.fits
    assert [facts.layers for facts in report.models] == [MODELS[model]] * 2
    assert [facts.tied for facts in report.models] == [model == "gemma3-27b-vlm"] * 2


def test_large_models_of_different_kinds_are_strangers() -> None:
    recipe = Recipe.build("linear", [("a", {"weight": 1}), ("b", {"weight": 1})])
    models = {ModelReference("a"): Named("a", "llama31-70b"), ModelReference("b"): Named("b", "falcon-180b")}
    plan = merger.make_plan(recipe, checkpoints=models)
    assert len(plan.errors) == 1
    assert "b is a FalconForCausalLM, a is a LlamaForCausalLM" in str(plan.errors[0])
