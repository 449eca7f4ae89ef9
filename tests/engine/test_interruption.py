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

import merger
from merger import Cancelled, Recipe, RunOptions
from merger.checkpoints.outputs import OutputShards
from merger.types import BLOCK_ELEMENTS
from tests.engine.families import COLUMNS, contents, recipe_text, write_family

ROWS = 1024


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and two fine-tunes with tensors of several blocks each."""
    assert ROWS * COLUMNS > 3 * BLOCK_ELEMENTS
    return write_family(tmp_path_factory.mktemp("interruption"), rows=ROWS, tensors=6)


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
    planned = next(event for event in resumed if isinstance(event, merger.Planned))
    merged = resumed[-1]
    assert planned.bytes_done >= 3 * ROWS * COLUMNS * 2
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


KILLED_AND_RESUMED = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
import merger
from tests.engine.families import contents

torch.set_num_threads(1)
recipe, out, moments = merger.load_recipe(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def start(resume):
    child = os.fork()
    if child == 0:
        try:
            for event in merger.merge(recipe, out, merger.RunOptions(shard_size=2_500_000, workers=2, resume=resume)):
                pass
            os._exit(0)
        finally:
            os._exit(1)
    return child

def result():
    found = contents(out)
    shutil.rmtree(out)
    return found

began = time.monotonic()
assert os.waitpid(start(False), 0)[1] == 0
seconds, expected, interrupted = time.monotonic() - began, result(), 0
for moment in range(moments):
    for resume in (False, True):  # the resumed merge is killed too
        child = start(resume)
        time.sleep(random.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        if out.exists():
            assert result() == expected, "a merge that was killed at its very end left something else"
            break
    else:
        interrupted += 1
        status = os.waitpid(start(True), 0)[1]
        assert status == 0, status
        assert result() == expected, f"interruption {interrupted} changed the result"
    assert [path.name for path in out.parent.iterdir() if path.name.endswith((".backup", "journal"))] == []
print(interrupted)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_twenty_random_moments_and_resumed(models, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(models))
    command = [sys.executable, "-c", KILLED_AND_RESUMED, str(recipe), str(tmp_path / "out"), "20"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0


def begun(models: list[Path], out: Path) -> None:
    """A merge of which some tensors are finished."""
    events = merger.merge(merger.load_recipe(recipe_text(models)), out, RunOptions(shard_size=4_000_000, workers=1))
    next(event for event in events if isinstance(event, merger.TensorMerged) and event.done == 3)
    events.close()


def slow_checking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted merge has written is read slowly."""
    real = OutputShards.read

    def read(self, *place) -> None:
        time.sleep(0.1)
        real(self, *place)

    monkeypatch.setattr(OutputShards, "read", read)


def test_signs_of_life_come_while_old_work_is_checked(models, expected, tmp_path, monkeypatch):
    begun(models, tmp_path / "out")
    slow_checking(monkeypatch)
    options = RunOptions(shard_size=4_000_000, resume=True)
    kinds = [
        type(event).__name__
        for event in merger.merge(merger.load_recipe(recipe_text(models)), tmp_path / "out", options)
    ]
    assert kinds[: kinds.index("Planned")].count("Working") >= 2
    assert set(kinds[: kinds.index("Planned")]) == {"Working"}
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_merge_that_stops_while_old_work_is_checked_loses_nothing(models, expected, tmp_path, monkeypatch, how):
    out, cancel = tmp_path / "out", threading.Event()
    begun(models, out)
    before = sorted(path.name for path in tmp_path.glob(".out.partial/*"))
    recipe, options = (
        merger.load_recipe(recipe_text(models)),
        RunOptions(shard_size=4_000_000, resume=True, cancel=cancel),
    )
    with monkeypatch.context() as patch:
        slow_checking(patch)
        events = merger.merge(recipe, out, options)
        assert isinstance(next(events), merger.Working)
        if how == "closed":
            events.close()
        else:
            cancel.set()
            with pytest.raises(Cancelled):
                list(events)
    assert sorted(path.name for path in tmp_path.glob(".out.partial/*")) == before
    planned = next(
        event
        for event in merger.merge(recipe, out, RunOptions(shard_size=4_000_000, resume=True))
        if isinstance(event, merger.Planned)
    )
    assert planned.bytes_done >= 3 * ROWS * COLUMNS * 2
