"""Writing a recipe and reading it again gives the same recipe."""

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.recipe import Filtered, ModelEntry, Recipe, Slice, TokenizerRule, TokenRule
from merger.types import ModelReference

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(
    lambda text: text.strip()
)
tricky = st.sampled_from(
    (
        *("no", "1e-5", ".4", "1.", "null", "~", "2024-01-01", "0x1", "1_0", "yes", "union", "base", "a+b", "a@b"),
        *("model:a", "a: b", "# c", "- x", "*", "&a", "!t", "<<", "=", "'", '"', "@x", "{a}", "[a]", "-", "?"),
        *("line\nbreak", "tab\there", " pad "),
    )
)
text = st.one_of(words, tricky)
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(finite, st.booleans(), st.integers(-(2**62), 2**62), text)
gradients = st.lists(finite, min_size=1, max_size=4).map(tuple)
lines = st.builds(Filtered, st.none() | text, st.one_of(scalars, gradients))
values = st.one_of(scalars, gradients, st.lists(lines, min_size=1, max_size=3).map(tuple))
parameters = st.dictionaries(text, values, max_size=3)
plain = st.builds(ModelReference, text, st.none() | text)
references = st.builds(ModelReference, text, st.none() | text, st.none() | plain)
entries = st.builds(ModelEntry, references, parameters)
token_rules = st.one_of(
    st.builds(TokenRule, st.none() | references | st.just("zero"), force=st.booleans()),
    st.builds(TokenRule, references, token=text),
    st.builds(TokenRule, references, token_id=st.integers(0, 10**6)),
)
sources = st.one_of(st.none(), st.sampled_from(["union", "base"]), references)
tokenizers = st.builds(
    TokenizerRule, sources, st.dictionaries(text, token_rules, max_size=2), st.none() | st.integers(1, 512)
)


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    length = draw(st.integers(1, 40))
    starts = draw(st.lists(st.integers(0, 100), min_size=1, max_size=3))
    chosen = [ModelEntry(draw(references), draw(parameters), (start, start + length)) for start in starts]
    return Slice(tuple(chosen), draw(parameters), draw(st.none() | references))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    whole = draw(st.booleans())
    use_rule = draw(st.booleans())
    dtypes = st.sampled_from([None, "float32", "bfloat16"])
    return Recipe(
        merge_method=draw(text),
        models=tuple(draw(st.lists(entries, min_size=1, max_size=3))) if whole else (),
        slices=() if whole else tuple(draw(st.lists(slices(), min_size=1, max_size=3))),
        base_model=draw(st.none() | references),
        parameters=draw(parameters),
        dtype=draw(dtypes),
        out_dtype=draw(dtypes),
        seed=draw(st.integers(0, 2**63 - 1)),
        tokenizer_source=None if use_rule else draw(sources),
        tokenizer=draw(tokenizers) if use_rule else None,
        chat_template=draw(st.none() | text),
        name=draw(st.none() | text),
    )


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_reading_what_was_written_gives_the_same_recipe(recipe: Recipe) -> None:
    written = recipe.to_yaml()
    again = Recipe.from_yaml(written)
    assert again == recipe
    assert types(again) == types(recipe)
    assert again.to_yaml() == written


def types(recipe: Recipe) -> list[object]:
    """Equality takes true for 1; the text must keep them apart."""
    levels = [recipe.parameters, *(entry.parameters for entry in recipe.entries())]
    return [{name: type(value) for name, value in level.items()} for level in levels]


@settings(max_examples=50, deadline=None)
@given(st.lists(finite, min_size=1, max_size=5))
def test_other_yaml_readers_see_the_same_floats(gradient: list[float]) -> None:
    recipe = Recipe.build("linear", ["a"], parameters={"weight": gradient})
    assert yaml.safe_load(recipe.to_yaml())["parameters"]["weight"] == gradient


def test_equal_recipes_are_written_alike_in_a_fixed_order() -> None:
    settings_in_two_orders = (
        ({"weight": 1e-5, "density": [1, 0.5]}, {"normalize": True, "lambda": 1.0}),
        ({"density": [1, 0.5], "weight": 1e-5}, {"lambda": 1.0, "normalize": True}),
    )
    for own, shared in settings_in_two_orders:
        base = ModelReference("org/b+c")
        recipe = Recipe.build("ties", [("org/a", own)], base=base, parameters=shared, seed=3, dtype="float32")
        assert recipe.to_yaml() == (
            "merge_method: ties\n"
            "base_model:\n"
            "  model:\n"
            "    path: org/b+c\n"
            "models:\n"
            "- model: org/a\n"
            "  parameters:\n"
            "    density: [1.0, 0.5]\n"
            "    weight: 1.0e-05\n"
            "parameters:\n"
            "  lambda: 1.0\n"
            "  normalize: true\n"
            "dtype: float32\n"
            "seed: 3\n"
        )
