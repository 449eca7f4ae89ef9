"""Merging models that are in memory: the same engine, the same bytes, the same errors, no files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import merger
from merger import ConfigParameterDef, MergeMethod, Recipe, Task, merge_state_dicts
from merger.methods import registry

NAMES = ("model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight", "model.norm.weight")


def family(dtype: torch.dtype = torch.float32, members: int = 3) -> list[dict[str, Tensor]]:
    """A base and fine-tunes of it."""
    generator = torch.Generator().manual_seed(3)
    base = {name: torch.randn(8, 6, generator=generator) for name in NAMES}
    tuned = [
        {name: tensor + 0.1 * torch.randn(8, 6, generator=generator) for name, tensor in base.items()}
        for _ in range(members - 1)
    ]
    return [{name: tensor.to(dtype) for name, tensor in model.items()} for model in (base, *tuned)]


@pytest.fixture
def forget():
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        registry.unregister(name)


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("linear", {"weight": [0.3, 0.7]}),
        ("task_arithmetic", {"weight": [0.3, -0.7], "lambda_": 0.5}),
        ("slerp", {"t": 0.3}),
        ("ties", {"weight": [0.6, 0.4], "density": [0.5, 0.25]}),
        ("dare_ties", {"weight": [0.6, 0.4], "density": 0.5}),
        ("della_linear", {"weight": 1.0, "density": [0.5, 0.6]}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bytes_are_those_of_a_merge_of_files(tmp_path: Path, method, settings, dtype):
    base, *tuned = family(dtype)
    tuned = tuned[:1] if method == "slerp" else tuned
    needs_base = registry.get(method).base == "required"
    merged = merge_state_dicts(tuned, method, base=base if needs_base else None, seed=5, **settings)
    for place, model in zip(("base", "a", "b"), [base, *tuned], strict=False):
        (tmp_path / place).mkdir()
        save_file(model, tmp_path / place / "model.safetensors")
    own = {definition.name for definition in registry.get(method).tensor_parameters()}
    plain = {name.rstrip("_"): value for name, value in settings.items()}
    recipe = Recipe.build(
        method,
        [
            (
                str(tmp_path / "ab"[place]),
                {n: v[place] if isinstance(v, list) else v for n, v in plain.items() if n in own},
            )
            for place in range(len(tuned))
        ],
        base=str(tmp_path / "base") if needs_base else None,
        parameters={name: value for name, value in plain.items() if name not in own},
        seed=5,
    )
    list(merger.merge(recipe, tmp_path / "out"))
    assert equal(merged, load_file(tmp_path / "out" / "model.safetensors"))


def test_weights_are_given_as_lists_as_one_number_or_by_model_and_mean_the_same():
    _, a, b = family()
    expected = merge_state_dicts([a, b], "linear", weight=[0.25, 0.75])
    assert equal(expected, {name: 0.25 * a[name] + 0.75 * b[name] for name in NAMES})
    named = {"code": a, "math": b}
    assert equal(expected, merge_state_dicts(named, "linear", {"weight": {"math": 0.75, "code": 0.25}}))
    assert equal(expected, merge_state_dicts(named, "linear", {"weight": torch.tensor([1, 3])}))
    half = merge_state_dicts([a, b], "linear", weight=1, normalize=False)
    assert equal(half, {name: a[name] + b[name] for name in NAMES})


def test_gradients_and_filters_mean_what_they_mean_in_a_recipe():
    base, a, _ = family()
    merged = merge_state_dicts([a], "task_arithmetic", base=base, weight=[[0.0, 1.0]])
    assert torch.equal(merged[NAMES[1]], base[NAMES[1]])
    assert torch.equal(merged[NAMES[2]], base[NAMES[2]] + (a[NAMES[2]] - base[NAMES[2]]))
    only_norm = [{"filter": "norm", "value": 1.0}, {"value": 0.0}]
    merged = merge_state_dicts([a], "task_arithmetic", base=base, weight=only_norm)
    assert torch.equal(merged[NAMES[2]], base[NAMES[2]])
    assert torch.equal(merged[NAMES[3]], base[NAMES[3]] + (a[NAMES[3]] - base[NAMES[3]]))


def test_the_base_may_be_one_of_the_models_by_name_or_as_it_is():
    base, a, b = family()
    expected = merge_state_dicts([a, b], "ties", base=base, weight=1, density=0.5)
    named = {"it": base, "a": a, "b": b}
    assert equal(expected, merge_state_dicts(named, "ties", base="it", weight=1, density=0.5))
    assert equal(expected, merge_state_dicts([base, a, b], "ties", base=base, weight=[9, 1, 1], density=0.5))


def test_a_model_may_be_called_base_without_being_it():
    base, a, b = family()
    expected = merge_state_dicts([a, b], "task_arithmetic", base=base, weight=[1, 2])
    assert equal(expected, merge_state_dicts({"base": a, "b": b}, "task_arithmetic", base=base, weight=[1, 2]))


def test_the_seed_decides_what_is_drawn():
    base, a, b = family()
    first, again, other = (
        merge_state_dicts([a, b], "dare_linear", base=base, weight=1, density=0.5, seed=seed) for seed in (1, 1, 2)
    )
    assert equal(first, again) and not equal(first, other)


def test_tensors_keep_their_dtype_unless_another_is_asked_for():
    _, a, b = family(torch.float16)
    assert {t.dtype for t in merge_state_dicts([a, b], "linear", weight=1).values()} == {torch.float16}
    for dtype in ("float32", torch.float32):
        merged = merge_state_dicts([a, b], "linear", weight=1, dtype=dtype)
        assert equal(merged, {name: 0.5 * a[name].float() + 0.5 * b[name].float() for name in NAMES})


def test_parameters_strides_and_buffers_of_a_module_are_merged_as_they_stand():
    class Net(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            self.inner = nn.Parameter(torch.randn(4, 3, generator=generator).t())
            self.scale = nn.Parameter(torch.randn((), generator=generator))
            self.register_buffer("steps", torch.tensor([seed, seed]))
            self.register_buffer("same", torch.tensor([True, False]))
            self.register_buffer("none", torch.empty(0))

    first, second = Net(1), Net(2)
    models = [dict(first.named_parameters()) | dict(first.named_buffers()), second.state_dict()]
    with pytest.warns(UserWarning, match="steps: is not a float tensor and differs"):
        merged = merge_state_dicts(models, "linear", weight=[1, 3])
    expected = 0.25 * first.inner.detach() + 0.75 * second.inner.detach()
    assert torch.equal(merged["inner"], expected) and merged["inner"].is_contiguous()
    assert merged["scale"].shape == () and not merged["inner"].requires_grad
    assert merged["steps"].tolist() == [1, 1] and merged["same"].tolist() == [True, False]
    first.load_state_dict(merged)


def test_the_inputs_are_left_alone():
    models = family()
    before = [{name: tensor.clone() for name, tensor in model.items()} for model in models]
    merged = merge_state_dicts(models[1:], "ties", base=models[0], weight=1, density=0.5)
    merged = {name: tensor.zero_() for name, tensor in merged.items()}
    assert all(equal(old, new) for old, new in zip(before, models, strict=True))
    copied = merge_state_dicts([models[0]], "passthrough")
    assert equal(copied, before[0])
    copied[NAMES[0]].zero_()
    assert equal(models[0], before[0])


def test_names_that_are_one_tensor_in_every_model_are_one_in_the_result():
    base, a, b = family()
    for model in (base, a, b):
        model["lm_head.weight"] = model[NAMES[0]]
    merged = merge_state_dicts([a, b], "dare_linear", base=base, weight=1, density=0.5)
    assert merged["lm_head.weight"] is merged[NAMES[0]]
    a["lm_head.weight"] = a["lm_head.weight"].clone()
    merged = merge_state_dicts([a, b], "linear", weight=[1, 1])
    assert merged["lm_head.weight"] is not merged[NAMES[0]]
    assert torch.equal(merged["lm_head.weight"], merged[NAMES[0]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_results_are_where_the_bases_or_first_models_tensors_are():
    base, a, b = family()
    expected = merge_state_dicts([a, b], "ties", base=base, weight=1, density=0.5)
    base = {name: tensor.cuda() for name, tensor in base.items()}
    a = {name: tensor.t().contiguous().t().cuda() for name, tensor in a.items()}
    merged = merge_state_dicts([a, b], "ties", base=base, weight=1, density=0.5)
    assert {tensor.device.type for tensor in merged.values()} == {"cuda"}
    assert equal({name: tensor.cpu() for name, tensor in merged.items()}, expected)
    merged = merge_state_dicts([b, a], "linear", weight=1)
    assert {tensor.device.type for tensor in merged.values()} == {"cpu"}


def test_a_method_may_be_given_itself(forget):
    @merger.merge_method(name="first_for_test")
    def first(tensors: list[Tensor], scale: float = 2.0) -> Tensor:
        return tensors[0] * scale

    class Take(Task[Tensor]):
        source: Task

        def execute(self, source: Tensor) -> Tensor:
            return source

    class Last(MergeMethod):
        def name(self) -> str:
            return "last_for_test"

        def parameters(self) -> list[ConfigParameterDef]:
            return [ConfigParameterDef("unused", float, default_value=0.0)]

        def make_task(self, *, tensors, **kwargs) -> Task:
            return Take(source=tensors.loads[-1])

    _, a, b = family()
    registry.unregister("first_for_test")
    assert equal(merge_state_dicts([a, b], first, scale=3), {name: a[name] * 3 for name in NAMES})
    assert equal(merge_state_dicts([a, b], Last()), b)
    with pytest.raises(merger.RecipeError, match=r"Nobody knows the parameter 'unsued'\. Did you mean 'unused'"):
        merge_state_dicts([a, b], Last(), unsued=1)
    with pytest.raises(merger.MethodError, match=r"is no merge method\. Give a name, or a function decorated"):
        merge_state_dicts([a, b], len)


def test_every_wrong_parameter_is_told_at_once():
    _, a, b = family()
    with pytest.raises(merger.RecipeError) as caught:
        merge_state_dicts(
            {"code": a, "math": b}, "linear", weight=[1, 2, 3], normalise=True, parameters={"wieght": {"cod": 1}}
        )
    text = str(caught.value)
    assert "weight: 3 values are given for 2 models." in text
    assert "'normalise'. Did you mean 'normalize'" in text and "'wieght'. Did you mean 'weight'" in text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "teis"}, merger.MethodError, "'teis' is not a merge method. Did you mean 'ties'?"),
        ({"weight": {"cod": 1}}, merger.RecipeError, "weight: 'cod' is none of the models. Did you mean 'code'?"),
        ({"weight": None}, merger.PlanError, "code gives no value for 'weight' that applies"),
        ({"weight": [0, 0]}, merger.PlanError, "every weight is 0"),
        ({"base": "mth"}, merger.UserError, "base: 'mth' is none of the models. Did you mean 'math'?"),
        ({"base": 5}, merger.UserError, "base: it is of the type int, not a state dict"),
        ({"dtype": "fp16"}, merger.RecipeError, "'fp16' is none of float64, float32, float16, bfloat16"),
        ({"parameters": {"weight": 2}}, merger.RecipeError, "'weight' is given twice"),
        ({"models": []}, merger.RecipeError, "The recipe names no models"),
        ({"models": {"w": torch.ones(2)}}, merger.UserError, "w: it is of the type Tensor, not a state dict"),
        ({"models": {1: {}, "1": {}}}, merger.UserError, "models: two models have names that are the same text"),
    ],
)
def test_what_is_wrong_is_said_by_name(arguments, error, message):
    _, a, b = family()
    given = {"models": {"code": a, "math": b}, "method": "linear", "weight": 1} | arguments
    with pytest.raises(error, match=re.escape(message)):
        merge_state_dicts(**{name: value for name, value in given.items() if value is not None})


def test_tensors_that_do_not_fit_are_told_together():
    _, a, b = family()
    b[NAMES[1]], b[NAMES[2]] = torch.ones(2, 2), torch.ones(3)
    with pytest.raises(merger.PlanError) as caught:
        merge_state_dicts({"code": a, "math": b}, "linear", weight=1)
    assert f"{NAMES[1]}: math has shape [2, 2], code has [8, 6]" in str(caught.value)
    assert f"{NAMES[2]}: math has shape [3], code has [8, 6]" in str(caught.value)


def test_what_is_no_dense_tensor_is_told_for_all_models_together():
    models = {"a": {"x": torch.ones(2) * 1j, "y": 3}, "b": {"x": torch.ones(2), "z": torch.ones(2, device="meta")}}
    with pytest.raises(merger.CheckpointError) as caught:
        merge_state_dicts(models, "linear", weight=1)
    text = str(caught.value)
    assert "a: tensor 'x' is of the kind complex64" in text and "a: 'y' is of the type int, not a tensor" in text
    assert "b: tensor 'z' is of the kind float32, torch.strided, meta" in text


def test_methods_are_listed_as_data():
    listed = merger.methods()
    assert listed == merger.describe_methods()
    ties = next(facts for facts in listed if facts.name == "ties")
    assert [definition.name for definition in ties.tensor_parameters] == ["weight", "density"]
    assert (ties.base, ties.min_models, ties.max_models) == ("required", 1, None)
