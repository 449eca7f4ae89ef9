"""What a recipe in YAML means."""

import pytest

from merger.errors import RecipeError
from merger.policy import Policy
from merger.recipe import Filtered, ModelEntry, Recipe, Slice, TokenizerRule, TokenRule
from merger.types import ModelReference
from tests.recipe.field_vocabulary import VOCABULARY

TIES = """
merge_method: ties
base_model: org/base
models:
  - model: org/base
  - model: org/a@v2
    parameters:
      weight: [0, 0.3, 1]
      density:
        - filter: mlp
          value: 0.5
        - value: [1, .4]
  - model: org/b
    parameters: {weight: 1e-5, density: 1.}
parameters:
  normalize: yes
  lambda: -2E+1
dtype: float16
out_dtype: bfloat16
seed: 7
name: my-merge
"""


def read(text: str) -> Recipe:
    return Recipe.from_yaml(text, VOCABULARY)


def one_model(parameters: str) -> ModelEntry:
    return read(f"merge_method: ties\nmodels:\n- model: a\n  parameters: {parameters}\n").models[0]


def test_a_whole_recipe_is_read() -> None:
    recipe = read(TIES)
    assert recipe == Recipe(
        merge_method="ties",
        base_model=ModelReference("org/base"),
        models=(
            ModelEntry(ModelReference("org/base")),
            ModelEntry(
                ModelReference("org/a", "v2"),
                {"weight": (0.0, 0.3, 1.0), "density": (Filtered("mlp", 0.5), Filtered(None, (1.0, 0.4)))},
            ),
            ModelEntry(ModelReference("org/b"), {"weight": 1e-5, "density": 1.0}),
        ),
        parameters={"normalize": True, "lambda": -20.0},
        dtype="float16",
        out_dtype="bfloat16",
        seed=7,
        name="my-merge",
    )
    assert recipe.problems == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1e-5", 1e-5), (".4", 0.4), ("1.", 1.0), ("-.5e3", -500.0), ("+2", 2), ("1E3", 1000.0), ("'0.5'", "0.5")],
)
def test_numbers_are_numbers_however_they_are_written(written: str, meant: object) -> None:
    value = one_model(f"{{weight: {written}}}").parameters["weight"]
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(("written", "meant"), [("true", True), ("no", False), ("ON", True), ("False", False)])
def test_words_for_true_and_false(written: str, meant: bool) -> None:
    recipe = read(f"merge_method: ties\nmodels: [a]\nparameters: {{normalize: {written}}}")
    assert recipe.parameters["normalize"] is meant


@pytest.mark.parametrize("name", ["no", "1234567", "1e5", "2024-01-01", "0x10", "model 1", "D:/my models/a"])
def test_names_of_models_stay_text(name: str) -> None:
    assert read(f"merge_method: linear\nmodels:\n- model: {name}").models[0].model == ModelReference(name)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("org/a", ModelReference("org/a")),
        ("org/a@1234567", ModelReference("org/a", "1234567")),
        ("org/a+org/lora@main", ModelReference("org/a", lora=ModelReference("org/lora", "main"))),
        ("{path: org/a, revision: 1234567}", ModelReference("org/a", "1234567")),
        ("{path: 'not+a lora@all'}", ModelReference("not+a lora@all")),
        ("{model: {path: org/a, revision: no}}", ModelReference("org/a", "no")),
        ("{model: org/a@v1, lora: {path: org/l}}", ModelReference("org/a", "v1", ModelReference("org/l"))),
        ("'C:\\models\\a+b@c'", ModelReference("C:\\models\\a+b@c")),
    ],
)
def test_ways_to_name_a_model(written: str, meant: ModelReference) -> None:
    assert read(f"merge_method: linear\nmodels:\n- model: {written}").models[0].model == meant


def test_a_local_path_with_plus_and_at_is_a_path_when_it_exists(tmp_path, monkeypatch) -> None:
    (tmp_path / "a+b@c").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read("merge_method: linear\nmodels: [a+b@c]").models[0].model == ModelReference("a+b@c")


def test_slices_keep_their_ranges_parameters_and_bases() -> None:
    recipe = read(
        """
        merge_method: linear
        slices:
          - sources:
              - {model: a, layer_range: [0, 2], parameters: {weight: 1}}
              - {model: b, layer_range: [4, 6], parameters: {weight: 2}}
            base_model: b
            parameters: {normalize: false}
          - sources:
              - {model: a, layer_range: [2, 3]}
        """
    )
    a, b = ModelReference("a"), ModelReference("b")
    assert recipe.slices == (
        Slice(
            (ModelEntry(a, {"weight": 1}, (0, 2)), ModelEntry(b, {"weight": 2}, (4, 6))),
            {"normalize": False},
            b,
        ),
        Slice((ModelEntry(a, {}, (2, 3)),)),
    )


def test_one_module_is_the_recipe_itself() -> None:
    module = read("merge_method: linear\nmodules: {default: {models: [a, b], parameters: {weight: 1}}}")
    assert module == read("merge_method: linear\nmodels: [a, b]\nparameters: {weight: 1}")


