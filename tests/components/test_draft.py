"""The draft: what is about to be merged, as one value."""

from __future__ import annotations

import dataclasses

import pytest

from components.draft import MAX_MODELS, Draft
from merger import UserError

THREE = Draft(("m/base", "m/code", "m/math"), base=0, per_model={"weight": (1.0, 0.5, 0.25)})


def test_models_that_share_a_folder_name_are_told_apart_by_the_folder_above():
    assert Draft(("a/twin", "b/twin", "c/other")).names == ("a/twin", "b/twin", "other")


def test_a_new_model_starts_like_the_last_one():
    grown = THREE.with_model("m/law")
    assert grown.models[-1] == "m/law"
    assert grown.per_model["weight"] == (1.0, 0.5, 0.25, 0.25)


def test_the_first_model_starts_anew():
    empty = dataclasses.replace(THREE, models=(), base=None, per_model={"weight": ()}, parameters={"lambda": 0.3})
    grown = empty.with_model("m/law")
    assert (grown.models, grown.parameters, grown.per_model) == (("m/law",), {}, {})


def test_the_same_model_is_not_added_twice():
    with pytest.raises(UserError, match="already in the list"):
        THREE.with_model("m/code")


def test_there_is_room_for_eight_models():
    full = Draft(tuple(f"m/{place}" for place in range(MAX_MODELS)))
    with pytest.raises(UserError, match="holds 8 models"):
        full.with_model("m/ninth")


def test_removing_a_model_keeps_base_and_settings_of_the_others():
    left = dataclasses.replace(THREE, base=2).without_model(1)
    assert (left.models, left.base) == (("m/base", "m/math"), 1)
    assert left.per_model["weight"] == (1.0, 0.25)


def test_removing_the_base_leaves_none():
    assert THREE.without_model(0).base is None


def test_without_a_base_changes_are_measured_from_the_first_model():
    assert THREE.compared == (1, 2)
    assert THREE.with_base(None).compared == (1, 2)
    assert THREE.with_base(2).compared == (0, 1)


def test_the_recipe_says_base_models_and_what_is_not_default(methods):
    draft = dataclasses.replace(
        THREE,
        method="ties",
        per_model={"weight": (1.0, 0.5, 0.25), "density": (1.0, 0.2, 1.0)},
        parameters={"lambda": 0.7},
    )
    recipe = draft.to_recipe(methods["ties"])
    assert str(recipe.base_model) == "m/base"
    assert [(str(entry.model), dict(entry.parameters)) for entry in recipe.models] == [
        ("m/code", {"weight": 0.5, "density": 0.2}),
        ("m/math", {"weight": 0.25}),
    ]
    assert dict(recipe.parameters) == {"lambda": 0.7}


def test_a_method_starts_with_its_own_defaults_where_nothing_was_changed(methods):
    arithmetic = Draft(("a", "b"), base=0).settings(methods["task_arithmetic"])
    assert arithmetic.parameters["normalize"] is False
    ties = arithmetic.without_defaults(methods["task_arithmetic"]).settings(methods["ties"])
    assert ties.parameters["normalize"] is True


def test_a_draft_survives_the_browsers_storage():
    assert Draft.from_json(THREE.to_json()) == THREE


@pytest.mark.parametrize(
    "stored",
    [
        None,
        7,
        [],
        {},
        {"version": 2},
        {"version": 1},
        {"version": 1, "models": 3},
        THREE.to_json() | {"per_model": [1]},
    ],
)
def test_what_is_no_draft_is_ignored(stored):
    assert Draft.from_json(stored) is None


def test_a_stored_base_outside_the_list_is_no_base():
    draft = Draft.from_json(THREE.to_json() | {"base": 7})
    assert draft is not None
    assert draft.base is None
