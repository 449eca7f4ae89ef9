"""The documented examples of both ways to write a method, as their authors wrote them but for the imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import merger
from merger.methods import registry

WEIGHTED_AVERAGE = """
from merger import merge_method
from typing import List
import torch

@merge_method(
    name="weighted_average",
    pretty_name="Weighted Average",            # Optional: human-readable name
    reference_url="https://example.com/docs",  # Optional: documentation or paper link
)
def average_merge(
    tensors: List[torch.Tensor],  # Required: input tensors
    weight: List[float],          # Vector parameter (one float per model)
    normalize: bool = True,       # Scalar parameter with default
) -> torch.Tensor:
    if normalize:
        total = sum(weight)
        weight = [w / total for w in weight]

    return sum(t * w for t, w in zip(tensors, weight))
"""

RECIPE = """
merge_method: weighted_average
models:
  - model: {first}
    parameters:
      weight: 0.3
  - model: {second}
    parameters:
      weight: 0.7
parameters: # Global parameters
  normalize: true
"""

CUSTOM_MERGE = """
from merger import MergeMethod, MergeTensorInput, ConfigParameterDef
from merger import ImmutableMap, ModelReference, WeightInfo
from merger import Task
from typing import Any, Dict, List
import torch


class CustomDependencyTask(Task[float]):
    totally_real_parameter: str

    # Example of a task that computes a dependency for the merge
    def execute(self) -> float:
        # Custom logic to compute a dependency
        return 42.0

class CustomMergeTask(Task[torch.Tensor]):
    gather_tensors: MergeTensorInput
    parameters: ImmutableMap[str, Any]
    tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]]
    weight_info: WeightInfo

    def arguments(self) -> Dict[str, Task]:
        return {
            "tensors": self.gather_tensors,
            "dependency": CustomDependencyTask(totally_real_parameter="example"),
        }

    def priority(self) -> int:
        return 1  # Optional: higher priority = earlier execution

    def group_label(self) -> str:
        return self.weight_info.name  # Optional: modify task grouping

    def uses_accelerator(self) -> bool:
        return True  # Enable GPU acceleration

    def execute(
        self, tensors: Dict[ModelReference, torch.Tensor], dependency: float
    ) -> torch.Tensor:
        # Implementation using self.weight_info, self.parameters, and self.tensor_parameters
        # Access global parameters via self.parameters["param_name"]
        # Access per-model tensor parameters via self.tensor_parameters[model_ref]["tensor_param_name"]
        # These values are pre-resolved by MergeKit's configuration system.

        result = ...
        return result


class CustomMerge(MergeMethod):
    def name(self) -> str:
        return "custom_merge"

    def pretty_name(self) -> str:
        return "Custom Merge"

    def reference_url(self) -> str:
        return "https://example.com/custom"

    def parameters(self) -> List[ConfigParameterDef]:
        return [
            ConfigParameterDef("threshold", float, required=False, default_value=0.5)
        ]

    def tensor_parameters(self) -> List[ConfigParameterDef]:
        return [ConfigParameterDef("weight", float, required=True)]

    def make_task(
        self,
        *,
        output_weight: WeightInfo, # Metadata about the weight being computed
        tensors: MergeTensorInput, # Internal Task that fetches input tensors
        parameters: ImmutableMap[str, Any], # Global parameters
        tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]], # Per-model parameters
        **kwargs, # Other context like base_model: Optional[ModelReference]
    ) -> Task:
        return CustomMergeTask(
            gather_tensors=tensors,
            parameters=parameters,
            tensor_parameters=tensor_parameters,
            weight_info=output_weight,
        )
"""
FORMULA = """sum(
            self.tensor_parameters[model]["weight"] * tensor for model, tensor in tensors.items()
        ) * (self.parameters["threshold"] * dependency / 21)"""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[object]:
    """Registers a plugin's text for the time of a test."""
    before = set(registry.names())

    def load_text(text: str) -> list[str]:
        (tmp_path / "plugin.py").write_text(text)
        return merger.load_plugin(tmp_path / "plugin.py")

    yield load_text
    for name in set(registry.names()) - before:
        registry.unregister(name)


