"""Recipes that people published get the verdict that a careful person would give."""

from pathlib import Path

import pytest

from merger.cli.unopened import problems_without_models
from merger.errors import Problem, RecipeError
from merger.recipe import Recipe
from tests.recipe.field_vocabulary import VOCABULARY

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
PUBLISHED = CASES / "recipes"
GOLDEN = CASES / "golden_merges" / "configs"

pytestmark = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published recipes are not part of the project")

LISTED_BASE = "the base is listed among the models"

SOUND = {
    "01": "one slice of whole models with gradients inside filters",
    "02": "weights that do not add up to one are divided by their sum",
    "03": "gradients and a filter for one model; int8_mask changes no value",
    "04": "a frankenmerge of 44 layers",
    "05": "a plain TIES merge",
    "06": "the base is the first of the two models, as people write it",
    "08": "a gradient of five numbers over any number of layers",
    "09": "the base is the second source of the slice",
    "10": "the base is listed without parameters, which it does not need",
    "13": "filters for layers of another architecture; whether they match is for the plan to say",
    "17": "SLERP of one model and a base that is not listed",
    "19": "model stock in a slice with the base among the sources",
    "22": "Windows paths with a space and a drive letter",
    "27": "1e-5 is a number",
    "30": "epsilon that differs between models",
    "33": "DARE without rescaling",
    "38": "tokenizer_source: base",
    "41": "a weight for all models; padding is looked at when the models are known",
    "44": "names of folders with a space",
    "52": "tokenizer_source is one of the models, here the base",
    "55": "one module, gradients, normalize: 1.0 for true and an empty tokenizer",
    "58": "breadcrumbs with gradients of five weights",
    "61": "a gradient in a list with one line and no filter",
    "67": "the base is listed without parameters",
    "70": "a slice with the base among the sources",
    "79": "tokenizer_source: union; the chat template is for the plan",
}
"""Accepted without a word, and what a reader may stumble over."""

NOTED = {"10", "19", "38", "55", "58", "67", "70"}
"""Those in which the base is listed and left out of the sum, which is noted."""

DOUBTFUL = {
    "64": {"revision": "dpo-v0"},
    "73": {"pad_to_multiple_of": "under `tokenizer`", "int8_mask": "under `parameters`"},
}
"""Accepted, since the merge is what was meant; each key in the wrong place is warned of, with a word of advice.

64: a revision beside the model can only mean that model's.  73: keys that mergekit overlooks in silence.
"""

REFUSED = {
    "12": {"nomalize": "normalize"},
    "47": {"layer_range": "[0, 32]"},
    "76": {"dype": "dtype"},
}
"""Refused; the key that is wrong, with a word of the advice.

12 and 76: a misspelt key would change the result.  47: -1 would mean no layers.
"""

WARNED_BESIDE = {"47": {"weight"}, "76": {"select_topk"}}


def read(number: str) -> Recipe:
    return Recipe.from_yaml((PUBLISHED / f"{number}.yml").read_text(), VOCABULARY)


def last_key(problem: Problem) -> str:
    return problem.where.split(".")[-1].split(", ")[-1]


def test_every_recipe_has_a_verdict() -> None:
    assert sorted([*SOUND, *DOUBTFUL, *REFUSED]) == sorted(path.stem for path in PUBLISHED.glob("*.yml"))


@pytest.mark.parametrize("number", SOUND)
def test_sound_recipes_are_accepted_without_a_word(number: str) -> None:
    recipe = read(number)
    assert recipe.problems == ()
    assert Recipe.from_yaml(recipe.to_yaml(), VOCABULARY) == recipe


@pytest.mark.parametrize("number", [*SOUND, *DOUBTFUL])
def test_methods_find_nothing_wrong_with_accepted_recipes(number: str) -> None:
    found = problems_without_models(read(number))
    assert [problem.level for problem in found] == (["note"] if number in NOTED else [])
    assert all(LISTED_BASE in problem.message for problem in found)


@pytest.mark.parametrize("number", DOUBTFUL)
def test_keys_in_the_wrong_place_are_warned_of(number: str) -> None:
    found = {last_key(problem): problem for problem in read(number).problems}
    assert found.keys() == DOUBTFUL[number].keys()
    for key, advice in DOUBTFUL[number].items():
        assert found[key].level == "warning"
        assert advice in str(found[key])


@pytest.mark.parametrize("number", REFUSED)
def test_wrong_recipes_are_refused_naming_the_key(number: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(number)
    errors = [problem for problem in caught.value.problems if problem.level == "error"]
    assert errors
    for key, advice in REFUSED[number].items():
        assert all(key in problem.where for problem in errors)
        assert all(advice in problem.hint for problem in errors)
    warned = {last_key(problem) for problem in caught.value.problems if problem not in errors}
    assert warned == WARNED_BESIDE.get(number, set())


def test_what_some_of_them_mean() -> None:
    assert read("27").parameters == {"max_iter": 10, "tol": 1e-5}
    assert read("44").models[0].model.path == "model 1"
    assert read("55").slices[0].sources[2].parameters == {}
    assert read("55").parameters == {"lambda": 1.0, "normalize": 1.0}
    assert read("64").slices[0].sources[0].model.revision == "dpo-v0"
    assert read("64").slices[1].sources[0].model.revision is None
    assert read("04").slices[1].sources[0].layer_range == (20, 40)
    assert str(read("73").tokenizer and read("73").tokenizer.source) == "base"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yml")), ids=lambda path: path.stem)
def test_recipes_of_the_golden_merges_are_accepted(path: Path) -> None:
    recipe = Recipe.from_yaml(path.read_text().replace("@ROOT@", "/models"), VOCABULARY)
    assert recipe.problems == ()
    assert Recipe.from_yaml(recipe.to_yaml(), VOCABULARY) == recipe
