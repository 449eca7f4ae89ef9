"""A merge may be stopped at any moment; going on gives the very same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import merger
from merger import Cancelled, Recipe, RunOptions
from merger.types import BLOCK_ELEMENTS

ROWS, COLUMNS, TENSORS = 1024, 1024, 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and two fine-tunes with tensors of several blocks each."""
    root = tmp_path_factory.mktemp("interruption")
    generator = torch.Generator().manual_seed(3)
    base = {f"layers.{i}.w.weight": torch.randn(ROWS, COLUMNS, generator=generator) for i in range(TENSORS)}
    paths = []
    for number in range(3):
        folder = root / f"model{number}"
        folder.mkdir()
        tensors = {k: v + (0.01 * torch.randn(v.shape, generator=generator) if number else 0) for k, v in base.items()}
        save_file({k: v.to(torch.bfloat16) for k, v in tensors.items()}, folder / "model.safetensors")
        paths.append(folder)
    assert ROWS * COLUMNS > 3 * BLOCK_ELEMENTS
    return paths


def recipe_text(models: list[Path], method: str = "dare_ties") -> str:
    lines = [f"merge_method: {method}", f"base_model: {models[0]}", "models:"]
    for path in models[1:]:
        lines += [f"  - model: {path}", "    parameters: {weight: 0.6, density: 0.5}"]
    return "\n".join(lines) + "\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def expected(models, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    list(merger.merge(merger.load_recipe(recipe_text(models)), out, RunOptions(shard_size=4_000_000)))
    return contents(out)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_do_not_depend_on_the_workers(models, expected, tmp_path, workers):
    options = RunOptions(shard_size=4_000_000, workers=workers)
    list(merger.merge(merger.load_recipe(recipe_text(models)), tmp_path / "out", options))
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("lines_before_kill", [1, 2, 4, 7])
def test_killed_and_resumed(models, expected, tmp_path, lines_before_kill):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(models))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "merger",
        "run",
        str(recipe),
        str(out),
        "--shard-size",
        "4000000",
        "--workers",
        "1",
    ]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, start_new_session=True)
    for _ in range(lines_before_kill):
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if not out.exists():
        assert subprocess.run([*command, "--resume"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert contents(out) == expected
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_resume_does_not_compute_finished_tensors_again(models, expected, tmp_path):
    out = tmp_path / "out"
    options = RunOptions(shard_size=4_000_000, workers=1)
    events = merger.merge(merger.load_recipe(recipe_text(models)), out, options)
    done = 0
    for event in events:
        done += isinstance(event, merger.TensorMerged)
        if done == 3:
            break
    events.close()
    assert not out.exists()
    resumed = list(
        merger.merge(merger.load_recipe(recipe_text(models)), out, RunOptions(shard_size=4_000_000, resume=True))
    )
    planned, merged = resumed[0], resumed[-1]
    assert isinstance(planned, merger.Planned) and planned.bytes_done >= 3 * ROWS * COLUMNS * 2
    assert merged.bytes_read <= planned.bytes_in - 3 * 3 * ROWS * COLUMNS * 2
    assert contents(out) == expected


def test_cancel_takes_effect_within_a_second_and_leaves_no_result(models, tmp_path):
    cancel = threading.Event()
    events = merger.merge(
        merger.load_recipe(recipe_text(models)), tmp_path / "out", RunOptions(workers=1, cancel=cancel)
    )
    with pytest.raises(Cancelled):
        for event in events:
            if isinstance(event, merger.TensorMerged):
                cancel.set()
                began = time.monotonic()
    assert time.monotonic() - began < 1
    assert not (tmp_path / "out").exists()


def test_resume_refuses_another_recipe_and_says_so(models, tmp_path):
    events = merger.merge(merger.load_recipe(recipe_text(models)), tmp_path / "out", RunOptions(workers=1))
    next(event for event in events if isinstance(event, merger.TensorMerged))
    events.close()
    other = merger.load_recipe(recipe_text(models).replace("0.6", "0.7"))
    with pytest.raises(merger.OutputError, match="recipe"):
        list(merger.merge(other, tmp_path / "out", RunOptions(resume=True)))


def test_what_an_interrupted_merge_holds_counts_as_room(models, tmp_path, monkeypatch):
    recipe = merger.load_recipe(recipe_text(models))
    events = merger.merge(recipe, tmp_path / "out", RunOptions(workers=1))
    next(event for event in events if isinstance(event, merger.TensorMerged))
    events.close()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=0))
    with pytest.raises(merger.PlanError, match="of disk"):
        list(merger.merge(recipe, tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    *_, last = merger.merge(recipe, tmp_path / "out", RunOptions(resume=True))
    assert isinstance(last, merger.Merged)


def test_an_input_that_changes_during_the_merge_is_noticed(models, tmp_path):
    copies = []
    for path in models:
        folder = tmp_path / path.name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
        copies.append(folder)
    events = merger.merge(merger.load_recipe(recipe_text(copies)), tmp_path / "out", RunOptions(workers=1))
    with pytest.raises(merger.InputChangedError, match="model1"):
        for event in events:
            if isinstance(event, merger.TensorMerged):
                os.utime(copies[1] / "model.safetensors", (1, 1))
    assert not (tmp_path / "out").exists()


def test_every_event_is_plain_json_and_a_sign_of_life_comes_often(models, tmp_path):
    last = time.monotonic()
    slowest = 0.0
    for event in merger.merge(merger.load_recipe(recipe_text(models, "ties")), tmp_path / "out", RunOptions(workers=2)):
        json.dumps(event.to_json())
        slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
    assert isinstance(event, merger.Merged)
    assert slowest < 5


def test_closing_the_iterator_at_any_event_never_leaves_a_result(models, tmp_path):
    recipe = merger.load_recipe(recipe_text(models, "ties"))
    assert isinstance(recipe, Recipe)
    for stop_at in range(0, 5):
        events = merger.merge(recipe, tmp_path / "out", RunOptions(workers=2))
        for _ in range(stop_at + 1):
            next(events)
        events.close()
        assert not (tmp_path / "out").exists()


def test_signs_of_life_go_on_while_the_disk_is_waited_for(models, tmp_path, monkeypatch):
    """fsync of many gigabytes takes its time; a page must not think that the merge is dead."""
    synced = threading.Event()
    real = os.fsync

    def slow(descriptor: int) -> None:
        if not synced.is_set():
            synced.set()
            time.sleep(0.7)
        real(descriptor)

    events = merger.merge(merger.load_recipe(recipe_text(models, "task_arithmetic")), tmp_path / "out")
    kinds: list[str] = []
    for event in events:
        kinds.append(type(event).__name__)
        if isinstance(event, merger.Verified):
            monkeypatch.setattr(os, "fsync", slow)
    assert synced.is_set()
    assert kinds[kinds.index("Verified") + 1 : -1].count("Working") >= 2
    assert kinds[-1] == "Merged"
