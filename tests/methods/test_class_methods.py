"""A method written as a class that builds its own tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from merger import ConfigParameterDef, ImmutableMap, MergeMethod, MergeTensorInput, ModelReference, Task, WeightInfo
from merger.methods import registry
from merger.types import TensorContext
from tests.methods.driver import make_task


class Constant(Task[float]):
    number: float

    def execute(self, **values: Any) -> float:
        return self.number


class Scaled(Task[Tensor]):
    gather_tensors: MergeTensorInput
    parameters: ImmutableMap[str, Any]
    tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]]
    weight_info: WeightInfo

    def arguments(self) -> dict[str, Task[Any]]:
        return {"tensors": self.gather_tensors, "factor": Constant(number=self.parameters["threshold"])}

    def priority(self) -> int:
        return 1

    def group_label(self) -> str:
        return self.weight_info.name

    def uses_accelerator(self) -> bool:
        return True

    def execute(self, tensors: dict[ModelReference, Tensor], factor: float) -> Tensor:
        return sum(self.tensor_parameters[model]["weight"] * factor * tensor for model, tensor in tensors.items())


class ScaledMethod(MergeMethod):
    """Adds up scaled models. More is said here."""

    def name(self) -> str:
        return "scaled_for_test"

    def parameters(self) -> list[ConfigParameterDef]:
        return [ConfigParameterDef("threshold", float, required=False, default_value=0.5)]

    def tensor_parameters(self) -> list[ConfigParameterDef]:
        return [ConfigParameterDef("weight", float, required=True)]

    def make_task(self, *, output_weight, tensors, parameters, tensor_parameters, **kwargs) -> Task[Any]:
        return Scaled(
            gather_tensors=tensors,
            parameters=parameters,
            tensor_parameters=tensor_parameters,
            weight_info=output_weight,
        )


def test_a_class_makes_its_own_tasks():
    method = ScaledMethod()
    tasks = [
        make_task(
            method, shape=(2,), models=2, base=False, parameters={"threshold": 0.5}, per_model={"weight": [1.0, 3.0]}
        )
        for _ in range(2)
    ]
    assert tasks[0] == tasks[1] and hash(tasks[0]) == hash(tasks[1])
    task = tasks[0]
    assert (task.priority(), task.group_label(), task.uses_accelerator()) == (1, "layer.weight", True)
    gather = task.arguments()["tensors"]
    tensors = gather.execute(tensor_0=torch.ones(2), tensor_1=torch.full((2,), 2.0))
    factor = task.arguments()["factor"].execute()
    assert task.execute(tensors=tensors, factor=factor).tolist() == [3.5, 3.5]


def test_a_class_is_described_and_checked_like_any_other(request):
    registry.register(ScaledMethod())
    request.addfinalizer(lambda: registry.unregister("scaled_for_test"))
    facts = registry.describe(registry.get("scaled_for_test"))
    assert (facts.pretty_name, facts.base, facts.preview) == ("scaled_for_test", "reads_first", "exact")
    assert facts.summary == "Adds up scaled models."
    context = TensorContext(
        WeightInfo("w"), (2,), ImmutableMap({"threshold": "high"}), (ImmutableMap(),), (ModelReference("a"),)
    )
    assert [problem.message for problem in registry.get("scaled_for_test").check(context)] == [
        "threshold is 'high' but must be a finite number",
        "weight of a is needed and has no value",
    ]
