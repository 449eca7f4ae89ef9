"""Samples that stay in memory: same arithmetic as the merge, no file access, quick."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

import merger
from merger.errors import PlanError, UserError
from merger.methods.define import DecoratedMethod
from merger.statistics.preview import preview_plan
from merger.statistics.sampling import take_sample
from merger.statistics.stripes import choose_stripes
from tests.statistics.families import EXPERTS, ON_THE_SPHERE, Family, family_of, recipe


@pytest.fixture(scope="module")
def one_tensor() -> Family:
    """Four models of one tensor that is too large to be held whole."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(700, 96, generator=generator)
    models = {"base": {"w": base}}
    models |= {name: {"w": base + 0.1 * torch.randn(base.shape, generator=generator)} for name in EXPERTS}
    return family_of(models)


def combined(monkeypatch: pytest.MonkeyPatch, sample: merger.Sample, setting: merger.Recipe) -> torch.Tensor:
    """The merged elements that an evaluation computes."""
    results: list[torch.Tensor] = []
    combine = DecoratedMethod.combine

    def recording(self: DecoratedMethod, *arguments: Any) -> torch.Tensor:
        results.append(combine(self, *arguments).clone())
        return results[-1]

    monkeypatch.setattr(DecoratedMethod, "combine", recording)
    sample.evaluate(setting)
    (only,) = results
    return only.reshape(-1)


def name_of(setting: merger.Recipe) -> str:
    return setting.merge_method


@pytest.mark.parametrize(
    "setting",
    [
        recipe("linear"),
        recipe("task_arithmetic", normalize=True, **{"lambda": 0.3}),
        recipe("ties"),
        recipe("dare_linear", density=0.5, seed=3),
        recipe("dare_ties", density=0.2),
    ],
    ids=lambda setting: setting.merge_method,
)
def test_sampled_elements_are_those_of_the_merge_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, one_tensor: Family, setting: merger.Recipe
) -> None:
    sample = take_sample(one_tensor.plan(recipe("linear")), elements_per_tensor=2048, seed=4)
    indices = choose_stripes((700, 96), 2048, 4, "w").indices().reshape(-1)
    assert len(indices) < 700 * 96
    expected = one_tensor.merged(setting)["w"].reshape(-1)[indices]
    assert torch.equal(combined(monkeypatch, sample, setting), expected)


@pytest.mark.parametrize(
    "setting",
    [
        recipe("linear"),
        recipe("ties", density=0.3),
        recipe("ties", density=0.3, rescale=True),
        recipe("ties", density=[0.2, 1.0]),
        recipe("breadcrumbs", density=[0.2, 1.0], gamma=0.1),
        recipe("breadcrumbs_ties", density=0.4, gamma=[0.0, 0.3], rescale=True),
        recipe("sce"),
        recipe("sce", select_topk=[0.3, 1.0]),
        recipe("nearswap", {"code": {}}, t=[0.001, 0.05]),
        recipe("ram", epsilon=[0.01, 0.2]),
        recipe("ramplus_tl", epsilon=0.02),
        recipe("dare_ties", density=[0.2, 0.9], **{"lambda": [0.5, 1.5]}),
        recipe("della", density=0.4, epsilon=0.1),
        recipe("della_linear", density=[0.3, 0.8], epsilon=0.1),
        recipe("slerp", {"code": {}}, t=[0.1, 0.9]),
        recipe("slerp", {"code": {}}, t=1.0),
        *ON_THE_SPHERE,
        recipe("passthrough", {"law": {"scale": 1.0}}),
    ],
    ids=name_of,
)
def test_with_whole_tensors_a_sample_says_what_the_exact_preview_says(family: Family, setting: merger.Recipe) -> None:
    sample = take_sample(family.plan(setting), elements_per_tensor=1 << 20)
    found, expected = sample.evaluate(setting), preview_plan(family.plan(setting), exact=True)
    for table in ("models", "tensors", "cosines"):
        left, right = getattr(found, table), getattr(expected, table)
        assert list(left.columns) == list(right.columns)
        for column in left:
            if left[column].dtype == np.float64:
                assert left[column].to_numpy() == pytest.approx(right[column].to_numpy(), rel=1e-9, nan_ok=True), column
            else:
                assert left[column].equals(right[column]), column


