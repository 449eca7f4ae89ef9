"""NaN and infinities, in the inputs or from a type that is too narrow, are counted by tensor and can be refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import NonFiniteError, RunOptions, Verified

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = 700_000
"""More than two blocks."""


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two models: the second has a NaN and an infinity in ``sick``, both have large numbers in ``large``."""
    folders = []
    for number in range(2):
        folder = tmp_path / f"model{number}"
        folder.mkdir()
        tensors = {
            "sound": torch.full((SIZE,), 1.0),
            "sick": torch.full((SIZE,), 2.0),
            "large": torch.full((4,), 1e5),
        }
        if number:
            tensors["sick"][5], tensors["sick"][SIZE - 1] = math.nan, -math.inf
        save_file({k: w.to(torch.bfloat16) for k, w in tensors.items()}, folder / "model.safetensors")
        folders.append(folder)
    return folders


def text(models: list[Path], **settings: str) -> str:
    lines = ["merge_method: linear", *(f"{key}: {value}" for key, value in settings.items()), "models:"]
    return "\n".join([*lines, *(f"  - model: {path}\n    parameters: {{weight: 1}}" for path in models)]) + "\n"


def found(source: str, out: Path, **options: bool) -> dict[str, int]:
    events = merger.merge(merger.load_recipe(source), out, RunOptions(workers=2, device="cpu", **options))
    (verified,) = [event for event in events if isinstance(event, Verified)]
    return verified.non_finite


def test_what_is_not_finite_in_an_input_is_counted_by_tensor(models, tmp_path):
    assert found(text(models), tmp_path / "out") == {"sick": 2}
    sick = load_file(tmp_path / "out" / "model.safetensors")["sick"]
    assert sick.isnan().nonzero().tolist() == [[5]] and sick[SIZE - 1] == -math.inf


def test_so_it_is_where_a_tensor_is_copied(models, tmp_path):
    source = f"merge_method: passthrough\nmodels:\n  - model: {models[1]}\n"
    assert found(source, tmp_path / "out") == {"sick": 2}


def test_so_it_is_where_a_tensor_is_converted(models, tmp_path):
    source = f"merge_method: passthrough\nout_dtype: float16\nmodels:\n  - model: {models[1]}\n"
    assert found(source, tmp_path / "out") == {"sick": 2, "large": 4}


def test_numbers_too_large_for_float16_are_counted_too(models, tmp_path):
    assert found(text(models, out_dtype="float16"), tmp_path / "out") == {"sick": 2, "large": 4}


def test_what_an_interrupted_merge_counted_is_not_forgotten(models, tmp_path):
    recipe, out = merger.load_recipe(text(models)), tmp_path / "out"
    events = merger.merge(recipe, out, RunOptions(workers=1, device="cpu"))
    next(event for event in events if isinstance(event, merger.TensorMerged) and event.done == 3)
    events.close()
    assert found(text(models), out, resume=True) == {"sick": 2}


def test_strict_refuses_and_keeps_the_work(models, tmp_path):
    source, out = text(models, out_dtype="float16"), tmp_path / "out"
    with pytest.raises(NonFiniteError) as refused:
        found(source, out, strict=True)
    assert [(problem.where, problem.message.split()[0]) for problem in refused.value.problems] == [
        ("large", "4"),
        ("sick", "2"),
    ]
    assert all("bfloat16" in problem.hint for problem in refused.value.problems)
    assert not out.exists()
    *_, merged = merger.merge(merger.load_recipe(source), out, RunOptions(resume=True, device="cpu"))
    assert isinstance(merged, merger.Merged) and merged.bytes_read == 0


def run_program(models: list[Path], tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text(models, out_dtype="float16"))
    command = [sys.executable, "-m", "merger", "run", str(recipe), str(tmp_path / "out"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def test_the_command_line_names_the_tensors_and_says_what_helps(models, tmp_path):
    done = run_program(models, tmp_path)
    assert done.returncode == 0
    words = " ".join(done.stderr.split())
    assert "warning: 6 values in 2 tensors (large, sick)" in words or "(sick, large)" in words
    assert "--out-dtype bfloat16 helps" in words and "--strict refuses" in words


def test_the_events_of_the_command_line_name_them_too(models, tmp_path):
    lines = run_program(models, tmp_path, "--json").stdout.splitlines()
    (verified,) = [event for event in map(json.loads, lines) if event["event"] == "Verified"]
    assert verified["non_finite"] == {"sick": 2, "large": 4}


def test_the_command_line_fails_when_strict(models, tmp_path):
    refused = run_program(models, tmp_path, "--strict")
    assert refused.returncode != 0
    assert "large" in refused.stderr and "sick" in refused.stderr and "bfloat16" in refused.stderr
    assert not (tmp_path / "out").exists()
    again = run_program(models, tmp_path, "--resume")
    assert again.returncode == 0 and (tmp_path / "out").exists()
