"""What a method's file says without being run is what it says when it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from merger.methods import registry
from merger.methods.outline import outline

FOLDER = Path(registry.__file__).parent
BUILT_IN = sorted(method.name() for method in registry.all_methods() if (FOLDER / f"{method.name()}.py").exists())

FILE = '''
"""A file."""
from typing import Annotated, List, Optional
import torch
from torch import Tensor
from merger.methods.define import Between, each, merge_method

HALF = 0.5

@merge_method(name={name}, pretty_name="Mixer", aliases=("mixed",), max_models={most}, preview="sample")
def anything(
    tensors: List[Tensor],
    base_tensor: Optional[Tensor],
    weight: List[float] = {weight},
    share: Annotated[float, Between(0, 1)] = 0.25,
    measured: Unknown = None,
) -> Tensor:
    """Mixes. More is said here.

    Args:
        weight: How much.
    """
    raise RuntimeError("never run")
'''


def written(folder: Path, **changes: str) -> Path:
    words = {"name": '"mixer"', "most": "3", "weight": "each(1.0)"} | changes
    path = folder / "mixer.py"
    path.write_text(FILE.format(**words), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_methods_file_says_what_the_method_says(name):
    written_out = outline(FOLDER / f"{name}.py")
    if written_out is None:
        pytest.skip("only running this file tells")
    assert written_out == registry.describe(registry.get(name))


def test_decorator_signature_and_documentation_are_read(tmp_path):
    facts = outline(written(tmp_path))
    assert facts is not None
    assert (facts.name, facts.pretty_name, facts.aliases, facts.base) == ("mixer", "Mixer", ("mixed",), "optional")
    assert (facts.min_models, facts.max_models, facts.preview, facts.summary) == (1, 3, "sample", "Mixes.")
    (share,), (weight,) = facts.parameters, facts.tensor_parameters
    assert (share.name, share.default_value, share.minimum, share.maximum) == ("share", 0.25, 0, 1)
    assert (weight.name, weight.default_value, weight.required, weight.help) == ("weight", 1.0, False, "How much.")


@pytest.mark.parametrize(
    "changes", [{"name": '"other"'}, {"name": "NAME"}, {"most": "COUNT"}, {"weight": "HALF"}, {"weight": "= ("}]
)
def test_what_is_not_written_out_is_left_to_the_import(tmp_path, changes):
    assert outline(written(tmp_path, **changes)) is None


def test_a_file_with_a_class_is_left_to_the_import(tmp_path):
    path = tmp_path / "mixer.py"
    path.write_text("class Mixer:\n    pass\n", encoding="utf-8")
    assert outline(path) is None


def test_methods_are_listed_and_recipes_read_without_torch():
    code = """
import sys, merger
assert len(merger.methods()) > 8
recipe = merger.load_recipe("merge_method: ties\\nbase_model: a\\nmodels: [{model: b, parameters: {weight: 1}}]\\n")
try:
    merger.load_recipe("merge_method: ties\\nbase_model: a\\nmodels: [{model: b, parameters: {wieght: 1}}]\\n")
except merger.RecipeError as error:
    print(error)
assert "torch" not in sys.modules and "numba" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Did you mean 'weight'?" in done.stdout
