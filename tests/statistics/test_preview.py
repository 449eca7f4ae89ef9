"""What a preview says, against values computed from the formulas."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import merger
from merger.errors import UserError
from merger.statistics.preview import preview_plan
from merger.statistics.sampling import take_sample
from tests.statistics.families import EXPERTS, ON_THE_SPHERE, PAIR, SHAPES, Family, family_of, recipe


def exact(family: Family, setting: merger.Recipe) -> merger.Preview:
    return preview_plan(family.plan(setting), exact=True)


def sampled(family: Family, setting: merger.Recipe, share: float = 0.2) -> merger.Preview:
    return preview_plan(family.plan(setting), sample=share)


def row(table: pd.DataFrame, **where: Any) -> pd.Series:
    """The only row with these values."""
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def relative(part: torch.Tensor, whole: torch.Tensor) -> float:
    return float(part.double().norm() / whole.double().norm())


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("model", list(EXPERTS))
def test_figures_of_the_inputs(family: Family, name: str, model: str) -> None:
    found = row(exact(family, recipe("task_arithmetic")).models, tensor=name, model=model)
    delta, base = family.delta(model, name), family.models["base"][name].float()
    assert found["base_norm"] == pytest.approx(float(base.double().norm()), rel=1e-9)
    assert found["delta_norm"] == pytest.approx(float(delta.double().norm()), rel=1e-9)
    assert found["relative_delta"] == pytest.approx(relative(delta, base), rel=1e-9)
    assert found["zero_share"] == pytest.approx(float((delta == 0).double().mean()), rel=1e-9)
    assert (found["elements"], found["sampled"], found["kept_share"]) == (delta.numel(), delta.numel(), 1.0)


def test_cosines_are_those_of_the_changes(family: Family) -> None:
    found = exact(family, recipe("task_arithmetic")).cosines
    for (a, b), name in itertools.product(itertools.combinations(EXPERTS, 2), SHAPES):
        expected = torch.cosine_similarity(family.delta(a, name).double(), family.delta(b, name).double(), dim=0)
        assert row(found, tensor=name, model_a=a, model_b=b)["cosine"] == pytest.approx(float(expected), abs=1e-12)


def test_sign_agreement_counts_elements_that_two_models_change(family: Family) -> None:
    found = exact(family, recipe("task_arithmetic")).tensors
    for name in SHAPES:
        signs = torch.stack([torch.sign(family.delta(model, name)) for model in EXPERTS])
        contested = (signs != 0).sum(0) >= 2
        agree = ((signs >= 0).all(0) | (signs <= 0).all(0)) & contested
        expected = float(agree.sum()) / float(contested.sum())
        assert row(found, tensor=name)["sign_agreement"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "setting",
    [
        recipe("linear"),
        recipe("task_arithmetic", **{"lambda": 0.8}),
        recipe("ties", density=0.4),
        recipe("ties", density=0.4, rescale=True),
        recipe("dare_linear", density=0.5, seed=5),
        recipe("dare_ties", density=0.5),
        recipe("della", density=0.5, epsilon=0.2),
        recipe("slerp", {"code": {}}, t=0.3),
        *ON_THE_SPHERE,
        recipe("passthrough", {"code": {"scale": 1.5}}),
        recipe("linear", base=None),
    ],
    ids=lambda setting: setting.merge_method,
)
def test_the_merged_change_is_that_of_the_merge(family: Family, setting: merger.Recipe) -> None:
    found, merged = exact(family, setting), family.merged(setting)
    reference = "base" if setting.base_model else "code"
    assert found.reference == reference
    for name in SHAPES:
        base = family.models[reference][name].float()
        line = row(found.tensors, tensor=name)
        assert line["merged_norm"] == pytest.approx(float((merged[name] - base).double().norm()), rel=1e-6)
        assert line["merged_relative"] == pytest.approx(relative(merged[name] - base, base), rel=1e-6)


@pytest.mark.parametrize("method", ["ties", "dare_ties", "della"])
def test_a_tensor_of_several_blocks_is_measured_whole(method: str) -> None:
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(700, 500, generator=generator)
    tuned = {name: {"w": base + 0.1 * torch.randn(base.shape, generator=generator)} for name in ("code", "law")}
    family = family_of({"base": {"w": base}, **tuned})
    setting = recipe(method, {"code": {"weight": 1.0}, "law": {"weight": -0.5}}, density=0.3)
    line = row(exact(family, setting).tensors, tensor="w")
    assert line["merged_norm"] == pytest.approx(float((family.merged(setting)["w"] - base).double().norm()), rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "share"),
    [({}, 0.0), ({"nuslerp_flatten": False}, 0.25), ({"nuslerp_flatten": False, "nuslerp_row_wise": True}, 0.5)],
    ids=["whole", "rows", "columns"],
)
def test_nearly_opposite_vectors_are_reported(parameters: dict[str, bool], share: float) -> None:
    base = torch.zeros(4, 2)
    first = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -1.0], [4.0, 4.0]])
    second = torch.tensor([[1.0, -1.0], [1.0, -2.0], [1.0, 1.0], [-4.0, -4.0]])
    family = family_of({"base": {"w": base}, "code": {"w": first}, "law": {"w": second}})
    for setting in (recipe("nuslerp", PAIR, **parameters), recipe("nuslerp", PAIR, base=None, **parameters)):
        plan = family.plan(setting)
        assert row(exact(family, setting).tensors, tensor="w")["opposite_share"] == share
        assert take_sample(plan).evaluate(setting).tensors["opposite_share"].tolist() == [share]
    opposite = family_of({"code": {"w": first}, "law": {"w": -first}})
    setting = recipe("nuslerp", PAIR, base=None, **parameters)
    assert row(exact(opposite, setting).tensors, tensor="w")["opposite_share"] == 1.0


class Doubled(merger.Task[torch.Tensor]):
    """A task of its own kind: twice the only model's tensor."""

    gather: merger.MergeTensorInput

    def execute(self, **values: Any) -> torch.Tensor:
        (tensor,) = (value for model, value in values["gather"].items() if model.path == "code")
        return 2 * tensor