@pytest.mark.parametrize("method", ["linear", "ties", "breadcrumbs_ties", "dare_ties", "della", "della_linear"])
def test_tensors_side_by_side_give_what_each_gives_alone(family: Family, method: str) -> None:
    setting = recipe(method, density=[0.3, 0.9], **{"lambda": [0.5, 1.0]})
    together = take_sample(family.plan(setting), elements_per_tensor=1024).evaluate(setting)
    for name in family.models["base"]:
        alone = family_of({model: {name: tensors[name]} for model, tensors in family.models.items()})
        place = [part.name for part in together.parts].index(name)
        layers = {"layers.0": 0.0, "layers.1": 1.0}
        depth = layers.get(name[:8], 0.0)
        own = recipe(method, density=0.3 + 0.6 * depth, **{"lambda": 0.5 + 0.5 * depth})
        single = take_sample(alone.plan(own), elements_per_tensor=1024).evaluate(own)
        assert together.totals.sums[place] == pytest.approx(single.totals.sums[0], rel=1e-12), name


@pytest.mark.parametrize("setting", ON_THE_SPHERE, ids=name_of)
def test_tensors_on_the_sphere_side_by_side_give_what_each_gives_alone(family: Family, setting: merger.Recipe) -> None:
    def weighted(weight: Any) -> merger.Recipe:
        weights = {} if setting.merge_method == "model_stock" else {"weight": weight}
        first, *others = (entry.model.path for entry in setting.models)
        base = setting.base_model.path if setting.base_model else None
        models = {first: weights, **{model: {"weight": 0.5} if weights else {} for model in others}}
        return recipe(setting.merge_method, models, base=base, **setting.parameters)

    graded = weighted([0.2, 0.9])
    together = take_sample(family.plan(graded), elements_per_tensor=1024).evaluate(graded)
    for name in family.models["base"]:
        alone = family_of({model: {name: tensors[name]} for model, tensors in family.models.items()})
        place = [part.name for part in together.parts].index(name)
        own = weighted(0.9 if name.startswith("layers.1") else 0.2)
        single = take_sample(alone.plan(own), elements_per_tensor=1024).evaluate(own)
        assert together.totals.sums[place] == pytest.approx(single.totals.sums[0], rel=1e-12, nan_ok=True), name


@pytest.mark.parametrize("setting", [recipe("slerp", {"code": {}}, t=0.3), *ON_THE_SPHERE], ids=name_of)
def test_angles_are_estimated_from_the_sample(setting: merger.Recipe) -> None:
    generator = torch.Generator().manual_seed(1)
    base, common = torch.randn(2, 700, 96, generator=generator)
    changes = {name: common + torch.randn(base.shape, generator=generator) for name in EXPERTS}
    plan = family_of({"base": {"w": base}} | {name: {"w": base + 0.1 * d} for name, d in changes.items()}).plan(setting)
    sample = take_sample(plan, elements_per_tensor=1 << 13, seed=4)
    (found,), (exact,) = (
        preview.tensors["merged_norm"].to_numpy()
        for preview in (sample.evaluate(setting), preview_plan(plan, exact=True))
    )
    if setting.parameters.get("nuslerp_row_wise"):
        assert np.isnan(found) and sample.evaluate(setting).exact_only == ("w",)
    else:
        assert found == pytest.approx(exact, rel=0.03)


def test_evaluating_reads_nothing(family: Family) -> None:
    sample = take_sample(family.plan(recipe("linear")), elements_per_tensor=2048)
    before = family.bytes_read()
    sample.evaluate(recipe("ties", density=0.2))
    sample.thinned(512).evaluate_arrays(recipe("dare_ties", density=0.2))
    assert family.bytes_read() == before


def test_a_plan_or_its_recipe_may_be_evaluated(family: Family) -> None:
    setting = recipe("dare_ties", density=0.4, seed=9)
    sample = take_sample(family.plan(setting), elements_per_tensor=2048)
    first, second = sample.evaluate(setting), sample.evaluate(family.plan(setting))
    assert np.array_equal(first.totals.sums, second.totals.sums)


def test_a_sample_reads_and_holds_what_it_was_asked_for(family: Family) -> None:
    before = family.bytes_read()
    sample = take_sample(family.plan(recipe("linear")), elements_per_tensor=1024)
    elements = sum(part.sampled for part in sample.parts)
    assert family.bytes_read() - before == 4 * 2 * elements
    assert all(part.sampled <= 1024 for part in sample.parts)
    assert 4 * 4 * elements <= sample.bytes <= 4 * 4 * elements + 8 * elements


def test_a_model_of_weight_zero_is_held_for_later(family: Family) -> None:
    first = recipe("task_arithmetic", {"code": {"weight": 1.0}, "law": {"weight": 0.0}})
    later = recipe("task_arithmetic", {"code": {"weight": 0.0}, "law": {"weight": 1.0}})
    sample = take_sample(family.plan(first), elements_per_tensor=1 << 20)
    found = sample.evaluate(later).tensors["merged_norm"].to_numpy()
    assert found == pytest.approx(preview_plan(family.plan(later), exact=True).tensors["merged_norm"].to_numpy())


