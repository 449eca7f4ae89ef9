"""Memory is bounded by blocks and workers, not by tensors; counted by the kernel in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import merger
from merger import Recipe, RunOptions
from merger.types import BLOCK_ELEMENTS

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
