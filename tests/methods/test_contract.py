"""What holds for every registered merge method, without writing a test for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from merger.graph import BlockMerge
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.methods.define import DecoratedMethod
from merger.ops.columns import stack
from merger.ops.noise import BlockNoise
from merger.types import Block, ConfigParameterDef, ImmutableMap, ModelReference, TensorContext, WeightInfo
from tests.methods.driver import Blocks, make_task, measure, run

METHODS = [method for method in registry.all_methods() if isinstance(method, DecoratedMethod)]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name())
WEIGHTS = [0.5, 0.3, 0.2, 0.7]
SHAPES = [(6, 50), (300,), (3, 4, 5), (), (1, 1)]


def value_for(definition: ConfigParameterDef, model: int = 0) -> Any:
    """A value in the middle of what a parameter allows; weights that differ between models."""
    if definition.name == "weight":
        return WEIGHTS[model]
    if definition.type is bool or (not definition.required and definition.minimum is None):
        return definition.default_value
    low = definition.minimum if definition.minimum is not None else 0.0
    high = definition.maximum if definition.maximum is not None else low + 1.0
    return definition.type(low + (high - low) * 0.4)


def settings_of(method: MergeMethod, models: int) -> dict[str, Any]:
    return {
        "parameters": {definition.name: value_for(definition) for definition in method.parameters()},
        **{d.name: [value_for(d, model) for model in range(models)] for d in method.tensor_parameters()},
    }


def models_of(method: MergeMethod, most: int = 3) -> int:
    return max(method.min_models, min(most, method.max_models or most))


def inputs(method: MergeMethod, shape=(6, 50), *, dtype=torch.float32, models: int | None = None, seed: int = 0):
    """A base (None where the method has none) and fine-tunes of it, with many equal magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    count = models if models is not None else models_of(method)
    tuned = [
        (base + torch.round(torch.randn(shape, generator=generator, dtype=torch.float64) * 8) / 64).to(dtype)
        for _ in range(count)
    ]
    return tuned, (base if method.base in ("required", "optional") else None)


@every_method
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_type_are_those_of_the_inputs(method, shape, dtype):
    tensors, base = inputs(method, shape, dtype=dtype)
    merged = run(method, tensors, base, **settings_of(method, len(tensors)))
    assert merged.shape == torch.Size(shape) and merged.dtype == dtype
    assert bool(merged.isfinite().all())


