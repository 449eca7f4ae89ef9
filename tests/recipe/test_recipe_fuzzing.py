"""Whatever the input: a recipe, or one RecipeError that says what is wrong."""

import contextlib

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.errors import RecipeError
from merger.recipe import Recipe, load_series
from merger.recipe.names import FIELD_PARAMETERS, KEYS
from tests.recipe.field_vocabulary import VOCABULARY

names = st.sampled_from([*FIELD_PARAMETERS, *{key for keys in KEYS.values() for key in keys}, *VOCABULARY.methods])
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), names, st.text(max_size=5))
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=3), inner, max_size=4),
    max_leaves=25,
)
recipes = st.fixed_dictionaries(
    {"merge_method": st.sampled_from(sorted(VOCABULARY.methods))},
    optional={key: documents for key in KEYS["recipe"] if key != "merge_method"},
)


def check(text: str) -> None:
    for lenient in (False, True):
        with contextlib.suppress(RecipeError):
            recipe = Recipe.from_yaml(text, VOCABULARY, lenient=lenient)
            assert Recipe.from_yaml(recipe.to_yaml(), VOCABULARY) == recipe


@settings(max_examples=150, deadline=None)
@given(recipes | documents)
def test_any_document(document: object) -> None:
    check(yaml.safe_dump(document))


@settings(max_examples=100, deadline=None)
@given(st.text() | st.text("{}[]:,-&*!|>'\"%@`#?\n \tab1."))
def test_any_text(text: str) -> None:
    check(text)


@settings(max_examples=100, deadline=None)
@given(recipes)
def test_any_python_values(values: dict[str, object]) -> None:
    with contextlib.suppress(RecipeError):
        Recipe.build(
            **{
                "base" if key == "base_model" else key: value
                for key, value in values.items()
                if key not in ("models", "slices")
            }
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(recipes | documents, min_size=1, max_size=3))
def test_any_series(values: list[object]) -> None:
    with contextlib.suppress(RecipeError):
        found = load_series(yaml.safe_dump_all(values, explicit_start=True), VOCABULARY)
        written = "---\n".join(recipe.to_yaml() for recipe in found)
        assert load_series(written, VOCABULARY) == found
