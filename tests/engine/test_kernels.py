"""Compiled kernels give the bytes that torch gives, for every method and every element type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import merger
from merger import fused
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.ops.fusing import formula_of
from merger.ops.kernels import SETTING, WORTHWHILE_ELEMENTS, are_wanted
from merger.ops.measuring import measurement_of
from tests.methods.test_contract import models_of, settings_of

METHODS = registry.all_methods()
FUSED = {
    *("linear", "slerp", "nuslerp", "multislerp", "karcher", "model_stock", "task_arithmetic", "ties"),
    *("dare_linear", "dare_ties", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties"),
}
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name())
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def weights(dtype: torch.dtype, seed: int, *, spoiled: bool = False) -> dict[str, torch.Tensor]:
    """A model whose fine-tuning left many elements alone and changed many by the same amount."""
    common, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in {"layers.0.w": (300, 1100), "layers.1.w": (7, 33), "norm": (515,), "scalar": ()}.items():
        base = torch.randn(shape, generator=common) * 0.02
        change = torch.round(torch.randn(shape, generator=own) * 8) / 4096 if seed else torch.zeros(shape)
        found[name] = (base + change).to(dtype)
    if spoiled:
        places = torch.randint(0, 300 * 1100, (40,), generator=own)
        values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, 3e38, -3e38]
        found["layers.0.w"].view(-1)[places] = torch.tensor(values * 5).to(dtype)
    return found


def family(folder: Path, dtypes: list[torch.dtype], *, spoiled: bool = False) -> list[str]:
    """A base and fine-tunes, one for each type."""
    for seed, dtype in enumerate(dtypes):
        (folder / f"model{seed}").mkdir(parents=True)
        save_file(weights(dtype, seed, spoiled=spoiled), folder / f"model{seed}" / "model.safetensors")
    return [str(folder / f"model{seed}") for seed in range(len(dtypes))]


def recipe_for(method: MergeMethod, models: list[str], out_dtype: str) -> merger.Recipe:
    count = models_of(method)
    settings = settings_of(method, count)
    own = [{name: values[i] for name, values in settings.items() if name != "parameters"} for i in range(count)]
    entries = [{"model": name, "parameters": values} for name, values in zip(models[1:], own, strict=False)]
    document: dict[str, Any] = {"merge_method": method.name(), "models": entries, "out_dtype": out_dtype, "seed": 3}
    document["parameters"] = settings["parameters"]
    if method.base in ("required", "optional"):
        document["base_model"] = models[0]
    return merger.load_recipe(json.dumps(document, indent=1))


def merged(recipe: merger.Recipe) -> dict[str, bytes]:
    tensors = merger.merge_in_memory(recipe)
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


def with_setting(setting: str, recipe: merger.Recipe, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    monkeypatch.setenv(SETTING, setting)
    return merged(recipe)


@every_method
@pytest.mark.parametrize("stored", TYPES)
def test_kernels_give_the_same_bytes(method, stored, tmp_path, monkeypatch):
    models = family(tmp_path, [TYPES[stored]] * 4)
    recipe = recipe_for(method, models, "bfloat16" if stored == "bfloat16" else "float32")
    assert with_setting("always", recipe, monkeypatch) == with_setting("never", recipe, monkeypatch)


@every_method
@pytest.mark.parametrize("out_dtype", TYPES)
def test_numbers_that_are_not_finite_and_mixed_types_make_no_difference(method, out_dtype, tmp_path, monkeypatch):
    types = [torch.bfloat16, torch.float32, torch.bfloat16, torch.float16]
    recipe = recipe_for(method, family(tmp_path, types, spoiled=True), out_dtype)
    assert with_setting("always", recipe, monkeypatch) == with_setting("never", recipe, monkeypatch)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("slerp", {"t": 1e-320}),
        ("karcher", {"weight": [0.5, 1e308]}),
        ("multislerp", {"weight": [-1.0, -1e308]}),
        ("task_arithmetic", {"weight": [1e-60, 1.0]}),
        ("ties", {"weight": [1e-60, -1e300], "density": 0.5}),
        ("dare_linear", {"weight": [1.0, 1.0], "density": 1e-320}),
        ("breadcrumbs", {"weight": [1.0, 1.0], "density": 0.5, "lambda": 1e-320}),
    ],
)
def test_numbers_beyond_float32_make_no_difference(method, settings, monkeypatch):
    """Among infinities it matters whether a factor is 0 or becomes it by rounding."""
    base, *tuned = [weights(torch.float32, seed, spoiled=True) for seed in range(2 if method == "slerp" else 3)]
    found = []
    for setting in ("always", "never"):
        monkeypatch.setenv(SETTING, setting)
        merged = merger.merge_state_dicts(tuned, method, settings, base=None if method == "karcher" else base)
        found.append({name: tensor.view(torch.int32).tolist() for name, tensor in merged.items()})
    assert found[0] == found[1]


@every_method
def test_what_is_called_fusable_is_taken_by_a_kernel(method, tmp_path, monkeypatch):
    """Otherwise the comparisons above would compare torch with torch."""
    taken = []

    def watched(expression: Any) -> Any:
        taken.append(formula_of(expression))
        return taken[-1]

    monkeypatch.setenv(SETTING, "always")
    monkeypatch.setattr(fused, "formula_of", watched)
    merged(recipe_for(method, family(tmp_path, [torch.bfloat16] * 4), "bfloat16"))
    assert any(formula is not None for formula in taken) == (method.name() in FUSED)


@pytest.mark.parametrize("name", ["ties", "breadcrumbs", "slerp", "model_stock", "karcher"])
def test_measurements_are_taken_by_kernels_too(name, tmp_path, monkeypatch):
    taken = []

    def watched(*arguments: Any) -> Any:
        taken.append(measurement_of(*arguments))
        return taken[-1]

    monkeypatch.setenv(SETTING, "always")
    monkeypatch.setattr(fused, "measurement_of", watched)
    method = registry.get(name)
    merged(recipe_for(method, family(tmp_path, [torch.bfloat16] * 4), "bfloat16"))
    assert any(measurement is not None for measurement in taken)


def test_kernels_are_used_where_loading_them_pays_off(monkeypatch):
    monkeypatch.delenv(SETTING, raising=False)
    assert are_wanted(WORTHWHILE_ELEMENTS) and not are_wanted(WORTHWHILE_ELEMENTS - 1)
    monkeypatch.setenv(SETTING, "never")
    assert not are_wanted(WORTHWHILE_ELEMENTS)


def test_a_setting_that_means_nothing_is_refused(monkeypatch):
    monkeypatch.setenv(SETTING, "sometimes")
    with pytest.raises(merger.UserError, match="auto, always or never"):
        are_wanted(1)


WITHOUT_NUMBA = f"""
import importlib.util, os, sys
import torch

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
sys.modules["numba"] = None
import merger
from merger.ops import kernels

kernels.WORTHWHILE_ELEMENTS = 1
tensors = merger.merge_in_memory(merger.load_recipe(sys.argv[1]))
assert not any(name.startswith("merger.ops.kernels.tiles") for name in sys.modules)
print(sorted((name, tensor.double().sum().item()) for name, tensor in tensors.items()))
os.environ[{SETTING!r}] = "always"
try:
    merger.merge_in_memory(merger.load_recipe(sys.argv[1]))
except merger.UserError as error:
    assert "numba is not installed" in str(error)
else:
    raise SystemExit("not refused")
"""


def test_without_numba_merges_are_the_same_and_demanding_kernels_is_refused(tmp_path, monkeypatch):
    """In a process that cannot import numba, as where it is not installed."""
    recipe = recipe_for(registry.get("ties"), family(tmp_path, [torch.bfloat16] * 4), "bfloat16")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    monkeypatch.delenv(SETTING, raising=False)
    command = [sys.executable, "-c", WITHOUT_NUMBA, str(tmp_path / "recipe.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    monkeypatch.setenv(SETTING, "always")
    tensors = merger.merge_in_memory(recipe)
    assert run.stdout.strip() == str(sorted((name, tensor.double().sum().item()) for name, tensor in tensors.items()))
