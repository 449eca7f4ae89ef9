"""What people call a model, from where it lies."""

import pytest

from merger import ModelReference


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
