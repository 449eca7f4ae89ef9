"""Mixing: every move answers with figures of the very merge that would run."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import merger
from components import demo, text
from components.demo_skills import family
from components.draft import Draft
from components.figures import MERGED
from components.live import WhatIf
from components.mix_panel import Mixer, about
from merger import UserError


@pytest.fixture(scope="module")
def mixer(what_if) -> Mixer:
    return Mixer(what_if)


def at_lambda(value: float) -> Draft:
    return dataclasses.replace(family(), parameters={"lambda": value})


def moved(mixer: Mixer, draft: Draft, chosen: str = MERGED) -> dict:
    """The answer to a move."""
    return json.loads(mixer.move(draft, chosen))


def test_the_demos_skills_come_and_go_with_lambda(mixer):
    skill = {value: float(moved(mixer, at_lambda(value))["strip"]["skill"].rstrip("%")) for value in (0.33, 0.7, 2.0)}
    assert skill[0.7] > skill[0.33] + 15
    assert skill[0.7] > skill[2.0] + 15


def test_the_map_shows_what_the_merge_changes(mixer):
    draft = at_lambda(0.7)
    preview = merger.preview(mixer.what_if.recipe(draft), exact=True).summary()
    change = moved(mixer, draft)["strip"]["change"]
    assert float(change.rstrip("%")) == pytest.approx(100 * preview["merged_relative"], abs=0.3)


def test_the_map_can_show_one_model(mixer):
    change = {chosen: moved(mixer, at_lambda(0.7), chosen)["strip"]["change"] for chosen in (MERGED, "0", "1")}
    assert len(set(change.values())) == 3


def test_density_moves_what_is_kept(mixer):
    ties = dataclasses.replace(family(), method="ties", per_model={"weight": (1.0,) * 4, "density": (0.3,) * 4})
    answer = moved(mixer, ties)
    kept = np.array([trace["y"] for trace in answer["figures"]["kept"]["data"]], float)
    assert np.median(kept) == pytest.approx(0.3, abs=0.02)


def test_settings_that_contradict_each_other_are_said_instead_of_drawn(mixer):
    slerp = dataclasses.replace(family(), method="slerp")
    answer = moved(mixer, slerp)
    assert "exactly 1 model" in " ".join(answer["problem"])
    assert "figures" not in answer


def test_weights_without_sum_are_said_instead_of_drawn(mixer):
    linear = dataclasses.replace(family(), method="linear", per_model={"weight": (0.0,) * 4})
    assert moved(mixer, linear)["problem"]


def test_when_the_hand_rests_the_draft_is_kept_and_its_recipe_written(mixer):
    draft = at_lambda(0.7)
    message, kept, yaml = mixer.settle(draft, MERGED)
    assert json.loads(message)["final"] is True
    assert json.loads(message)["say"].startswith("The merge gets")
    assert Draft.from_json(kept) == draft
    assert "lambda: 0.7" in yaml


def test_moving_touches_no_file(mixer, monkeypatch):
    draft = dataclasses.replace(at_lambda(0.9), method="ties")
    mixer.what_if.samples(draft)
    monkeypatch.setattr(merger, "take_sample", lambda *_, **__: pytest.fail("the models were read again"))
    assert "figures" in moved(mixer, draft)


def test_the_lead_says_what_to_drag(mixer):
    assert "near 0.7" in mixer.lead(family())
    assert "Lambda" not in mixer.lead(dataclasses.replace(family(), method="linear"))
    ties = mixer.lead(dataclasses.replace(family(), method="ties"))
    assert "Density" in ties
    assert "0.7" not in ties
    assert "0.7" not in mixer.lead(family().without_model(3))


def test_a_demo_that_cannot_be_tried_out_is_said_and_the_controls_come(methods, monkeypatch):
    monkeypatch.setattr(demo, "accuracy", lambda _: 1 / 0)
    mixer = Mixer(WhatIf(methods))
    assert mixer.shown(family())
    board, kept = mixer.draw(family())
    assert json.loads(board.value)["problem"][0] == "These settings cannot be shown."
    assert Draft.from_json(kept) == family()


@pytest.mark.parametrize("method", ["ties", "dare_linear", "dare_ties", "della", "della_linear"])
def test_a_method_that_can_drop_changes_starts_by_dropping_half(mixer, method):
    draft = mixer.choose_method(family(), method)
    assert draft.per_model["density"] == (0.5,) * 4
    assert "density: 0.5" in mixer.yaml(draft)
    assert float(moved(mixer, draft)["strip"]["kept"].rstrip("%")) == pytest.approx(50, abs=3)


def test_a_method_says_what_it_needs(methods):
    draft = family()
    assert "does not mix base" in about(draft, methods["linear"])
    assert "needs a base" in about(draft.with_base(None), methods["ties"])
    assert "Remove 2 in step 1" in about(draft, methods["slerp"])
    assert "exactly 2 models besides the base; there are 3" in about(draft, methods["nuslerp"])
    assert "at least 2 models besides the base; there is 1" in about(
        Draft(draft.models[:2], base=0), methods["model_stock"]
    )


def test_another_method_keeps_what_was_changed(mixer):
    draft = mixer.choose_method(at_lambda(0.7).settings(mixer.what_if.methods["task_arithmetic"]), "ties")
    assert (draft.method, draft.parameters["lambda"], draft.parameters["normalize"]) == ("ties", 0.7, True)


START = {"slerp": 0.5, "nearswap": 0.001, "ram": 1e-5, "ramplus_tl": 1e-5}


@pytest.mark.parametrize(
    ("start", "parameter", "value", "target", "arrives"),
    [
        ("nearswap", "t", 0.05, "slerp", 0.5),
        ("slerp", "t", 0.9, "nearswap", 0.001),
        ("della", "epsilon", 0.3, "ram", 1e-5),
        ("ram", "epsilon", 1e-4, "ramplus_tl", 1e-4),
    ],
)
def test_a_name_that_means_something_else_elsewhere_starts_anew(mixer, start, parameter, value, target, arrives):
    methods = mixer.what_if.methods
    draft = dataclasses.replace(family(), method=start).settings(methods[start])
    if parameter in draft.parameters:
        draft = dataclasses.replace(draft, parameters={parameter: value})
    else:
        draft = dataclasses.replace(draft, per_model={parameter: (value,) * 4})
    assert mixer.choose_method(draft, target).parameters[parameter] == arrives
    through = mixer.choose_method(mixer.choose_method(draft, "sce"), target).parameters[parameter]
    assert through == pytest.approx(START[target])


@pytest.mark.parametrize("method", ["tsv_m", "iso_c", "iso_cts", "pcb"])
def test_figures_of_methods_that_need_whole_tensors_do_not_jump_when_the_hand_rests(mixer, method):
    draft = dataclasses.replace(family(), method=method)
    message, _, _ = mixer.settle(draft, MERGED)
    assert moved(mixer, draft)["strip"]["change"] == json.loads(message)["strip"]["change"]


def test_tensors_that_are_too_large_for_a_method_are_said(mixer, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("base", "a", "b"):
        (tmp_path / name).mkdir()
        tensors = {"layers.0.weight": generator.normal(size=(300, 300)), "layers.0.bias": generator.normal(size=300)}
        save_file({key: x.astype(np.float32) for key, x in tensors.items()}, tmp_path / name / "model.safetensors")
    draft = Draft(tuple(str(tmp_path / name) for name in ("base", "a", "b")), base=0, method="iso_c")
    answer = moved(mixer, draft)
    assert answer["strip"]["change"] == "–"
    assert "needs whole tensors" in answer["figures"]["change"]["sentence"]
    assert "needs whole" not in moved(mixer, draft, "0")["figures"]["change"]["sentence"]


@pytest.mark.parametrize("method", ["slerp", "nearswap", "arcee_fusion", "nuslerp", "passthrough"])
def test_too_many_models_are_said_with_what_to_do(mixer, methods, method):
    answer = moved(mixer, dataclasses.replace(family(), method=method))
    assert answer["problem"][1].startswith(f"{methods[method].pretty_name} merges exactly")
    assert answer["problem"][2].startswith("Remove ")
    assert answer["problem"][2] in about(dataclasses.replace(family(), method=method), methods[method])


def test_every_method_of_the_engine_has_its_place_in_the_list(methods):
    choices = text.method_choices(methods)
    assert [name for _, name in choices][:2] == ["task_arithmetic", "ties"]
    assert sorted(name for _, name in choices) == sorted(methods)
    assert len({label for label, _ in choices}) == len(choices)
    assert set(text.METHOD_ORDER) <= set(methods)
    assert dict(map(reversed, choices))["nuslerp"] == "NuSLERP (2 models)"


def test_figures_work_for_other_models_than_the_demo(mixer, tiny_family):
    draft = Draft(
        tuple(str(folder) for folder in (tiny_family.base, *tiny_family.experts)), base=0, parameters={"lambda": 1.0}
    )
    answer = moved(mixer, draft)
    assert set(answer["figures"]) == {"change", "agreement", "cosine", "kept"}
    assert set(answer["strip"]) == {"change", "agreement", "kept", "surviving"}


def test_on_a_public_page_only_the_demo_can_be_opened(mixer, tiny_family, monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/mixdesk")
    assert "figures" in moved(mixer, at_lambda(0.5))
    foreign = Draft((str(tiny_family.base), str(tiny_family.experts[0])), base=0)
    with pytest.raises(UserError, match="not open here"):
        mixer.what_if.recipe(foreign)
    with pytest.raises(UserError, match="not open here"):
        mixer.what_if.recipe(
            dataclasses.replace(family(), pinned=foreign.to_recipe(mixer.what_if.methods["ties"]).to_yaml())
        )


def test_a_recipe_that_stacks_layers_leaves_the_samples_of_others_alone(mixer):
    models = family().models[:2]
    sources = "".join(f"- sources:\n  - {{model: {model}, layer_range: [0, 1]}}\n" for model in models)
    stacked = Draft(models, method="passthrough", pinned=f"merge_method: passthrough\nslices:\n{sources}")
    assert "put together from" in moved(mixer, stacked)["figures"]["change"]["sentence"]
    assert "figures" in moved(mixer, Draft(models, method="linear"))


def test_a_base_alone_is_no_recipe(mixer):
    alone = Draft(family().models[:1], base=0, method="linear")
    assert "nothing but the base" in " ".join(moved(mixer, alone)["problem"])