def test_tasks_of_other_kinds_are_run_whole(family: Family) -> None:
    plan = family.plan(recipe("task_arithmetic", {"code": {"weight": 1.0}}))
    outputs = [replace(output, task=Doubled(output.task.gather)) for output in plan.outputs]  # type: ignore[attr-defined]
    plan = replace(plan, outputs=tuple(outputs))
    found = preview_plan(plan, exact=True)
    for name in SHAPES:
        change = 2 * family.models["code"][name].float() - family.models["base"][name].float()
        expected = float(change.double().norm())
        assert row(found.tensors, tensor=name)["merged_norm"] == pytest.approx(expected, rel=1e-9)
    part = preview_plan(plan)
    assert "layers.1.q.weight" in part.exact_only and "layers.0.q.weight" not in part.exact_only
    assert np.isnan(row(part.tensors, tensor="layers.1.q.weight")["merged_norm"])
    assert row(part.tensors, tensor="layers.0.q.weight")["merged_norm"] > 0


def test_kept_share_is_the_density_also_where_a_model_changes_little(family: Family) -> None:
    for method in ("ties", "breadcrumbs", "dare_ties", "dare_linear", "della"):
        found = exact(family, recipe(method, density=0.3)).by_layer().models
        assert found["kept_share"].to_numpy() == pytest.approx(0.3, abs=0.02), method


def test_kept_share_is_told_also_by_methods_that_take_changes_over_in_parts(family: Family) -> None:
    competing = exact(family, recipe("pcb", density=0.3)).by_layer().models["kept_share"]
    assert competing.to_numpy() == pytest.approx(0.3, abs=0.06)
    standing_out = exact(family, recipe("arcee_fusion", {"code": {}})).by_layer().models["kept_share"]
    assert standing_out.between(0.001, 0.4).all()


def test_kept_share_of_ties_is_exact() -> None:
    base = {"w": torch.zeros(1000)}
    tuned = {"w": torch.arange(1000.0) * (torch.arange(1000) % 2)}
    family = family_of({"base": base, "code": tuned})
    found = exact(family, recipe("ties", {"code": {"weight": 1.0, "density": 0.25}}))
    assert row(found.models, tensor="w")["kept_share"] == 0.25
    assert row(found.models, tensor="w")["zero_share"] == 0.5