@every_method
def test_the_same_inputs_give_the_same_result_and_chance_is_the_seeds(method):
    tensors, base = inputs(method)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second, other = (
        run(method, tensors, base, seed=seed, **settings_of(method, len(tensors))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    if "noise" not in method.signature.special:
        assert torch.equal(first, other)


@every_method
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_does_not_matter_how_a_tensor_is_cut(method, shape):
    tensors, base = inputs(method, shape)
    whole, cut = (
        run(method, tensors, base, block=block, **settings_of(method, len(tensors))) for block in (1 << 18, 64)
    )
    if method.preview == "gram":  # sums over other blocks differ in the last bit of float64
        torch.testing.assert_close(cut, whole, rtol=1e-6, atol=1e-7)
    else:
        assert torch.equal(cut, whole)


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_models_come_back_exactly(method, dtype):
    tensors, base = inputs(method, dtype=dtype)
    settings = settings_of(method, len(tensors))
    settings |= {d.name: [1.0] * len(tensors) for d in method.tensor_parameters() if d.name == "scale"}
    merged = run(method, [tensors[0]] * len(tensors), None if base is None else tensors[0], **settings)
    assert torch.equal(merged, tensors[0])


@every_method
def test_equal_float32_models_come_back_within_one_unit_in_the_last_place(method):
    tensors, base = inputs(method)
    settings = settings_of(method, len(tensors))
    settings |= {d.name: [1.0] * len(tensors) for d in method.tensor_parameters() if d.name == "scale"}
    merged = run(method, [tensors[0]] * len(tensors), None if base is None else tensors[0], **settings)
    steps = (merged.view(torch.int32) - tensors[0].view(torch.int32)).abs()
    assert int(steps.max()) <= 1


@every_method
def test_the_fewest_models_are_enough(method):
    tensors, base = inputs(method, models=method.min_models)
    merged = run(method, tensors, base, **settings_of(method, len(tensors)))
    assert merged.shape == tensors[0].shape


@every_method
def test_a_model_of_weight_zero_might_as_well_be_absent(method):
    if not method.skips_zero_weight:
        pytest.skip("this method reads models of weight 0")
    tensors, base = inputs(method)
    tensors[1][0, 0] = float("nan")
    settings = settings_of(method, 3)
    settings["weight"] = [0.5, 0.0, 0.2]
    present = run(method, tensors, base, **settings)
    fewer = {name: [values[0], values[2]] for name, values in settings.items() if name != "parameters"}
    absent = run(method, [tensors[0], tensors[2]], base, positions=[0, 2], parameters=settings["parameters"], **fewer)
    assert torch.equal(present, absent)


@every_method
def test_what_is_not_finite_stays_in_its_element(method):
    tensors, base = inputs(method)
    common = torch.randn((6, 50), generator=torch.Generator().manual_seed(1))
    tensors = [tensor + common for tensor in tensors]  # changes that agree, so that no method falls back on the base
    tensors[0][2, 3], tensors[0][4, 5] = float("inf"), float("nan")
    settings = settings_of(method, len(tensors))
    settings |= {d.name: [1.0] * len(tensors) for d in method.tensor_parameters() if d.name == "density"}
    merged = run(method, tensors, base, **settings)
    finite = torch.ones_like(merged, dtype=torch.bool)
    finite[2, 3] = finite[4, 5] = False
    assert torch.equal(merged.isfinite(), finite)


@every_method
def test_many_tensors_at_once_are_merged_as_one_by_one(method):
    if method.preview == "exact":
        pytest.skip("this method cannot be evaluated on samples")
    singles, columns, blocks = zip(*[single(method, index) for index in range(4)], strict=True)
    has_base = method.base in ("required", "optional")
    measured = stack([value for _, value in columns])
    together = method.combine(_stacked_context(columns), _stacked_block(blocks, has_base=has_base), measured)
    assert torch.equal(together, torch.stack([one.reshape(-1) for one in singles]))


SAMPLES = 200


def single(method: DecoratedMethod, index: int) -> tuple[Tensor, tuple[TensorContext, Any], list[Tensor]]:
    """One tensor's result, what led to it, and its flat inputs, the base first."""
    settings = settings_of(method, models_of(method))
    parameters = settings.pop("parameters")
    for definition in (*method.parameters(), *method.tensor_parameters()):
        if definition.type is float and definition.name in parameters:
            parameters[definition.name] *= 0.9 - 0.2 * index
        elif definition.type is float:
            settings[definition.name] = [v * (0.9 - 0.2 * index) for v in settings[definition.name]]
    tensors, base = inputs(method, (SAMPLES,), seed=index)
    task = make_task(
        method,
        shape=(SAMPLES,),
        models=len(tensors),
        base=base is not None,
        parameters=parameters,
        per_model=settings,
        name=f"tensor {index}",
    )
    assert isinstance(task, BlockMerge)
    wide = [*([base] if base is not None else []), *tensors]
    blocks = Blocks(task, wide, 0, SAMPLES)
    context, measured = task.context(), measure(task, blocks)
    merged = method.combine(context, next(iter(blocks)), measured)
    return merged, (context, measured), wide


def _stacked_context(columns) -> TensorContext:
    contexts = [context for context, _ in columns]
    own = [_stacked_map([c.tensor_parameters[model] for c in contexts]) for model in range(len(contexts[0].models))]
    return TensorContext(
        WeightInfo("all"),
        (len(contexts), SAMPLES),
        _stacked_map([context.parameters for context in contexts]),
        tuple(own),
        contexts[0].models,
        contexts[0].base_model,
    )


def _stacked_map(maps) -> ImmutableMap[str, Any]:
    return ImmutableMap(
        {name: stack([m[name] for m in maps]) if isinstance(value, float) else value for name, value in maps[0].items()}
    )


def _stacked_block(blocks, *, has_base: bool) -> Block:
    stacked = [torch.stack([wide[place] for wide in blocks]) for place in range(len(blocks[0]))]
    base = stacked.pop(0) if has_base else None
    positions = list(range(len(stacked)))
    indices = torch.arange(SAMPLES).repeat(len(blocks), 1)
    noise = BlockNoise.at(0, [f"tensor {index}" for index in range(len(blocks))], positions, indices)
    return Block(stacked, base, noise)


@every_method
def test_values_out_of_bounds_are_refused_by_name(method):
    for per_model, definitions in ((False, method.parameters()), (True, method.tensor_parameters())):
        for definition in definitions:
            for value in _values_out_of(definition):
                problems = method.check(context_with(method, definition.name, value, per_model=per_model))
                assert any(p.level == "error" and definition.name in p.message for p in problems), value


def _values_out_of(definition: ConfigParameterDef) -> list[Any]:
    if definition.type is bool:
        return ["yes"]
    wrong: list[Any] = ["many", float("nan"), float("inf"), True]
    wrong += [definition.minimum - 0.01] if definition.minimum is not None else []
    wrong += [definition.maximum + 0.01] if definition.maximum is not None else []
    return wrong


def context_with(method: MergeMethod, name: str, value: Any, *, per_model: bool) -> TensorContext:
    count = models_of(method)
    settings = settings_of(method, count)
    shared = settings.pop("parameters")
    own = [{key: values[model] for key, values in settings.items()} for model in range(count)]
    for values in own if per_model else [shared]:
        values[name] = value
    return TensorContext(
        WeightInfo("w"),
        (2, 2),
        ImmutableMap(shared),
        tuple(ImmutableMap(values) for values in own),
        tuple(ModelReference(f"model-{model}") for model in range(count)),
    )


@every_method
def test_sensible_values_raise_no_problem(method):
    first = next(iter([*method.parameters(), *method.tensor_parameters()]), None)
    if first is None:
        pytest.skip("this method has no parameters")
    is_own = first.name in {definition.name for definition in method.tensor_parameters()}
    assert method.check(context_with(method, first.name, value_for(first), per_model=is_own)) == []


@every_method
def test_it_explains_itself(method):
    facts = registry.describe(method)
    assert facts.summary.endswith(".") and len(facts.summary) < 120
    assert len(facts.description) > len(facts.summary)
    for definition in (*facts.parameters, *facts.tensor_parameters):
        assert definition.help.endswith("."), definition.name
