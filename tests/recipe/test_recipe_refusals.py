"""What is refused or warned of, in which words and where."""

import pytest

from merger.errors import RecipeError
from merger.recipe import Recipe
from tests.recipe.field_vocabulary import VOCABULARY


def problems(text: str, **options: bool) -> list[tuple[str, str]]:
    """Level and words of everything that is found."""
    try:
        found = Recipe.from_yaml(text, VOCABULARY, **options).problems
    except RecipeError as error:
        found = error.problems
    return [(problem.level, str(problem)) for problem in found]


def refusal(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.from_yaml(text, VOCABULARY)
    return str(caught.value)


def linear(rest: str, models: str = "[a, b]") -> str:
    return f"merge_method: linear\nmodels: {models}\n{rest}"


@pytest.mark.parametrize(
    ("text", "wrong", "suggestion"),
    [
        ("merge_method: dare-ties\nmodels: [a]", "dare-ties", "dare_ties"),
        ("merge_method: linaer\nmodels: [a]", "linaer", "linear"),
        ("merge-method: linear\nmodels: [a]", "merge-method", "merge_method"),
        (linear("dype: float16"), "dype", "dtype"),
        (linear("parameters: {nomalize: true}"), "nomalize", "normalize"),
        ("merge_method: linear\nmodels:\n- model: a\n  parameters: {wieght: 1}", "wieght", "weight"),
        ("merge_method: linear\nmodels:\n- modle: a", "modle", "model"),
        ("merge_method: linear\nmodels:\n- model: a\n  wieght: 1", "wieght", "weight', under `parameters`"),
        ("merge_method: linear\nslices:\n- source: [a]", "source", "sources"),
        (linear("tokenizer: {sorce: union}"), "sorce", "source"),
        (linear("dtype: bf16"), "bf16", "bfloat16"),
        (linear("dtype: floaty32"), "floaty32", "float32"),
    ],
)
def test_a_name_that_nobody_knows_is_refused_with_the_nearest_one(text: str, wrong: str, suggestion: str) -> None:
    message = refusal(text)
    assert f"'{wrong}'" in message
    assert suggestion in message


def test_a_misspelled_key_is_not_also_reported_as_missing() -> None:
    assert len(problems("merge-method: linear\nmodels: [a]")) == 1
    assert len(problems("merge_method: linear\nmodles: [a]")) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (linear("parameters: {density: 0.5}"), "'density' has no effect with linear. It is for breadcrumbs, "),
        (linear("weight: 0.5"), "'weight' has no effect at the top of the recipe. It belongs under `parameters`."),
        (linear("int8_mask: true"), "'int8_mask' has no effect at the top of the recipe."),
        (linear("pad_to_multiple_of: 8"), "It belongs under `tokenizer`."),
        (linear("parameters: {dtype: float16}"), "'dtype' is not a parameter. It belongs at the top of the recipe."),
        (linear("", "[{model: a, dtype: float16}]"), "'dtype' has no effect in an entry of `models`."),
        (linear("", "[{model: a, layer_range: [0, 1]}]"), "'layer_range' has no effect in an entry of `models`."),
        (linear("", "[{model: a, parameters: {normalize: true}}]"), "'normalize' is one value for all models"),
        (linear("parameters: {weight: [{value: 1}, {filter: mlp, value: 2}]}"), "This line is never reached"),
        (linear("", "[{model: {path: a, override_architecture: X}}]"), "'override_architecture' has no effect"),
    ],
)
def test_a_known_name_without_effect_is_a_warning(text: str, words: str) -> None:
    (found,) = problems(text)
    assert found[0] == "warning"
    assert words in found[1]


def test_names_without_effect_do_not_stay_in_the_recipe() -> None:
    recipe = Recipe.from_yaml(linear("parameters: {density: 0.5, weight: 1}"), VOCABULARY)
    assert recipe.parameters == {"weight": 1}
    assert Recipe.from_yaml(recipe.to_yaml(), VOCABULARY).problems == ()


def test_a_per_model_parameter_at_the_top_is_a_default_for_all_models() -> None:
    assert problems(linear("parameters: {weight: 0.5}")) == []