def test_a_density_above_the_changed_share_drops_nothing() -> None:
    family = family_of({"base": {"w": torch.zeros(100)}, "code": {"w": (torch.arange(100.0) < 10).float()}})
    found = exact(family, recipe("ties", {"code": {"weight": 1.0, "density": 0.5}}))
    assert row(found.models, tensor="w")["kept_share"] == 1.0


def test_survival_is_the_share_of_weighted_change_with_the_elected_sign() -> None:
    base = {"w": torch.zeros(4)}
    models = {
        "base": base,
        "a": {"w": torch.tensor([1.0, 2.0, 3.0, 0.0])},
        "b": {"w": torch.tensor([-3.0, 1.0, 3.0, 0.0])},
    }
    found = exact(family_of(models), recipe("ties", {"a": {"weight": 1.0}, "b": {"weight": 0.5}}))
    # weighted changes (1, 2, 3, 0) and (-1.5, .5, 1.5, 0): the first element elects minus
    assert row(found.tensors, tensor="w")["surviving_share"] == pytest.approx(8.5 / 9.5)
    assert row(found.tensors, tensor="w")["sign_agreement"] == pytest.approx(2 / 3)


def test_an_election_without_weights_is_told_as_such() -> None:
    tuned = {"a": [-1.0, 9.0], "b": [0.6, 0.0], "c": [0.6, 0.0]}
    models = {name: {"w": torch.tensor(values)} for name, values in tuned.items()}
    found = exact(family_of({"base": {"w": torch.zeros(2)}, **models}), recipe("sce", {name: {} for name in tuned}))
    survives, lost = 82 * 9 + 2 * 0.36 * 0.6, 82 * 1
    assert row(found.tensors, tensor="w")["surviving_share"] == pytest.approx(survives / (survives + lost))


@pytest.mark.parametrize("method", ["task_arithmetic", "dare_linear", "della_linear", "linear"])
def test_all_change_survives_without_an_election(family: Family, method: str) -> None:
    tensors = exact(family, recipe(method)).tensors
    assert (tensors[["surviving_share", "surviving_share_low", "surviving_share_high"]] == 1.0).all(axis=None)


def test_a_small_tensor_is_exact_in_a_sample(family: Family) -> None:
    found = sampled(family, recipe("ties", density=0.5))
    line = row(found.models, tensor="layers.0.q.weight", model="law")
    assert line["sampled"] == line["elements"]
    assert line["relative_delta_low"] == line["relative_delta"] == line["relative_delta_high"]
    whole = row(exact(family, recipe("ties", density=0.5)).models, tensor="layers.0.q.weight", model="law")
    assert line["relative_delta"] == pytest.approx(whole["relative_delta"], rel=1e-12)


def test_a_sample_reads_its_share_once_per_model(family: Family) -> None:
    before = family.bytes_read()
    found = sampled(family, recipe("ties", density=0.5), 0.1)
    read = family.bytes_read() - before
    assert read == 4 * 2 * sum(part.sampled for part in found.parts)
    assert row(found.tensors, tensor="layers.1.q.weight")["sampled"] == 64 * 96


def test_intervals_surround_the_estimate(family: Family) -> None:
    found = sampled(family, recipe("ties", density=0.5))
    for table in (found.models, found.tensors, found.cosines):
        for low in [column for column in table if str(column).endswith("_low")]:
            name = str(low).removesuffix("_low")
            values = table[[low, name, f"{name}_high"]].to_numpy(float)
            assert np.all(np.diff(values, axis=1) >= -1e-12), name


def test_what_is_not_finite_counts_as_no_change_and_is_counted() -> None:
    tuned = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    family = family_of({"base": {"w": torch.ones(4)}, "code": {"w": tuned}})
    found = exact(family, recipe("task_arithmetic", {"code": {"weight": 1.0}}))
    line = row(found.models, tensor="w")
    assert (line["delta_norm"], line["non_finite"], line["zero_share"]) == (1.0, 2, 0.25)
    assert (row(found.tensors, tensor="w")["merged_norm"], row(found.tensors, tensor="w")["non_finite"]) == (1.0, 2)


