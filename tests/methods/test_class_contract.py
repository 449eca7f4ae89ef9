"""What holds for every merge method that is written as a class: the contract of decorated ones, through the engine.

A class that is put into the folder of methods is held to it on arrival.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import merger
from merger import ConfigParameterDef, ImmutableMap, MergeMethod, MergeTensorInput, ModelReference, RunOptions, Task
from merger.checkpoints.memory import MemoryCheckpoint
from merger.graph import ordered
from merger.methods import registry
from merger.methods.define import DecoratedMethod
from merger.plan import make_plan
from merger.recipe import Recipe
from tests.methods.test_contract import settings_of, value_for


class Norm(Task[float]):
    source: Task[Tensor]

    def execute(self, source: Tensor) -> float:
        return float(source.double().square().sum().sqrt())

    def priority(self) -> int:
        return 2


class Rescaled(Task[Tensor]):
    """The weighted sum of all tensors, brought to the norm of the first."""

    gather: MergeTensorInput
    norm: Norm
    tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]]

    def execute(self, gather: dict[ModelReference, Tensor], norm: float) -> Tensor:
        total = sum(tensor * self.tensor_parameters[model]["weight"] for model, tensor in gather.items())
        size = float(total.double().square().sum().sqrt())
        return total * (norm / size) if size else total


class KeepNorm(MergeMethod):
    """Averages the models and keeps the norm of the first."""

    summary = "Averages the models and keeps the norm of the first."

    def name(self) -> str:
        return "keep_norm_for_test"

    def tensor_parameters(self) -> list[ConfigParameterDef]:
        return [ConfigParameterDef("weight", float, required=True, minimum=0, help="Share of this model.")]

    def make_task(self, *, tensors: MergeTensorInput, tensor_parameters: Any, **facts: Any) -> Task[Tensor]:
        return Rescaled(gather=tensors, norm=Norm(source=tensors.loads[0]), tensor_parameters=tensor_parameters)


METHODS = [KeepNorm(), *(method for method in registry.all_methods() if not isinstance(method, DecoratedMethod))]
every_class = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name())
SHAPES = {"layers.0.mlp.weight": (6, 5), "layers.1.mlp.weight": (6, 5), "norm.weight": (7,), "scale": (), "one": (1, 1)}


def count_of(method: MergeMethod) -> int:
    return max(method.min_models, min(3, method.max_models or 3))


def family(method: MergeMethod, dtype: torch.dtype = torch.float32, count: int | None = None) -> dict[str, Any]:
    """The models, and the base of a method that has one, as `merger.merge_state_dicts` takes them."""
    generator = torch.Generator().manual_seed(11)
    base = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    models = [
        {
            name: (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).to(dtype)
            for name, tensor in base.items()
        }
        for _ in range(count or count_of(method))
    ]
    takes_base = method.base in ("required", "optional")
    return {"models": models, "base": {name: tensor.to(dtype) for name, tensor in base.items()} if takes_base else None}


def given(method: MergeMethod, models: int) -> dict[str, Any]:
    settings = settings_of(method, models)
    shared = {name: value for name, value in settings.pop("parameters").items() if value is not None}
    return {"parameters": {**shared, **settings}}


def merged(method: MergeMethod, inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    return merger.merge_state_dicts(method=method, **inputs, **given(method, len(inputs["models"])), **options)


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@every_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_shape_and_type_are_those_of_the_inputs(method, dtype):
    result = merged(method, family(method, dtype))
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in result.items()} == {
        name: (shape, dtype) for name, shape in SHAPES.items()
    }
    assert all(bool(tensor.isfinite().all()) for tensor in result.values())


@every_class
def test_the_same_inputs_give_the_same_result_and_stay_as_they_are(method):
    inputs = family(method)
    before = [{name: tensor.clone() for name, tensor in model.items()} for model in inputs["models"]]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert equal(merged(method, inputs), merged(method, inputs))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(equal(old, new) for old, new in zip(before, inputs["models"], strict=True))


@every_class
def test_tensors_do_not_depend_on_each_other(method):
    inputs = family(method)
    together = merged(method, inputs)
    for name in SHAPES:
        alone = {
            "models": [{name: model[name]} for model in inputs["models"]],
            "base": inputs["base"] and {name: inputs["base"][name]},
        }
        assert torch.equal(merged(method, alone)[name], together[name])


@every_class
def test_workers_do_not_change_the_bytes(method, tmp_path, request):
    if method.name() not in registry.names():
        registry.register(method)
        request.addfinalizer(lambda: registry.unregister(method.name()))
    recipe, checkpoints = opened(method)
    for workers in (1, 2, 5):
        list(merger.merge(recipe, tmp_path / str(workers), RunOptions(workers=workers), checkpoints))
    first, *others = [(tmp_path / str(workers) / "model.safetensors").read_bytes() for workers in (1, 2, 5)]
    assert others == [first, first]


def opened(method: MergeMethod) -> tuple[Recipe, dict[ModelReference, MemoryCheckpoint]]:
    """A recipe over models in memory."""
    inputs, count = family(method), count_of(method)
    settings = settings_of(method, count)
    shared = {name: value for name, value in settings.pop("parameters").items() if value is not None}
    references = [ModelReference(f"model {index}") for index in range(count)]
    entries = [
        (reference, {name: values[index] for name, values in settings.items()})
        for index, reference in enumerate(references)
    ]
    base = ModelReference("base") if inputs["base"] else None
    checkpoints = {ref: MemoryCheckpoint(ref, model) for ref, model in zip(references, inputs["models"], strict=True)}
    if base:
        checkpoints[base] = MemoryCheckpoint(base, inputs["base"])
    return Recipe.build(method.name(), entries, base=base, parameters=shared), checkpoints


@every_class
def test_equal_models_come_back_exactly_from_16_bits(method):
    inputs = family(method, torch.bfloat16)
    same = inputs["models"][0]
    inputs = {"models": [same] * len(inputs["models"]), "base": same if inputs["base"] else None}
    count = len(inputs["models"])
    settings = given(method, count)["parameters"]
    settings |= {d.name: [1.0 / count] * count for d in method.tensor_parameters() if d.name == "weight"}
    copies = [dict(model) for model in inputs["models"]]
    result = merger.merge_state_dicts(copies, method, settings, dict(same) if inputs["base"] else None)
    assert equal(result, same)


@every_class
def test_the_fewest_models_are_enough(method):
    assert merged(method, family(method, count=method.min_models)).keys() == SHAPES.keys()


@every_class
def test_values_out_of_bounds_are_refused_by_name(method):
    definitions = [d for d in (*method.parameters(), *method.tensor_parameters()) if d.type in (float, int)]
    for definition in definitions:
        wrong = ["many"] + [bound for bound in (below(definition), above(definition)) if bound is not None]
        for value in wrong:
            inputs = family(method)
            settings = given(method, len(inputs["models"]))["parameters"] | {definition.name: value}
            with pytest.raises(merger.PlanError, match=definition.name):
                merger.merge_state_dicts(method=method, **inputs, parameters=settings)


def below(definition: ConfigParameterDef) -> float | None:
    return None if definition.minimum is None else definition.minimum - 1


def above(definition: ConfigParameterDef) -> float | None:
    return None if definition.maximum is None else definition.maximum + 1


def needs(task: Task[Any]) -> set[Task[Any]]:
    """A task and all that it needs."""
    return {task}.union(*map(needs, task.arguments().values()))


@every_class
def test_equal_plans_make_equal_tasks_and_each_tensor_loads_only_what_it_needs_next(method):
    recipe, checkpoints = opened(method)
    plans = [make_plan(recipe, method, checkpoints, RunOptions()) for _ in range(2)]
    first, second = ([output.task for output in plan.outputs] for plan in plans)
    assert first == second and list(map(hash, first)) == list(map(hash, second))
    order = ordered(first)
    assert len(set(order)) == len(order)
    fresh: set[Task[Any]] = set()
    for task in order:
        assert set(task.arguments().values()) <= set(order[: order.index(task)])
        fresh.add(task)
        if task in first:
            assert fresh <= needs(task)
            fresh.clear()


@every_class
def test_it_explains_itself(method):
    facts = registry.describe(method)
    assert facts.summary.endswith(".") and len(facts.summary) < 120
    assert facts.description
    for definition in (*facts.parameters, *facts.tensor_parameters):
        assert definition.help.endswith("."), definition.name
        assert value_for(definition) is not None or not definition.required
