"""Sliders and switches are drawn from a method's signature."""

from __future__ import annotations

import dataclasses

import gradio as gr
import pytest

from components import controls, text
from components.draft import MAX_MODELS, Draft
from merger import ConfigParameterDef

FAMILY = Draft(("m/base", "m/code", "m/math"), base=0)


@pytest.fixture(scope="module")
def pool() -> controls.Pool:
    with gr.Blocks():
        return controls.build()


def values_of(pool: controls.Pool, updates: list) -> list:
    """What the controls hold after updates, in the order of `Pool.inputs`."""
    moved = updates[MAX_MODELS : MAX_MODELS + len(pool.inputs)]
    return [getattr(update, "value", None) for update in moved]


def visible(updates: list) -> list:
    return [update.label for update in updates if update.visible and getattr(update, "label", None)]


def test_weight_and_density_appear_for_every_model_but_the_base(methods):
    assert visible(controls.shown(FAMILY, methods["ties"])) == [
        "code · Weight",
        "code · Density",
        "math · Weight",
        "math · Density",
        "Lambda",
        "Normalize weights",
        "Rescale what is kept",
    ]


def test_a_method_without_density_hides_it(methods):
    labels = visible(controls.shown(FAMILY, methods["task_arithmetic"]))
    assert "code · Weight" in labels
    assert not any("Density" in label for label in labels)


def test_slerp_has_one_slider_with_its_bounds(methods):
    updates = [update for update in controls.shown(FAMILY, methods["slerp"]) if isinstance(update, gr.Slider)]
    (shown,) = [update for update in updates if update.visible]
    assert (shown.minimum, shown.maximum, shown.value) == (0, 1, 0.5)


@pytest.mark.parametrize("name", ["linear", "slerp", "task_arithmetic", "ties", "dare_ties", "della", "passthrough"])
def test_reading_untouched_controls_gives_the_draft_back(methods, pool, name):
    facts = methods[name]
    draft = FAMILY.settings(facts)
    read = controls.read(draft, facts, values_of(pool, controls.shown(draft, facts)))
    experts = [tuple(values[1:]) for values in read.per_model.values()]
    assert experts == [tuple(values[1:]) for values in draft.per_model.values()]
    assert read.parameters == draft.parameters


@pytest.mark.parametrize(
    ("typed", "counts_as"), [(None, 0), ("", 0), (5, 2), (-3, 0), (float("nan"), 0), (float("inf"), 0), (1.5, 1.5)]
)
def test_a_number_box_counts_as_what_the_page_makes_of_it(methods, pool, typed, counts_as):
    values = values_of(pool, controls.shown(FAMILY, methods["task_arithmetic"]))
    values[controls.PER_MODEL] = typed
    assert controls.read(FAMILY, methods["task_arithmetic"], values).per_model["weight"][1] == counts_as


def test_a_slider_that_was_widened_for_its_value_keeps_its_ends(methods, pool):
    wide = dataclasses.replace(FAMILY, parameters={"lambda": 3.0})
    values = values_of(pool, controls.shown(wide, methods["task_arithmetic"]))
    place = pool.inputs.index(pool.numbers[0])
    values[place] = 99
    assert controls.read(wide, methods["task_arithmetic"], values).parameters["lambda"] == 3


def test_a_long_name_is_cut_in_a_sliders_label(methods, pool):
    long = dataclasses.replace(FAMILY, models=(FAMILY.models[0], "n" * 200, *FAMILY.models[2:]))
    updates = controls.shown(long, methods["task_arithmetic"])
    (label,) = (label for label in visible(updates) if "…" in label)
    assert label.endswith("· Weight")
    assert len(label) < 60


def test_every_registered_method_fits_or_says_what_does_not(methods):
    for facts in methods.values():
        controls.shown(FAMILY, facts)
        assert not controls.left_out(facts)


def test_a_tiny_default_can_be_set_with_the_slider(methods):
    updates = controls.shown(FAMILY, methods["karcher"])
    (tol,) = [update for update in updates if getattr(update, "label", None) == "Tolerance"]
    assert (tol.minimum, tol.maximum, tol.value) == (0, pytest.approx(1e-3), 1e-5)
    assert tol.step == pytest.approx(1e-5)


def test_every_slider_can_rest_where_it_starts(methods):
    for facts in methods.values():
        for update in controls.shown(FAMILY, facts):
            if isinstance(update, gr.Slider) and update.visible:
                steps = (update.value - update.minimum) / update.step
                assert steps == pytest.approx(round(steps)), (facts.name, update.label)
                assert update.value in (0, update.minimum) or steps >= 1, (facts.name, update.label)


def test_the_help_of_a_models_sliders_stands_at_the_first_of_them(methods):
    updates = [update for update in controls.shown(FAMILY, methods["breadcrumbs"]) if isinstance(update, gr.Slider)]
    told = [bool(update.info) for update in updates if update.visible]
    assert told == [True, True, True, False, False, False, True]


def test_every_parameter_has_a_label_of_its_own_and_help(methods):
    for facts in methods.values():
        shown = [parameter for group in controls.slots(facts) for parameter in group]
        labels = [text.parameter_label(parameter.name) for parameter in shown]
        assert len(set(labels)) == len(labels)
        assert all(parameter.help for parameter in shown), facts.name
        assert all(parameter.name in text.PARAMETER_LABELS for parameter in shown), facts.name


def test_a_slider_reaches_a_value_beyond_its_usual_range():
    weight = ConfigParameterDef("weight", float, required=True)
    assert controls.span(weight, 1) == (0, 2)
    assert controls.span(weight, -0.5) == (-0.5, 2)
    assert controls.span(weight, 3) == (0, 3)
