"""A real GPU gives what the processor gives, and little of its memory is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import merger
from merger import Recipe, RunOptions
from merger.methods import registry
from tests.engine.families import recipe_text, write_family

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

DECOMPOSING = {"tsv_m", "iso_c", "iso_cts"}
"""Methods whose singular vectors another library finds."""

SETTINGS = {"weight": 0.6, "density": 0.5, "t": 0.3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_family(tmp_path_factory.mktemp("family"))


def merged(recipe: Recipe, out: Path, device: str) -> dict[str, torch.Tensor]:
    list(merger.merge(recipe, out, RunOptions(device=device)))
    return load_file(out / "model.safetensors")


def recipe_of(models: list[Path], method: str) -> Recipe:
    found = registry.get(method)
    own = {p.name: SETTINGS[p.name] for p in found.tensor_parameters() if p.name in SETTINGS}
    shared = {p.name: SETTINGS[p.name] for p in found.parameters() if p.name in SETTINGS}
    base, *others = map(str, models)
    return Recipe.build(
        method,
        [(model, own) for model in others[: found.max_models]],
        base=base if found.base in ("required", "optional") else None,
        parameters=shared,
    )


def steps_between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many bfloat16 numbers apart each pair of elements is."""
    places = []
    for tensor in (left, right):
        bits = tensor.view(torch.int16).to(torch.int32)
        places.append(torch.where(bits < 0, -(bits & 0x7FFF), bits))
    return (places[0] - places[1]).abs()


@pytest.mark.parametrize("method", sorted(set(registry.names()) - DECOMPOSING))
def test_a_gpu_agrees_to_one_unit_in_the_last_place(models, method, tmp_path):
    recipe = recipe_of(models, method)
    near, far = (merged(recipe, tmp_path / device, device) for device in ("cpu", "cuda"))
    assert near.keys() == far.keys()
    steps = torch.cat([steps_between(near[name], far[name]).reshape(-1) for name in near])
    # Elements at a selection cut may fall on either side of it.
    assert (steps > 1).float().mean() < 1e-4


@pytest.mark.parametrize("method", sorted(DECOMPOSING & set(registry.names())))
def test_methods_that_decompose_matrices_agree_closely(models, method, tmp_path):
    recipe = recipe_of(models, method)
    near, far = (merged(recipe, tmp_path / device, device) for device in ("cpu", "cuda"))
    for name, tensor in near.items():
        torch.testing.assert_close(far[name].float(), tensor.float(), rtol=2**-6, atol=1e-3)


def test_every_gpu_together_gives_what_one_gives(models, tmp_path):
    recipe = merger.load_recipe(recipe_text(models))
    one, every = (merged(recipe, tmp_path / device.replace(":", "-"), device) for device in ("cuda:0", "cuda:all"))
    assert one.keys() == every.keys()
    assert all(torch.equal(one[name], every[name]) for name in one)


@pytest.mark.parametrize("method", ["linear", "ties", "slerp", "dare_ties"])
def test_a_tensor_of_half_a_gigabyte_takes_less_than_one_gigabyte_of_gpu_memory(method, tmp_path):
    folders = []
    for number in range(4):
        folder = tmp_path / f"model{number}"
        folder.mkdir()
        header = {"w": {"dtype": "F16", "shape": [512, 512, 1024], "data_offsets": [0, 512 << 20]}}
        text = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(file.tell() + (512 << 20))
        folders.append(folder)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)
    list(merger.merge(recipe_of(folders, method), tmp_path / "out", RunOptions(device="cuda:0")))
    assert 0 < torch.cuda.max_memory_reserved(0) < 10**9
