"""Recipes typed as YAML: shown by the controls, or kept as they are."""

from __future__ import annotations

import pytest

from components.recipes import draft_of
from merger import RecipeError, UserError

SIMPLE = """
merge_method: ties
base_model: ./base
dtype: bfloat16
models:
- model: ./code
  parameters: {weight: 0.5, density: 0.3}
- model: ./math
parameters: {weight: 0.7, lambda: 0.9}
"""


def test_a_simple_recipe_moves_the_controls(methods):
    draft = draft_of(SIMPLE, methods)
    assert (draft.models, draft.base, draft.method) == (("./code", "./math", "./base"), 2, "ties")
    assert draft.per_model["weight"][:2] == (0.5, 0.7)
    assert draft.per_model["density"][:2] == (0.3, 1.0)
    assert draft.parameters["lambda"] == 0.9
    assert (draft.dtype, draft.pinned) == ("bfloat16", None)


def test_applying_what_the_page_wrote_changes_nothing(methods):
    recipe = draft_of(SIMPLE, methods).to_recipe(methods["ties"])
    assert draft_of(recipe.to_yaml(), methods).to_recipe(methods["ties"]) == recipe


@pytest.mark.parametrize(
    "line",
    [
        "- {model: ./law, parameters: {weight: [0, 1]}}",
        "- {model: ./law, parameters: {weight: [{filter: mlp, value: 0.2}, {value: 0.5}]}}",
        "- {model: ./code, parameters: {weight: 0.1}}",
    ],
    ids=["gradient", "filter", "a model twice"],
)
def test_what_sliders_cannot_show_is_pinned(methods, line):
    text = SIMPLE.replace("- model: ./math", f"{line}\n- model: ./math")
    draft = draft_of(text, methods)
    assert draft.pinned == text.strip()
    assert "./base" in draft.models


def test_an_unknown_key_is_explained(methods):
    with pytest.raises(RecipeError, match="lambda"):
        draft_of(SIMPLE.replace("lambda", "lamda"), methods)


def test_a_file_name_is_not_opened(methods, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SIMPLE)
    with pytest.raises(RecipeError):
        draft_of(str(recipe), methods)


def test_nine_models_do_not_fit(methods):
    listed = "\n".join(f"- {{model: ./m{place}, parameters: {{weight: 1}}}}" for place in range(9))
    with pytest.raises(UserError, match="names 9 models"):
        draft_of(f"merge_method: linear\nmodels:\n{listed}", methods)
