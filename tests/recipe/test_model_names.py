"""What people call a model, from where it lies."""

from pathlib import Path
from typing import Any

import pytest

from merger import ModelReference, Recipe


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("org/fine-tune", "fine-tune"),
        ("/models/code", "code"),
        ("/models/code/", "code"),
        ("packages/minilm/model", "minilm"),
        ("runs/law/checkpoint-1200", "law"),
        ("hub/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567", "models--org--name"),
        ("raw/a.safetensors", "a"),
        ("code/model.safetensors", "code"),
        ("model", "model"),
        (r"C:\models\math", "math"),
    ],
)
def test_the_name_is_the_last_part_that_says_something(path: str, name: str) -> None:
    assert ModelReference(path).short_name == name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("org/a", ModelReference("org/a")),
        ("org/a@v2", ModelReference("org/a", "v2")),
        ("org/a+org/l", ModelReference("org/a", None, ModelReference("org/l"))),
        ("org/a@v2+org/l@v3", ModelReference("org/a", "v2", ModelReference("org/l", "v3"))),
        ("/nowhere/a+b@c", ModelReference("/nowhere/a+b@c")),
        (r"C:\models\a+b", ModelReference(r"C:\models\a+b")),
        ("D:/My Models/a@b", ModelReference("D:/My Models/a@b")),
        ({"path": "org/a"}, ModelReference("org/a")),
        ({"path": "a+b@c"}, ModelReference("a+b@c")),
        ({"path": "org/a", "revision": "v2"}, ModelReference("org/a", "v2")),
        ({"model": {"path": "org/a", "revision": None}}, ModelReference("org/a")),
        ({"model": {"path": "org/a", "revision": "v2"}}, ModelReference("org/a", "v2")),
        (
            {"model": {"path": "a", "revision": "x"}, "lora": {"path": "l", "revision": "y"}},
            ModelReference("a", "x", ModelReference("l", "y")),
        ),
        ({"model": {"path": "a"}, "lora": None, "override_architecture": None}, ModelReference("a")),
    ],
)
def test_references_are_read_as_text_and_as_mappings_and_written_so_that_they_are_read_alike(
    written: Any, meant: ModelReference
) -> None:
    recipe = Recipe.build("linear", [(written, {"weight": 1})] if isinstance(written, str) else [], **_listed(written))
    assert recipe.problems == ()
    assert recipe.models[0].model == meant
    assert Recipe.from_yaml(recipe.to_yaml()).models[0].model == meant


def _listed(written: Any) -> dict[str, Any]:
    """A model as a mapping can only stand where YAML has it."""
    return {} if isinstance(written, str) else {"modules": {"all": {"models": [{"model": written}]}}}


@pytest.mark.parametrize("name", ["a+b", "a@v1", "a b", "a\\b", " a", "a ", "model:a", "a+b@c", "null", "1e5"])
def test_the_name_of_something_that_exists_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    recipe = Recipe.build("linear", [name], base=name, tokenizer_source=name)
    again = Recipe.from_yaml(recipe.to_yaml())
    for found in (recipe, again):
        assert found.models[0].model == found.base_model == ModelReference(name)
    monkeypatch.chdir("/")
    assert Recipe.from_yaml(recipe.to_yaml()).models == recipe.models
