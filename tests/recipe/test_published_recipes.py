"""Recipes that people published get the verdict that a careful person would give."""

from pathlib import Path

import pytest

from merger.errors import RecipeError
from merger.recipe import Recipe
from tests.recipe.field_vocabulary import VOCABULARY

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
PUBLISHED = CASES / "recipes"
GOLDEN = CASES / "golden_merges" / "configs"

pytestmark = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published recipes are not part of the project")

GOOD = (
    *("01", "02", "03", "04", "05", "06", "08", "09", "10", "13", "17", "19", "22"),
    *("27", "30", "33", "38", "41", "44", "52", "55", "58", "61", "67", "70", "79"),
)
DOUBTFUL = {
    "64": {"revision": "dpo-v0"},
    "73": {"pad_to_multiple_of": "under `tokenizer`", "int8_mask": "under `parameters`"},
}
"""Accepted; each key that stands in the wrong place is warned of, with a word of the advice."""

REFUSED = {
    "12": {"nomalize": "normalize"},
    "47": {"layer_range": "[0, 32]"},
    "76": {"dype": "dtype"},
}
"""Refused; the key that is wrong, with a word of the advice."""

WARNED_BESIDE = {"47": {"weight"}, "76": {"select_topk"}}


def read(number: str) -> Recipe:
    return Recipe.from_yaml((PUBLISHED / f"{number}.yml").read_text(), VOCABULARY)


def test_every_recipe_has_a_verdict() -> None:
    assert sorted([*GOOD, *DOUBTFUL, *REFUSED]) == sorted(path.stem for path in PUBLISHED.glob("*.yml"))


@pytest.mark.parametrize("number", GOOD)
def test_good_recipes_are_accepted_without_a_word(number: str) -> None:
    recipe = read(number)
    assert recipe.problems == ()
    assert Recipe.from_yaml(recipe.to_yaml(), VOCABULARY) == recipe


@pytest.mark.parametrize("number", DOUBTFUL)
def test_keys_in_the_wrong_place_are_warned_of(number: str) -> None:
    found = {problem.where.split(".")[-1].split(", ")[-1]: problem for problem in read(number).problems}
    assert found.keys() == DOUBTFUL[number].keys()
    for key, advice in DOUBTFUL[number].items():
        assert found[key].level == "warning"
        assert advice in str(found[key])


@pytest.mark.parametrize("number", REFUSED)
def test_wrong_recipes_are_refused_naming_the_key(number: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(number)
    errors = [problem for problem in caught.value.problems if problem.level == "error"]
    for key, advice in REFUSED[number].items():
        assert all(key in problem.where for problem in errors)
        assert all(advice in problem.hint for problem in errors)
    warned = {
        problem.where.split(".")[-1].split(", ")[-1] for problem in caught.value.problems if problem not in errors
    }
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
