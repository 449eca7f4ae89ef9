"""Both ways to write a merge method, as a researcher meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import (
    ConfigParameterDef,
    ImmutableMap,
    MergeMethod,
    MergeTensorInput,
    ModelReference,
    Recipe,
    RunOptions,
    Task,
    WeightInfo,
)
from merger.methods import registry

PLUGIN = '''
from typing import List

import torch

from merger import merge_method


@merge_method(name="plugin_average", pretty_name="Plugin average", reference_url="https://example.com/average")
def plugin_average(
    tensors: List[torch.Tensor],
    weight: List[float],
    normalize: bool = True,
) -> torch.Tensor:
    """Weighted average of the models."""
    if normalize:
        total = sum(weight)
        weight = [w / total for w in weight]
    result = torch.zeros_like(tensors[0])
    for tensor, w in zip(tensors, weight):
        result = result + tensor * w
    return result
'''


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("plugin") / "plugin_average.py"
    path.write_text(PLUGIN)
    assert merger.load_plugin(path) == ["plugin_average"]
    yield path
    registry.unregister("plugin_average")


def recipe_of(method: str, family, weights, **parameters: Any) -> Recipe:
    models = [(str(path), {"weight": w}) for path, w in zip(family.experts, weights, strict=False)]
    return Recipe.build(method, models, parameters=parameters)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_decorated_function_is_a_merge_method(tiny_family, normalize):
    merged = merger.merge_in_memory(recipe_of("plugin_average", tiny_family, (3.0, 1.0), normalize=normalize))
    first, second = (load_file(path / "model.safetensors") for path in tiny_family.experts[:2])
    divisor = 4.0 if normalize else 1.0
    for name, tensor in merged.items():
        expected = first[name].float() * (3.0 / divisor) + second[name].float() * (1.0 / divisor)
        torch.testing.assert_close(tensor, expected.to(torch.bfloat16), rtol=0, atol=0)


def test_its_parameters_are_described_and_checked(tiny_family):
    facts = next(facts for facts in merger.describe_methods() if facts.name == "plugin_average")
    assert [definition.name for definition in facts.tensor_parameters] == ["weight"]
    assert facts.tensor_parameters[0].required
    recipe = Recipe.build("plugin_average", [(str(path), {}) for path in tiny_family.experts])
    plan = merger.make_plan(recipe)
    assert any("no value for 'weight'" in problem.message for problem in plan.errors)


def test_a_plugin_may_not_take_a_name_that_exists(tmp_path):
    (tmp_path / "other.py").write_text(PLUGIN)
    with pytest.raises(merger.MethodError, match="plugin_average"):
        merger.load_plugin(tmp_path / "other.py")


EVENTS: list[str] = []


class Count(Task[int]):
    """A value that every tensor of the merge needs."""

    text: str

    def execute(self) -> int:
        EVENTS.append(f"count {self.text}")
        return len(self.text)


class PickTask(Task[torch.Tensor]):
    gather_tensors: MergeTensorInput
    parameters: ImmutableMap[str, Any]
    tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]]
    weight_info: WeightInfo

    def arguments(self) -> dict[str, Task]:
        return {"tensors": self.gather_tensors, "count": Count(text="four")}

    def priority(self) -> int:
        return 1 if "layers.1" in self.weight_info.name else 0

    def group_label(self) -> str:
        return "everything"

    def uses_accelerator(self) -> bool:
        return True

    def execute(self, tensors: dict[ModelReference, torch.Tensor], count: int) -> torch.Tensor:
        EVENTS.append(self.weight_info.name)
        scale = self.parameters["threshold"] * count
        weights = [self.tensor_parameters[model]["weight"] for model in tensors]
        return sum(tensor * w for tensor, w in zip(tensors.values(), weights, strict=True)) * scale


class Pick(MergeMethod):
    def name(self) -> str:
        return "pick_for_test"

    def pretty_name(self) -> str:
        return "Pick"

    def reference_url(self) -> str:
        return "https://example.com/pick"

    def parameters(self) -> list[ConfigParameterDef]:
        return [ConfigParameterDef("threshold", float, required=False, default_value=0.5)]

    def tensor_parameters(self) -> list[ConfigParameterDef]:
        return [ConfigParameterDef("weight", float, required=True)]

    def make_task(self, *, output_weight, tensors, parameters, tensor_parameters, **kwargs) -> Task:
        return PickTask(
            gather_tensors=tensors,
            parameters=parameters,
            tensor_parameters=tensor_parameters,
            weight_info=output_weight,
        )


@pytest.fixture(scope="module")
def class_method() -> Iterator[None]:
    registry.register(Pick())
    yield
    registry.unregister("pick_for_test")


def test_a_class_builds_its_own_graph(tiny_family, class_method, tmp_path):
    EVENTS.clear()
    recipe = recipe_of("pick_for_test", tiny_family, (2.0, -1.0))
    list(merger.merge(recipe, tmp_path / "out", RunOptions(workers=1)))
    merged = load_file(tmp_path / "out" / "model.safetensors")
    first, second = (load_file(path / "model.safetensors") for path in tiny_family.experts[:2])
    for name, tensor in merged.items():
        expected = (first[name].float() * 2.0 + second[name].float() * -1.0) * 2.0
        torch.testing.assert_close(tensor, expected.to(torch.bfloat16), rtol=0, atol=0)


def test_a_shared_dependency_runs_once_and_priority_decides_the_order(tiny_family, class_method):
    EVENTS.clear()
    merger.merge_in_memory(recipe_of("pick_for_test", tiny_family, (2.0, -1.0)))
    assert EVENTS.count("count four") == 1
    layers = ["layers.1" in name for name in EVENTS if not name.startswith("count")]
    assert layers == sorted(layers, reverse=True)


def test_an_annotation_that_nobody_understands_is_refused_when_the_function_is_defined():
    with pytest.raises(merger.MethodError, match="colour"):

        @merger.merge_method(name="bad")
        def bad(tensors: list[torch.Tensor], colour: complex) -> torch.Tensor:
            return tensors[0]


@pytest.mark.parametrize(
    ("make_task", "message"),
    [
        ("return None", "a.weight: merge method 'plugin_bad' made None instead of a Task"),
        ("raise KeyError('q')", "a.weight: merge method 'plugin_bad' failed in plugin_bad.py, line .*KeyError: 'q'"),
        ("return Bad([1])", "a.weight: the task Bad holds a list in 'how', which cannot be compared"),
        ("return Bad(Bad({}))", "a.weight: the task Bad holds a dict in 'how', which cannot be compared"),
        ("return Deaf(Bad(1))", "the task Deaf cannot be executed with its arguments: got an unexpected.*'part'"),
        ("return Strict(1)", "the task Strict cannot be executed with its arguments: missing a required.*'tensors'"),
        ("return Round()", "the task Round depends on itself"),
        ("return Bad('raise')", "the task Bad failed in plugin_bad.py, line .*ValueError: inside"),
        ("return Bad('none')", "a.weight: the method returned NoneType instead of shape"),
    ],
)
def test_a_class_that_goes_wrong_is_told_by_name(tmp_path, make_task, message):
    text = f"""
from typing import Any
from merger import MergeMethod, Task

class Bad(Task[Any]):
    how: Any
    def execute(self, **values):
        if self.how == "raise":
            raise ValueError("inside")

class Strict(Task[Any]):
    part: Any
    def execute(self, tensors):
        return tensors

class Deaf(Task[Any]):
    part: Any
    def execute(self):
        return None

class Round(Task[Any]):
    def arguments(self):
        return {{"again": self}}
    def execute(self, again):
        return again

class Method(MergeMethod):
    def name(self):
        return "plugin_bad"
    def make_task(self, **facts):
        {make_task}
"""
    plugin, model = tmp_path / "plugin_bad.py", tmp_path / "model.safetensors"
    plugin.write_text(text)
    save_file({"a.weight": torch.ones(2, 2)}, model)
    try:
        merger.load_plugin(plugin)
        with pytest.raises(merger.MethodError, match=message):
            list(merger.merge(Recipe.build("plugin_bad", [(str(model), {})]), tmp_path / "out"))
    finally:
        registry.unregister("plugin_bad")
    assert not (tmp_path / "out").exists()
