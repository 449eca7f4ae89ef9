"""Keeping magnitudes of middling size: two cuts, found in the passes that one takes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.ops.noise import BlockNoise
from merger.ops.trim import NO_CEILING, Cut
from merger.types import BLOCK_ELEMENTS
from tests.ops.selecting import measure, trimmed

share = st.one_of(st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0]), st.floats(0, 1))


def order_of(delta: Tensor) -> list[int]:
    """Places from the largest magnitude to the smallest; of equal ones the smallest hash first."""
    hashes = BlockNoise(0, "w", [0], 0, delta.shape).bits(0).tolist()
    sizes = delta.abs().tolist()
    return sorted(range(delta.numel()), key=lambda place: (-sizes[place], hashes[place]))


def between(delta: Tensor, density: float, outliers: float) -> Tensor:
    """What is to be kept of a small tensor, by sorting."""
    count = delta.numel()
    target = max(1, int(density * count))
    top = int(outliers * count)
    if count - target - top < 0:
        top = count - target
    kept = torch.zeros_like(delta)
    for place in order_of(delta)[top : top + target]:
        kept[place] = delta[place]
    return kept


@given(
    st.integers(1, 500),
    share.filter(lambda density: 0 < density < 1),
    share,
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["fine", "coarse", "bfloat16", "mostly zero", "equal"]),
    st.sampled_from([64, BLOCK_ELEMENTS]),
    st.integers(0, 2**31),
)
@example(7, 1e-9, 1.0, torch.float32, "equal", 64, 0)
@settings(max_examples=200, deadline=None)
def test_exactly_the_elements_between_the_cuts_are_kept(count, density, outliers, dtype, kind, size, seed):
    delta = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    delta = {
        "fine": lambda: delta * 1e-3,
        "coarse": lambda: torch.round(delta * 3) / 3,
        "bfloat16": lambda: delta.to(torch.bfloat16).double(),
        "mostly zero": lambda: torch.where(delta.abs() < 1.5, 0.0, delta),
        "equal": lambda: torch.full_like(delta, -0.5),
    }[kind]().to(dtype)
    (result,) = trimmed([delta], [density], outliers=[outliers], size=size)
    assert torch.equal(result, between(delta, density, outliers))


def test_both_cuts_may_lie_among_equal_magnitudes():
    delta = torch.full((1000,), 0.5)
    (cut,), _ = measure([delta], [0.4], outliers=[0.25])
    assert cut.threshold == cut.ceiling and 0 < cut.ceiling_ties < cut.ties < 1 << 32
    (result,) = trimmed([delta], [0.4], outliers=[0.25])
    hashes = BlockNoise(0, "w", [0], 0, (1000,)).bits(0)
    assert torch.equal(result != 0, (hashes >= hashes.sort().values[250]) & (hashes < hashes.sort().values[650]))


def test_large_tensors_keep_equal_magnitudes_by_chance_without_overlap():
    count = 4 * BLOCK_ELEMENTS
    delta = torch.full((count,), 0.5)
    low, high, between_both = (
        trimmed([delta], [density], outliers=[outliers])[0] != 0
        for density, outliers in ((0.3, 0.0), (0.7, 0.0), (0.4, 0.3))
    )
    assert torch.equal(between_both, high & ~low)
    deviation = math.sqrt(0.4 * 0.6 / count)
    assert abs(float(between_both.double().mean()) - 0.4) < 5 * deviation


def test_the_cut_of_blocks_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    delta = torch.round(torch.randn(BLOCK_ELEMENTS + 5000, generator=generator) * 8) / 8
    cut, whole = (trimmed([delta], [0.3], outliers=[0.05], size=size)[0] for size in (1000, BLOCK_ELEMENTS))
    assert torch.equal(cut, whole)


@pytest.mark.parametrize("kind", ["fine", "coarse", "float64"])
def test_a_second_cut_takes_no_further_pass(kind):
    delta = torch.randn(BLOCK_ELEMENTS + 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    delta = {"fine": delta.float(), "coarse": (torch.round(delta * 4) / 4).float(), "float64": delta}[kind]
    passes = [measure([delta], [0.5], outliers=[outliers])[1] for outliers in (0.0, 0.1)]
    assert passes[0] == passes[1] == {"fine": 2, "coarse": 1, "float64": 4}[kind]
    small = delta[:5000]
    passes = [measure([small], [0.5], outliers=[outliers])[1] for outliers in (0.0, 0.1)]
    assert passes[0] == passes[1] == {"fine": 2, "coarse": 2, "float64": 4}[kind]


def test_without_outliers_the_cut_is_that_of_the_largest():
    delta = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    (plain,), _ = measure([delta], [0.2])
    (same,), _ = measure([delta], [0.2], outliers=[0.0])
    assert plain == same and same.ceiling == NO_CEILING


def test_models_have_their_own_cuts():
    deltas = [torch.randn(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    results = trimmed(deltas, [0.5, 1.0, 0.0, 0.1], outliers=[0.1, 0.1, 0.1, 0.0])
    assert [int((result != 0).sum()) for result in results] == [500, 1000, 0, 100]
    assert results[0].abs().max() < deltas[0].abs().max() and results[3].abs().max() == deltas[3].abs().max()


def test_outliers_make_room_for_density():
    delta = torch.arange(1.0, 11.0)
    (result,) = trimmed([delta], [0.9], outliers=[0.5])
    assert result.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_dropping_more_than_there_are_changes_leaves_no_change():
    delta = torch.zeros(100)
    delta[:5] = 1.0
    (result,) = trimmed([delta], [0.5], outliers=[0.1])
    assert torch.equal(result, torch.zeros(100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_is_no_outlier_and_stays(dtype):
    delta = torch.arange(1, 11, dtype=dtype)
    delta[[2, 5]] = torch.tensor([float("nan"), float("-inf")], dtype=dtype)
    (result,) = trimmed([delta], [0.3], outliers=[0.1])
    assert result[2].isnan() and result[5] == float("-inf")
    assert result[result.isfinite()].tolist() == [0, 0, 0, 0, 7, 8, 9, 0]


def test_every_bit_of_a_nan_may_be_set_at_either_cut():
    delta = torch.ones(100)
    delta.view(torch.int32)[3] = -1
    (result,) = trimmed([delta], [0.5], outliers=[0.2])
    assert result[3].isnan() and int((result == 1).sum()) == 50


@pytest.mark.parametrize("scale", [1e-3, 0.25])
def test_rescaling_restores_the_l1_norm_of_all_elements(scale):
    delta = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    delta = torch.round(delta / scale) * scale
    plain, rescaled = (
        trimmed([delta], [0.2], outliers=[0.1], size=999, rescale=rescale)[0] for rescale in (False, True)
    )
    factor = float(delta.double().abs().sum() / plain.double().abs().sum())
    torch.testing.assert_close(rescaled, plain * factor, rtol=1e-6, atol=0)


def test_rescaling_nothing_leaves_nothing():
    delta = torch.zeros(10)
    delta[0] = 1.0
    assert torch.equal(trimmed([delta], [0.1], outliers=[0.1], rescale=True)[0], torch.zeros(10))


def test_a_column_of_cuts_cuts_each_row_its_own_way():
    from merger.ops.columns import stack
    from merger.ops.trim import keep_largest

    deltas = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    deltas[1] = torch.round(deltas[1] * 2)
    settings_of_rows = [(0.5, 0.1), (0.3, 0.2), (0.9, 0.0), (1.0, 0.5)]
    cuts = [
        (measure([row], [density], outliers=[outliers])[0] or [Cut()])[0]
        for row, (density, outliers) in zip(deltas, settings_of_rows, strict=True)
    ]
    noise = BlockNoise.at(0, ["w"] * 4, [0], torch.arange(200).repeat(4, 1))
    (together,) = keep_largest([deltas.clone()], [stack([1.0] * 4)], stack([[cut] for cut in cuts]), noise)
    for row, delta, (density, outliers) in zip(together, deltas, settings_of_rows, strict=True):
        assert torch.equal(row, between(delta, density, outliers))