MODELS = {
    "model1": {"layers.0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "norm.weight": torch.tensor([1.0])},
    "model2": {"layers.0.weight": torch.tensor([[10.0, 20.0], [30.0, 40.0]]), "norm.weight": torch.tensor([2.0])},
}


def merged_by_weight(first: float, second: float) -> dict[str, torch.Tensor]:
    return {name: MODELS["model1"][name] * first + MODELS["model2"][name] * second for name in MODELS["model1"]}


def test_the_decorated_example_runs_as_it_stands(load):
    assert load(WEIGHTED_AVERAGE) == ["weighted_average"]
    facts = registry.describe(registry.get("weighted_average"))
    assert (facts.pretty_name, facts.reference_url) == ("Weighted Average", "https://example.com/docs")
    for normalize, total in ((True, 4.0), (False, 1.0)):
        merged = merger.merge_state_dicts(MODELS, "weighted_average", {"weight": [1.0, 3.0], "normalize": normalize})
        for name, expected in merged_by_weight(1.0 / total, 3.0 / total).items():
            torch.testing.assert_close(merged[name], expected, rtol=1e-6, atol=0)


def test_its_recipe_is_a_recipe(load, tiny_family):
    load(WEIGHTED_AVERAGE)
    recipe = merger.load_recipe(RECIPE.format(first=tiny_family.experts[0], second=tiny_family.experts[1]))
    plan = merger.make_plan(recipe)
    assert not plan.problems
    for output in plan.outputs:
        assert [values["weight"] for values in output.tensor_parameters.values()] == [0.3, 0.7]
        assert output.parameters["normalize"] is True
    plan.close()


def test_a_base_model_is_the_first_tensor_of_the_decorated_example(load):
    load(WEIGHTED_AVERAGE)
    base = {name: torch.full_like(tensor, 100.0) for name, tensor in MODELS["model1"].items()}
    settings = {"parameters": {"weight": 1.0, "normalize": False}}
    merged = merger.merge_state_dicts(MODELS, "weighted_average", base=base, **settings)
    assert torch.equal(merged["norm.weight"], torch.tensor([103.0]))


def test_the_class_example_is_refused_as_it_stands_by_the_name_of_its_tensor(load):
    assert load(CUSTOM_MERGE) == ["custom_merge"]
    with pytest.raises(merger.MethodError, match=r"layers\.0\.weight: the method returned ellipsis instead of shape"):
        merger.merge_state_dicts(MODELS, "custom_merge", weight=1.0)


def test_the_class_example_runs_once_its_formula_is_filled_in(load):
    load(CUSTOM_MERGE.replace("...\n", f"{FORMULA}\n", 1))
    merged = merger.merge_state_dicts(MODELS, "custom_merge", weight=[1.0, 2.0])
    for name, expected in merged_by_weight(1.0, 2.0).items():
        assert torch.equal(merged[name], expected)
    merged = merger.merge_state_dicts(MODELS, "custom_merge", weight=[1.0, 2.0], threshold=0.25)
    assert torch.equal(merged["norm.weight"], torch.tensor([2.5]))


def test_the_class_example_says_what_it_needs(load):
    load(CUSTOM_MERGE)
    facts = registry.describe(registry.get("custom_merge"))
    assert (facts.name, facts.pretty_name, facts.reference_url) == (
        "custom_merge", "Custom Merge", "https://example.com/custom"
    )  # fmt: skip
    with pytest.raises(merger.PlanError, match="model1 gives no value for 'weight'"):
        merger.merge_state_dicts(MODELS, "custom_merge")
    with pytest.raises(merger.PlanError, match="threshold is 'high' but must be a finite number"):
        merger.merge_state_dicts(MODELS, "custom_merge", weight=1.0, threshold="high")
    with pytest.raises(merger.RecipeError, match="Did you mean 'threshold'"):
        merger.merge_state_dicts(MODELS, "custom_merge", weight=1.0, treshold=0.5)


def test_a_base_among_the_tensors_of_a_class_needs_no_values_of_its_own(load, capsys):
    shown = 'print(self.weight_info.name, [values["weight"] for values in self.tensor_parameters.values()])'
    text = CUSTOM_MERGE.replace("result = ...", shown)
    load(text.replace("return result", 'return tensors[ModelReference("base")]'))
    base = {"norm.weight": torch.tensor([7.0])}
    models = [{"norm.weight": model["norm.weight"]} for model in MODELS.values()]
    merged = merger.merge_state_dicts(models, "custom_merge", base=base, weight={"model 1": 1.0, "model 2": 2.0})
    assert torch.equal(merged["norm.weight"], torch.tensor([7.0]))
    assert capsys.readouterr().out == "norm.weight [None, 1.0, 2.0]\n"