def test_a_revision_beside_a_model_is_heeded_with_a_warning() -> None:
    recipe = Recipe.from_yaml(linear("", "[{model: org/a, revision: 0123}]"), VOCABULARY)
    assert recipe.models[0].model.revision == "0123"
    assert [problem.level for problem in recipe.problems] == ["warning"]
    assert "model: org/a@0123" in recipe.problems[0].hint


def test_lenient_turns_refused_names_into_warnings() -> None:
    text = (
        "merge_method: dare-ties\nmodels:\n- model: a\n  parameters: {wieght: 1, density: 1}\nbase_model: b\nfoo: 1\n"
    )
    with pytest.raises(RecipeError):
        Recipe.from_yaml(text, VOCABULARY)
    recipe = Recipe.from_yaml(text, VOCABULARY, lenient=True)
    assert recipe.merge_method == "dare_ties"
    assert recipe.models[0].parameters == {"density": 1}
    assert [problem.level for problem in recipe.problems] == ["warning"] * 3


def test_lenient_does_not_guess_another_method() -> None:
    assert [level for level, _ in problems("merge_method: slrp\nmodels: [a]", lenient=True)] == ["error"]


def test_all_problems_come_together_in_the_order_of_their_lines() -> None:
    text = """merge_method: tise
modles: [a]
models:
- model: a
  parameters:
    weight: [1, two]
    wieght: 1
- parameters: {density: .nan}
dtype: float8
seed: -1
"""
    message = refusal(text).splitlines()
    expected = ["line 1", "line 2", "line 6", "line 7", "line 8", "line 8", "line 9", "line 10"]
    assert [line.split(",")[1].strip() for line in message] == expected
    assert "recipe, line 6, models[0].parameters.weight[1]: Expected a number, found text ('two')." in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expected a recipe: a mapping"),
        ("[1, 2]", "Expected a recipe: a mapping that begins like 'merge_method: linear', found a list."),
        ("models: [a]", "The recipe has no merge_method."),
        ("merge_method: linear", "The recipe names no models. Add 'models' or 'slices'."),
        (linear("", "[]"), "The list is empty"),
        (linear("", "3"), "Expected models, each like '- model: name', found a number ('3')."),
        (linear("", "[{parameters: {weight: 1}}]"), "This entry names no model."),
        (linear("", "[{model: }]"), "Expected the name of a model, found nothing."),
        (linear("", "[{model: [a]}]"), "Expected the name of a model, found a list."),
        (linear("", "['@main']"), "names no model"),
        (linear("", "[{model: {revision: x}}]"), "either 'path' or 'model'"),
        (linear("slices: [{sources: [{model: a, layer_range: [0, 1]}]}]"), "models and slices exclude each other"),
        (linear("parameters: [1]"), "Expected a mapping of parameters, found a list."),
        (linear("parameters: {weight: }"), "found nothing"),
        (linear("parameters: {weight: []}"), "The list is empty; expected numbers."),
        (linear("parameters: {weight: [1, true]}"), "Expected a number, found true or false ('true')."),
        (linear("parameters: {weight: [[1]]}"), "Expected a number, found a list."),
        (linear("parameters: {weight: [{filter: mlp}]}"), "needs a 'value'"),
        (
            linear("parameters: {weight: [{value: 1}, 2]}"),
            "Expected a mapping with 'filter' and 'value', found a number",
        ),
        (linear("parameters: {weight: [{value: [{value: 1}]}]}"), "Expected a number, found a mapping."),
        (linear("parameters: {weight: .nan}"), "'.nan' is not a finite number"),
        (linear("parameters: {weight: [1, -.inf]}"), "'-.inf' is not a finite number"),
        (linear("parameters: {weight: 1e999}"), "'1e999' is not a finite number"),
        (linear(f"parameters: {{weight: {'9' * 5000}}}"), "is not a finite number"),
        (linear("seed: 1.5"), "Expected a whole number from 0, found a number ('1.5')."),
        (linear("seed: true"), "Expected a whole number"),
        (linear("tokenizer: union"), "Write 'tokenizer: {source: union}'."),
        (linear("tokenizer: {source: union}\ntokenizer_source: base"), "exclude each other"),
        (linear("tokenizer: {pad_to_multiple_of: 0}"), "Expected a whole number from 1"),
        (linear("tokenizer: {tokens: {x: {source: {kind: model_token, model: a}}}}"), "either 'token' or 'token_id'"),
        (linear("chat_template: []"), "found a list"),
        ("merge_method: linear\nmodules: {}", "The recipe names no models."),
        ("merge_method: linear\nmodules: {text: {models: [a]}, vision: {models: [a]}}", "2 modules (text, vision)"),
        ("merge_method: linear\nmodules: {text: {}}", "A module needs either 'models' or 'slices'."),
    ],
)
def test_wrong_values_are_refused_saying_what_is_expected(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ("[{model: a}]", "needs a layer_range"),
        ("[{model: a, layer_range: [0]}]", "Expected two whole numbers"),
        ("[{model: a, layer_range: [0, 1.5]}]", "Expected two whole numbers"),
        ("[{model: a, layer_range: [0, -1]}]", "layer_range [0, -1] counts from the end, which is not done here"),
        ("[{model: a, layer_range: [4, 3]}]", "layer_range [4, 3] holds no layers"),
        ("[{model: a, layer_range: [3, 3]}]", "layer_range [3, 3] holds no layers"),
        ("[{model: a, layer_range: [-1, 3]}]", "layer_range [-1, 3] counts from the end"),
        (
            "[{model: a, layer_range: [0, 3]}, {model: b, layer_range: [0, 4]}]",
            "The sources of a slice differ in their number of layers: a 3, b 4.",
        ),
        ("", "A slice needs 'sources'."),
    ],
)
def test_slices_that_cannot_be_built_are_refused(sources: str, words: str) -> None:
    assert words in refusal(f"merge_method: linear\nslices:\n- sources: {sources}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x 1\nb: *x", "line 1: Anchors (&) and aliases (*) are refused."),
        ("a: *x", "line 1: Anchors (&) and aliases (*) are refused."),
        ("a: !!python/object:os.system 1", "The tag 'tag:yaml.org,2002:python/object:os.system' is refused."),
        ("a: !!str 1", "is refused."),
        ("a: " + "[" * 25 + "]" * 25, "nested more than 20 deep"),
        ("a: " + "[" * 100_000, "nested more than 20 deep"),
        ("a: [" + "1," * 10_001 + "]", "more than 10000 values"),
        ("a: '" + "x" * 262_144 + "'", "262149 bytes long; at most 262144"),
        ("merge_method: linear\nmodels: [a]\n---\nmerge_method: slerp", "line 3: A second document begins here"),
        ("a: 1\n b: 2", "line 2: This is not YAML: mapping values are not allowed here."),
        ("a: [1", "This is not YAML"),
        ("a:\t- 1\n\tb: 1", "This is not YAML"),
        ("a: \x00", "This is not YAML: unacceptable character"),
        ("? [a]\n: 1", "A key must be one word."),
        (
            "merge_method: linear\nmodels: [a]\nmerge_method: ties",
            "line 3: 'merge_method' stands twice, first in line 1.",
        ),
    ],
)
def test_dangerous_and_broken_yaml_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_bombs_are_refused_before_they_are_expanded() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8)
    )
    assert "refused" in refusal(bomb)


def test_a_file_is_called_by_its_name_in_messages(tmp_path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("merge_method: linear\nmodels: [a]\ndtype: x\n")
    with pytest.raises(RecipeError, match=r"mine\.yml, line 3, dtype"):
        Recipe.load(path)
    path.write_bytes(b"a" * 300_000)
    with pytest.raises(RecipeError, match="larger than 262144 bytes"):
        Recipe.load(path)


def test_without_a_vocabulary_every_method_and_parameter_passes() -> None:
    recipe = Recipe.from_yaml("merge_method: mine\nmodels:\n- model: a\n  parameters: {anything: 1}")
    assert recipe.models[0].parameters == {"anything": 1}