def test_integers_and_tensors_without_a_counterpart_are_left_out_with_a_reason() -> None:
    base = {"w": torch.ones(8), "ids": torch.arange(8)}
    family = family_of({"base": base, "code": {"w": torch.zeros(8), "ids": torch.arange(8), "extra": torch.ones(3)}})
    found = exact(family, recipe("task_arithmetic", {"code": {"weight": 1.0}}))
    assert [part.name for part in found.parts] == ["w"]
    assert {name for name, _ in found.left_out} == {"ids", "extra"}


def test_layers_add_squares_and_counts(family: Family) -> None:
    found = exact(family, recipe("task_arithmetic")).by_layer()
    assert list(found.tensors["tensor"]) == ["outside layers", "layer 0", "layer 1"]
    names = [name for name in SHAPES if name.startswith("layers.1.")]
    delta = torch.cat([family.delta("law", name) for name in names])
    base = torch.cat([family.models["base"][name].float().reshape(-1) for name in names])
    line = row(found.models, tensor="layer 1", model="law")
    assert line["relative_delta"] == pytest.approx(relative(delta, base), rel=1e-9)
    assert line["zero_share"] == pytest.approx(float((delta == 0).double().mean()), rel=1e-9)


def test_the_summary_is_about_the_whole_model(family: Family) -> None:
    found = exact(family, recipe("task_arithmetic")).summary()
    delta = torch.cat([family.delta("code", name) for name in SHAPES])
    base = torch.cat([family.models["base"][name].float().reshape(-1) for name in SHAPES])
    assert found["relative_delta"]["code"] == pytest.approx(relative(delta, base), rel=1e-9)
    assert (found["tensors"], found["elements"], found["sampled_share"]) == (len(SHAPES), delta.numel(), 1.0)
    assert set(found["cosine"]) == {("code", "law"), ("code", "math"), ("law", "math")}


def test_a_model_of_weight_zero_is_still_described(family: Family) -> None:
    found = exact(family, recipe("task_arithmetic", {"code": {"weight": 1.0}, "law": {"weight": 0.0}}))
    line = row(found.models, tensor="embed.weight", model="law")
    assert line["relative_delta"] > 0 and np.isnan(line["kept_share"])


def test_models_of_one_name_are_told_apart(family: Family) -> None:
    models = {"here/twin": family.models["code"], "there/twin": family.models["law"], "base": family.models["base"]}
    twins = family_of(models)
    found = exact(twins, recipe("task_arithmetic", {"here/twin": {"weight": 1.0}, "there/twin": {"weight": 1.0}}))
    assert found.model_names == ("twin", "twin (2)")


def test_a_method_that_needs_whole_tensors_says_so_in_a_sample(family: Family) -> None:
    plan = family.plan(recipe("linear"))
    method = plan.outputs[0].task.method  # type: ignore[attr-defined]
    before = method.preview
    method.preview = "exact"
    try:
        found = preview_plan(plan, sample=0.2)
    finally:
        method.preview = before
    assert set(found.exact_only) == {"layers.1.q.weight", "embed.weight", "head.bias"}
    assert np.isnan(row(found.tensors, tensor="layers.1.q.weight")["merged_norm"])
    assert row(found.models, tensor="layers.1.q.weight", model="law")["relative_delta"] > 0
    assert row(found.tensors, tensor="layers.0.q.weight")["merged_norm"] > 0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_impossible_shares_are_refused(family: Family, share: float) -> None:
    with pytest.raises(UserError, match="sample"):
        preview_plan(family.plan(recipe("linear")), sample=share)


def test_one_file_holds_all_figures_and_no_formulas(tmp_path: Path) -> None:
    tensors = {"=cmd|' /C calc'!A0": torch.ones(4), "@sum": torch.ones(4), "-x": torch.ones(4)}
    models = {"base": tensors, "+a": tensors, "b": {name: 2 * tensor for name, tensor in tensors.items()}}
    found = exact(family_of(models), recipe("task_arithmetic", {"+a": {"weight": 1.0}, "b": {"weight": -1.0}}))
    found.to_csv(tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [line["table"] for line in rows].count("models") == 6
    assert {line["table"] for line in rows} == {"models", "tensors", "cosines"}
    for line in rows:
        for column in ("tensor", "model", "role", "model_a", "model_b"):
            assert not line[column].startswith(("=", "+", "-", "@"))
    assert rows[0]["tensor"] == "'=cmd|' /C calc'!A0"
