"""Methods that need whole matrices take no more memory than the plan says; counted by the kernel."""

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

SHAPE = (1024, 1536)
BLOCKS = 8 * 4 * 1024 * 1536
"""What the plan counts for four models' float32 inputs and the result, without any square matrix."""

MERGE = """
import json, sys, threading
import torch
import merger

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

def watch():
    while not ended.wait(0.002):
        peaks.append(anonymous() - before)

recipe, ended, before, peaks = merger.load_recipe(sys.argv[1]), threading.Event(), anonymous(), [0]
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
for event in merger.merge(recipe, sys.argv[2], merger.RunOptions(workers=1)):
    pass
ended.set()
watcher.join()
print(json.dumps(max(peaks)))
"""


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> tuple[str, list[str]]:
    folder, generator = tmp_path_factory.mktemp("family"), torch.Generator().manual_seed(0)
    base, folders = torch.randn(SHAPE, generator=generator), []
    for name in ("base", "a", "b", "c"):
        (folder / name).mkdir()
        change = torch.zeros(SHAPE) if name == "base" else torch.randn(SHAPE, generator=generator) * 0.1
        save_file({"layers.0.up.weight": (base + change).to(torch.bfloat16)}, folder / name / "model.safetensors")
        folders.append(str(folder / name))
    return folders[0], folders[1:]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("method", ["iso_c", "iso_cts", "tsv_m"])
def test_the_plan_counts_the_square_matrices_of_a_decomposition(tmp_path, family, method):
    base, tuned = family
    recipe = Recipe.build(method, [(model, {}) for model in tuned], base=base)
    bound = merger.make_plan(recipe, RunOptions(workers=1)).memory
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    command = [sys.executable, "-c", MERGE, str(tmp_path / "recipe.yaml"), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    peak = json.loads(run.stdout)
    assert BLOCKS < peak < bound < 2.5 * peak
