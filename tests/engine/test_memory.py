"""Memory is bounded by blocks and workers, not by tensors; counted by the kernel in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import merger
from merger import Recipe, RunOptions
from merger.methods import registry
from merger.types import BLOCK_ELEMENTS, SPAN_BLOCKS, Block

MIB = 1 << 20
SLACK = 64 * MIB
"""What torch, numpy and the allocator keep besides the blocks."""

MERGE = """
import json, sys
import torch
import merger

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

recipe, before, peak = merger.load_recipe(sys.argv[1]), anonymous(), 0
for event in merger.merge(recipe, sys.argv[2], merger.RunOptions(workers=2)):
    peak = max(peak, anonymous() - before)
print(json.dumps({"peak": peak, "bytes": event.bytes_out}))
"""


def sparse(folder: Path, megabytes: int) -> str:
    """A model of one float16 tensor of zeros that takes no room on the disk."""
    folder.mkdir(parents=True)
    header = {"w": {"dtype": "F16", "shape": [megabytes, 512, 1024], "data_offsets": [0, megabytes * MIB]}}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + megabytes * MIB)
    return str(folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_tensor_of_256_megabytes_needs_no_more_memory_than_the_plan_says(tmp_path):
    base, *experts = (sparse(tmp_path / name, 256) for name in ("base", "a", "b"))
    recipe = Recipe.build("ties", [(model, {"weight": 1.0, "density": 0.5}) for model in experts], base=base)
    bound = merger.make_plan(recipe, RunOptions(workers=2)).memory
    assert bound < 32 * MIB
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    command = [sys.executable, "-c", MERGE, str(tmp_path / "recipe.yaml"), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    measured = json.loads(run.stdout)
    assert measured["bytes"] == 256 * MIB
    assert measured["peak"] < bound + SLACK


LARGE_MERGES = """
import json, shutil, sys, threading
import merger

def watch():
    with open("/proc/self/status") as status:
        while not ended.wait(0.002):
            status.seek(0)
            peaks[-1] = max(peaks[-1], *(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon")))

ended, peaks = threading.Event(), [0]
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
for recipe in sys.argv[2:]:
    peaks.append(0)
    for event in merger.merge(merger.load_recipe(recipe), sys.argv[1], merger.RunOptions(workers=2, overwrite=True)):
        pass
ended.set()
watcher.join()
print(json.dumps(peaks[1:]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_tensor_of_a_hundred_million_elements_merges_in_250_megabytes_torch_included(tmp_path):
    base, *others = (sparse(tmp_path / name, 200) for name in ("base", "a", "b", "c"))
    recipes = [
        Recipe.build("linear", [(model, {"weight": 1.0}) for model in (base, *others)]),
        Recipe.build("slerp", [(others[0], {})], base=base, parameters={"t": 0.3}),
        Recipe.build("ties", [(model, {"weight": 1.0, "density": 0.5}) for model in others], base=base),
        Recipe.build("dare_ties", [(model, {"weight": 1.0, "density": 0.5}) for model in others], base=base),
    ]
    paths = []
    for recipe in recipes:
        paths.append(tmp_path / f"{recipe.merge_method}.yaml")
        paths[-1].write_text(recipe.to_yaml())
    command = [sys.executable, "-c", LARGE_MERGES, str(tmp_path / "out"), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    peaks = dict(zip((recipe.merge_method for recipe in recipes), json.loads(run.stdout), strict=True))
    assert all(0 < peak < 250_000_000 for peak in peaks.values()), peaks


class Totals:
    """A fold that tells how many of its states are alive."""

    class State:
        def __init__(self, alive: weakref.WeakSet[Totals.State]) -> None:
            self.values: list[float] = []
            alive.add(self)

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Totals.State] = weakref.WeakSet()
        self.started = self.most = 0

    def start(self) -> Totals.State:
        self.started += 1
        state = self.State(self.alive)
        self.most = max(self.most, len(self.alive))
        return state

    def add(self, state: Totals.State, block: Block) -> Totals.State:
        state.values.append(float(block.tensors[0].reshape(-1)[0]))
        return state

    def join(self, left: Totals.State, right: Totals.State) -> Totals.State:
        left.values += right.values
        return left

    def finish(self, state: Totals.State) -> list[float]:
        return state.values


@pytest.mark.parametrize("workers", [1, 3])
def test_a_measuring_pass_holds_a_few_states_however_many_spans_there_are(tmp_path, monkeypatch, workers):
    block, blocks = 16, 40 * SPAN_BLOCKS
    monkeypatch.setattr("merger.reading.BLOCK_ELEMENTS", block)
    fold = Totals()

    def measured_first(tensors: list[torch.Tensor], *, measured: list[float]) -> torch.Tensor:
        assert measured == [float(number) for number in range(blocks)], "joined in another order"
        return tensors[0]

    declare = merger.merge_method(
        name="measured_first", pretty_name="First", reference_url="", split="elements", measure=lambda context: fold
    )
    declare(measured_first)
    try:
        tensor = torch.arange(blocks, dtype=torch.float32).repeat_interleave(block)
        (tmp_path / "a").mkdir()
        save_file({"w": tensor}, tmp_path / "a" / "model.safetensors")
        recipe = Recipe.build("measured_first", [(str(tmp_path / "a"), {})] * 2)
        list(merger.merge(recipe, tmp_path / "out", RunOptions(workers=workers)))
    finally:
        registry.unregister("measured_first")
    assert fold.started == 14  # 40 spans, 3 to each part
    if workers == 1:
        assert fold.most <= 3  # joined as they arrive: the sum so far, and what is added to it


def planned_memory(tmp_path: Path, tensor: torch.Tensor, **settings: float) -> int:
    folders = []
    for name in ("base", "a"):
        (tmp_path / name).mkdir()
        save_file({"w": tensor}, tmp_path / name / "model.safetensors")
        folders.append(str(tmp_path / name))
    method = "della" if settings else "task_arithmetic"
    recipe = Recipe.build(method, [(folders[1], {"weight": 1.0, **settings})], base=folders[0])
    return merger.make_plan(recipe, RunOptions(workers=1)).memory


def test_the_plan_counts_float64_twice(tmp_path):
    (tmp_path / "narrow").mkdir()
    (tmp_path / "wide").mkdir()
    narrow = planned_memory(tmp_path / "narrow", torch.zeros(4 * BLOCK_ELEMENTS, dtype=torch.float32))
    wide = planned_memory(tmp_path / "wide", torch.zeros(4 * BLOCK_ELEMENTS, dtype=torch.float64))
    assert wide > 1.8 * narrow


def test_the_plan_counts_a_row_that_is_longer_than_a_block(tmp_path):
    row = 4 * BLOCK_ELEMENTS
    assert planned_memory(tmp_path, torch.zeros(2, row), density=0.5) >= 2 * row * 4
