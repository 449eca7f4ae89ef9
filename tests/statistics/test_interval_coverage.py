"""How often the intervals of sampled figures hold the exact values, on two published models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import merger
from merger.statistics.preview import preview_plan
from tests.statistics.families import Family, family_of, recipe

SEEDS = 200
ROWS = 6000
"""Of the word embedding, so that many samples are taken quickly."""

TENSORS = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "encoder.layer.0.attention.output.dense.weight",
    "encoder.layer.2.intermediate.dense.weight",
    "encoder.layer.4.output.dense.weight",
)
FIGURES = {
    "models": ("base_norm", "delta_norm", "relative_delta", "zero_share", "kept_share"),
    "tensors": ("sign_agreement", "surviving_share", "merged_norm", "merged_relative"),
    "cosines": ("cosine",),
}


@pytest.fixture(scope="module")
def real_family(real_pair: Any) -> Family:
    """The pair, and a third model that shares part of the change and leaves a fifth of the elements."""
    base, tuned = (load_file(folder / "model.safetensors") for folder in (real_pair.base, real_pair.fine_tune))
    generator = torch.Generator().manual_seed(0)
    third = {}
    for name in TENSORS:
        change = tuned[name] - base[name]
        noise = change.abs().mean() * torch.randn(change.shape, generator=generator)
        is_changed = torch.rand(change.shape, generator=generator) < 0.8
        third[name] = base[name] + (0.5 * change + noise) * is_changed
    models = {"base": base, "sre": tuned, "third": third}
    return family_of({model: {name: tensors[name][:ROWS] for name in TENSORS} for model, tensors in models.items()})


@pytest.fixture(scope="module")
def setting() -> merger.Recipe:
    return recipe("ties", {"sre": {"weight": 0.6, "density": 0.3}, "third": {"weight": 0.4, "density": 0.5}})


def test_nine_of_ten_intervals_hold_the_exact_value(real_family: Family, setting: merger.Recipe) -> None:
    plan = real_family.plan(setting)
    exact = preview_plan(plan, exact=True)
    held: dict[str, list[np.ndarray]] = {}
    for seed in range(SEEDS):
        found = preview_plan(plan, seed=seed)
        for table, figures in FIGURES.items():
            left, right = getattr(found, table), getattr(exact, table)
            for figure in figures:
                low, value, high = left[f"{figure}_low"], right[figure], left[f"{figure}_high"]
                held.setdefault(figure, []).append(
                    ((low <= value * (1 + 1e-9)) & (value <= high * (1 + 1e-9))).to_numpy()
                )
    coverage = {figure: np.stack(hits).mean(0) for figure, hits in held.items()}
    assert set(coverage) == {figure for figures in FIGURES.values() for figure in figures}
    for figure, shares in coverage.items():
        assert shares.mean() >= 0.9, (figure, shares)
        assert shares.min() >= 0.85, (figure, shares)


def test_intervals_are_not_idle(real_family: Family, setting: merger.Recipe) -> None:
    found = preview_plan(real_family.plan(setting))
    large = found.models[found.models["tensor"] == "encoder.layer.2.intermediate.dense.weight"]
    for figure in ("relative_delta", "delta_norm", "kept_share"):
        assert (large[f"{figure}_high"] < 1.3 * large[figure]).all()
        assert (large[f"{figure}_low"] > 0.7 * large[figure]).all()