def test_few_rows_are_marked_rough(one_tensor: Family) -> None:
    found = take_sample(one_tensor.plan(recipe("ties")), elements_per_tensor=300).evaluate(recipe("ties"))
    assert found.models["rough"].all() and found.tensors["rough"].all()
    assert found.models["relative_delta_low"].isna().all() and found.models["relative_delta"].notna().all()


def test_a_thinner_sample_is_small_and_its_intervals_hold(family: Family) -> None:
    setting = recipe("ties", density=0.3)
    plan = family.plan(setting)
    exact = preview_plan(plan, exact=True).overall().models
    held = []
    for seed in range(20):
        full = take_sample(plan, seed=seed)
        thin = full.thinned(2048)
        assert all(part.sampled <= 2048 for part in thin.parts) and thin.bytes < full.bytes / 3
        found = thin.evaluate(setting).overall().models
        for figure in ("relative_delta", "zero_share", "kept_share"):
            held.append(exact[figure].between(found[f"{figure}_low"], found[f"{figure}_high"]))
    assert np.concatenate(held).mean() >= 0.9


def test_arrays_say_what_the_tables_say(family: Family) -> None:
    setting = recipe("dare_ties", density=0.5)
    sample = take_sample(family.plan(setting))
    arrays, preview = sample.evaluate_arrays(setting), sample.evaluate(setting)
    assert arrays["layers"] == [None, 0, 1]
    layers = preview.by_layer()
    assert arrays["sign_agreement"] == pytest.approx(layers.tensors["sign_agreement"].to_numpy())
    assert arrays["surviving_share"] == pytest.approx(layers.tensors["surviving_share"].to_numpy())
    kept = layers.models.pivot(index="model", columns="tensor", values="kept_share")
    assert arrays["kept_share"][1] == pytest.approx(
        kept.loc["law", ["outside layers", "layer 0", "layer 1"]].to_numpy()
    )
    place = (arrays["roles"].index("q"), 1)
    models = preview.models[preview.models["tensor"] == "layers.0.q.weight"]
    assert arrays["relative_delta"][:3, place[0], place[1]] == pytest.approx(models["relative_delta"].to_numpy())
    merged = preview.tensors.set_index("tensor").loc["layers.0.q.weight", "merged_relative"]
    assert arrays["relative_delta"][3, place[0], place[1]] == pytest.approx(merged)
    assert arrays["cosine"][0, 2] == pytest.approx(preview.summary()["cosine"]["code", "math"])
    assert arrays["overall"]["relative_delta"][3] == pytest.approx(preview.summary()["merged_relative"])


def test_roles_and_layers_without_a_tensor_are_undefined(family: Family) -> None:
    sample = take_sample(family.plan(recipe("linear")))
    arrays = sample.evaluate_arrays(recipe("linear"))
    assert np.isnan(arrays["relative_delta"][:, arrays["roles"].index("q"), 0]).all()


def test_a_recipe_over_other_models_is_refused(family: Family) -> None:
    pair = recipe("linear", {"code": {"weight": 1.0}, "law": {"weight": 1.0}})
    sample = take_sample(family.plan(pair))
    with pytest.raises(UserError, match="math"):
        sample.evaluate(recipe("linear"))
    with pytest.raises(UserError, match="math"):
        sample.evaluate(family.plan(recipe("linear")))


def test_a_recipe_that_does_not_fit_is_refused_as_a_plan_would(family: Family) -> None:
    sample = take_sample(family.plan(recipe("linear")))
    with pytest.raises(PlanError, match="base"):
        sample.evaluate(recipe("ties", base=None))


@pytest.mark.parametrize(("layers", "limit"), [(3, 0.020), (11, 0.060)])
@pytest.mark.parametrize("method", ["linear", "ties", "dare_ties"])
def test_a_move_costs_milliseconds(method: str, layers: int, limit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    names = [f"layers.{layer}.{role}.weight" for layer in range(layers) for role in "abcdefghi"]
    base = {name: torch.randn(40, 64, generator=generator) for name in [*names, "embed.weight", "norm.weight"]}
    models = {"base": base}
    for name in ("code", "law", "math", "prose"):
        models[name] = {key: w + 0.1 * torch.randn(w.shape, generator=generator) for key, w in base.items()}
    wide = family_of(models)
    plans = [
        wide.plan(recipe(method, {name: {"weight": 0.5} for name in models if name != "base"}, density=0.4 + step / 50))
        for step in range(6)
    ]
    sample = take_sample(plans[0], elements_per_tensor=2048)
    sample.evaluate_arrays(plans[0])
    spent = []
    for plan in plans[1:]:
        started = time.thread_time()
        sample.evaluate_arrays(plan)
        spent.append(time.thread_time() - started)
    assert min(spent) < limit