def test_parameters_of_a_module_come_before_those_at_the_top() -> None:
    recipe = read(
        """
        merge_method: linear
        modules:
          default:
            models: [a, b]
            parameters:
              weight: [{filter: mlp, value: 3}]
              normalize: false
        parameters: {weight: 1, normalize: true}
        """
    )
    assert recipe.parameters == {"weight": (Filtered("mlp", 3), Filtered(None, 1)), "normalize": False}


def test_an_alias_becomes_the_name_of_its_method() -> None:
    assert read("merge_method: task\nmodels: [a]\nbase_model: b").merge_method == "task_arithmetic"


def test_every_model_is_listed_once_and_an_unlisted_base_last() -> None:
    recipe = read("merge_method: ties\nbase_model: z\nmodels: [b, a, b]")
    assert [model.path for model in recipe.all_models()] == ["b", "a", "z"]
    assert [entry.model.path for entry in recipe.entries()] == ["b", "a", "b"]


def test_a_single_line_with_a_filter_needs_no_list() -> None:
    assert one_model("{weight: {filter: mlp, value: 0.5}}").parameters["weight"] == (Filtered("mlp", 0.5),)


def test_tokenizer_rules_are_read() -> None:
    recipe = read(
        """
        merge_method: linear
        models: [a, b]
        tokenizer:
          source: union
          pad_to_multiple_of: 64
          tokens:
            <|im_start|>: {source: b, force: true}
            <pad>: {source: {kind: zero}}
            <x>: {source: {kind: model_token, model: a, token: <y>}}
            <z>: {source: {kind: model_token, model: a, token_id: 3}}
        chat_template: auto
        """
    )
    a, b = ModelReference("a"), ModelReference("b")
    assert recipe.tokenizer == TokenizerRule(
        source="union",
        tokens={
            "<|im_start|>": TokenRule(b, force=True),
            "<pad>": TokenRule("zero"),
            "<x>": TokenRule(a, token="<y>"),
            "<z>": TokenRule(a, token_id=3),
        },
        pad_to_multiple_of=64,
    )
    assert recipe.chat_template == "auto"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("union", "union"), ("base", "base"), ("org/a", ModelReference("org/a")), ("model:a", ModelReference("a"))],
)
def test_tokenizer_source(written: str, meant: object) -> None:
    assert read(f"merge_method: linear\nmodels: [a]\ntokenizer_source: {written}").tokenizer_source == meant


def test_python_values_make_the_same_recipe(tmp_path) -> None:
    built = Recipe.build(
        "ties",
        [
            "org/base",
            ("org/a@v2", {"weight": [0, 0.3, 1], "density": [Filtered("mlp", 0.5), Filtered(None, (1, 0.4))]}),
            ModelEntry(ModelReference("org/b"), {"weight": 1e-5, "density": 1.0}),
        ],
        base="org/base",
        parameters={"normalize": True, "lambda": -20},
        dtype="float16",
        out_dtype="bfloat16",
        seed=7,
        name="my-merge",
        vocabulary=VOCABULARY,
    )
    assert built == read(TIES)
    assert Recipe.build("linear", [tmp_path / "a+b"]).models[0].model == ModelReference(str(tmp_path / "a+b"))


def test_python_values_are_checked_like_text() -> None:
    with pytest.raises(RecipeError, match=r"models\[0\].parameters.wieght: .* Did you mean 'weight'"):
        Recipe.build("linear", [("a", {"wieght": 1})], vocabulary=VOCABULARY)
    with pytest.raises(RecipeError, match="not a finite number"):
        Recipe.build("linear", [("a", {"weight": float("nan")})])
    with pytest.raises(RecipeError, match="cannot stand in a recipe"):
        Recipe.build("linear", [("a", {"weight": object()})])


def test_a_changed_copy_leaves_the_recipe_alone() -> None:
    recipe = read(TIES)
    changed = recipe.replace(parameters={"lambda": 1.0}, seed=1)
    assert (changed.parameters, changed.seed) == ({"lambda": 1.0}, 1)
    assert (recipe.parameters["lambda"], recipe.seed) == (-20, 7)
    assert len({recipe, changed, recipe.replace()}) == 2


def test_recipes_are_loaded_from_files_and_from_text(tmp_path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + TIES.encode())
    assert Recipe.load(path, VOCABULARY) == Recipe.load(str(path), VOCABULARY) == Recipe.load(TIES, VOCABULARY)
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        Recipe.load(tmp_path / "missing.yaml")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="not text in UTF-8"):
        Recipe.load(path)


def test_a_policy_limits_which_and_how_many_models() -> None:
    text = "merge_method: linear\nmodels: [org/a, /etc/secrets, org/b]"
    with pytest.raises(RecipeError) as caught:
        Recipe.from_yaml(text, VOCABULARY, policy=Policy(local_paths=False, max_models=2))
    assert [str(problem) for problem in caught.value.problems] == [
        "'/etc/secrets' is a place on this machine, which is not open here. "
        "Run Mixdesk on your own machine to merge folders of yours.",
        "The recipe names 3 models; here at most 2 are merged at once. Leave some out, or run it on your own machine.",
    ]
