"""One recipe, one result: nothing about how it is run changes a byte."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import RunOptions
from tests.engine.families import SHARD_SIZE, contents, recipe_text, write_family

REPOSITORY = Path(__file__).resolve().parents[2]
METHODS = ["dare_ties", "ties", "slerp", "task_arithmetic"]
UNRELATED = {"a.first.weight": torch.ones(5, 7), "layers.2.w.bias": torch.arange(300_000.0), "zz.last": torch.ones(())}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_family(tmp_path_factory.mktemp("family"))


def text_of(models: list[Path], method: str) -> str:
    if method == "slerp":
        return (
            f"merge_method: slerp\nbase_model: {models[0]}\nmodels:\n  - model: {models[1]}\nparameters: {{t: 0.3}}\n"
        )
    return recipe_text(models, method)


def merge(models: list[Path], out: Path, method: str, **options: object) -> Path:
    recipe = merger.load_recipe(text_of(models, method))
    list(merger.merge(recipe, out, RunOptions(**{"shard_size": SHARD_SIZE, "device": "cpu", **options})))
    return out


def tensors_of(folder: Path) -> dict[str, bytes]:
    """Every tensor of a folder, as it is stored."""
    return {
        name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_workers(models, tmp_path, method):
    one, two, five = (merge(models, tmp_path / str(workers), method, workers=workers) for workers in (1, 2, 5))
    assert contents(one) == contents(two) == contents(five)


@pytest.mark.parametrize("method", METHODS)
def test_unrelated_tensors_beside_the_others(models, tmp_path, method):
    more = write_family(tmp_path / "more", UNRELATED)
    assert [path.name for path in more] == [path.name for path in models]
    plain, beside = (tensors_of(merge(m, tmp_path / f"out{i}", method)) for i, m in enumerate((models, more)))
    assert beside.keys() - plain.keys() == UNRELATED.keys()
    assert {name: beside[name] for name in plain} == plain


def test_the_size_of_the_files(models, tmp_path):
    small, large = (merge(models, tmp_path / str(size), "dare_ties", shard_size=size) for size in (10**6, 10**9))
    assert len(list(small.glob("*.safetensors"))) > 1 == len(list(large.glob("*.safetensors")))
    assert tensors_of(small) == tensors_of(large)


def test_how_the_inputs_are_cut_into_files(models, tmp_path):
    sharded = []
    for model in models:
        folder = tmp_path / model.name
        folder.mkdir()
        for number, (name, tensor) in enumerate(load_file(model / "model.safetensors").items(), 1):
            save_file({name: tensor}, folder / f"model-{number:05}-of-00004.safetensors")
        sharded.append(folder)
    whole, parts = (merge(m, tmp_path / f"out{i}", "dare_ties") for i, m in enumerate((models, sharded)))
    assert tensors_of(whole) == tensors_of(parts)


def test_the_order_of_pythons_sets(models, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(models))
    found = []
    for seed in ("0", "1", "4242"):
        command = [sys.executable, "-m", "merger", "run", str(recipe), str(tmp_path / seed), "--workers", "2"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, env=environment, cwd=REPOSITORY, check=True, capture_output=True)
        found.append(contents(tmp_path / seed))
    assert found[0] == found[1] == found[2]


FUSED_CALLS = {"fma", "addcmul", "addcdiv", "addmm", "addmv", "addbmm", "baddbmm", "addr", "lerp"}
SCALED_CALLS = {"add", "sub", "subtract", "rsub", "add_", "sub_", "subtract_", "_foreach_add", "_foreach_sub"}


def fused(tree: ast.AST) -> Iterator[str]:
    """Every place where a multiplication may be rounded together with an addition."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg for keyword in node.keywords}
        if name.rstrip("_") in FUSED_CALLS or (name in SCALED_CALLS and "alpha" in keywords) or "fastmath" in keywords:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_method_fuses_multiplications_with_additions():
    files = [*(REPOSITORY / "merger" / "methods").rglob("*.py"), *(REPOSITORY / "merger" / "ops").rglob("*.py")]
    assert len(files) > 20
    found = {str(file): list(fused(ast.parse(file.read_text("utf-8")))) for file in files}
    assert {file: places for file, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "line",
    [
        "y.add_(x, alpha=w)",
        "torch.add(y, x, alpha=2)",
        "y.addcmul_(x, w)",
        "torch.lerp(a, b, t)",
        "a.lerp_(b, t)",
        "torch.baddbmm(a, b, c)",
        "torch.addcdiv(a, b, c)",
        "math.fma(a, b, c)",
        "numba.njit(fastmath=True)",
    ],
)
def test_fused_operations_are_recognised(line):
    assert list(fused(ast.parse(line)))


def test_plain_operations_are_not_taken_for_fused_ones():
    assert not list(fused(ast.parse("y.mul_(w).add_(x)\nramplus(tensors, alpha=0.2)")))
