"""The largest magnitudes of a tensor, found by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.ops.cutting import Trim, largest
from merger.ops.noise import BlockNoise
from merger.ops.select import CountDigits, Group
from merger.ops.trim import Cut
from merger.types import BLOCK_ELEMENTS
from tests.ops.selecting import measure, trimmed


@given(
    st.integers(1, 600),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["fine", "coarse", "bfloat16", "halves"]),
    st.sampled_from([64, BLOCK_ELEMENTS]),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_exactly_the_k_largest_are_kept(count, density, dtype, kind, size, seed):
    delta = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    delta = {
        "fine": lambda: delta * 1e-3,
        "coarse": lambda: torch.round(delta * 3) / 3,
        "bfloat16": lambda: delta.to(torch.bfloat16).double(),
        "halves": lambda: torch.where(delta < 0, 0.0, delta.half().double()),
    }[kind]().to(dtype)
    (result,) = trimmed([delta], [density], size=size)
    k = min(max(1, int(density * count)), int((delta != 0).sum()))
    assert int((result != 0).sum()) == k
    assert torch.equal(result[result != 0], delta[result != 0])
    dropped = delta[(result == 0) & (delta != 0)].abs()
    if k and dropped.numel():
        assert result[result != 0].abs().min() >= dropped.max()


def test_a_tiny_density_keeps_the_maximum():
    (result,) = trimmed([torch.tensor([0.3, -0.9, 0.1, 0.5, -0.2])], [0.1])
    assert torch.equal(result, torch.tensor([0.0, -0.9, 0.0, 0.0, 0.0]))


def test_models_with_their_own_densities_share_the_passes():
    deltas = [torch.randn(5000, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    densities = [0.3, 1.0, 0.0, 0.01]
    cuts, passes = measure(deltas, densities)
    assert passes == 2
    assert cuts[1:3] == [Cut(), Cut(factor=0.0)]
    kept = [int((result != 0).sum()) for result in trimmed(deltas, densities)]
    assert kept == [1500, 5000, 0, 50]


def test_nothing_is_measured_when_all_or_nothing_is_kept():
    assert largest([1.0, 0.0, 1.0], rescale=True) is None


def test_one_pass_is_enough_for_numbers_of_few_bits():
    delta = torch.randint(1, 200, (4096,), generator=torch.Generator().manual_seed(0)).float()
    _, passes = measure([delta.to(torch.bfloat16).float() + 0.0], [0.999])
    assert passes <= 2
    _, passes = measure([torch.arange(1.0, 101.0)], [0.5])
    assert passes == 1


def test_small_tensors_keep_the_ties_with_the_smallest_hashes():
    delta = torch.full((1000,), 0.5)
    (result,) = trimmed([delta], [0.25])
    hashes = BlockNoise(0, "w", [0], 0, (1000,)).bits(0)
    assert int((result != 0).sum()) == 250
    assert hashes[result != 0].max() < hashes[result == 0].min()


def test_large_tensors_keep_each_tie_with_the_same_chance():
    count = 2 * BLOCK_ELEMENTS
    delta = torch.full((count,), -0.5)
    delta[: count // 8] = 2.0
    (result,) = trimmed([delta], [0.5])
    assert bool((result[: count // 8] == 2.0).all())
    ties = (result[count // 8 :] != 0).double()
    chance = (0.5 - 0.125) / (1 - 0.125)
    deviation = math.sqrt(chance * (1 - chance) / ties.numel())
    assert abs(float(ties.mean()) - chance) < 5 * deviation
    first, second = ties.chunk(2)
    assert abs(float(first.mean() - second.mean())) < 5 * 2 * deviation


@pytest.mark.parametrize("size", [1000, 1 << 17])
def test_the_cut_of_blocks_does_not_matter_in_large_tensors_either(size):
    generator = torch.Generator().manual_seed(0)
    delta = torch.round(torch.randn(BLOCK_ELEMENTS + 5000, generator=generator) * 8) / 8
    assert torch.equal(trimmed([delta], [0.3], size=size)[0], trimmed([delta], [0.3])[0])


def test_zeros_are_not_chosen_among():
    delta = torch.zeros(1000)
    delta[:10] = 1.0
    cuts, _ = measure([delta], [0.5])
    assert cuts == [Cut()]
    assert torch.equal(trimmed([delta], [0.5])[0], delta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_counts_as_zero_and_stays(dtype):
    delta = torch.arange(1, 11, dtype=dtype)
    delta[[2, 5]] = torch.tensor([float("nan"), float("-inf")], dtype=dtype)
    (result,) = trimmed([delta], [0.3])
    assert result[2].isnan() and result[5] == float("-inf")
    finite = result.isfinite()
    assert result[finite].tolist() == [0, 0, 0, 0, 0, 8, 9, 10]


def test_every_bit_of_a_nan_may_be_set():
    delta = torch.ones(100)
    delta.view(torch.int32)[3] = -1
    (result,) = trimmed([delta], [0.5])
    assert result[3].isnan()
    assert int((result == 1).sum()) == 50


@pytest.mark.parametrize("is_coarse", [True, False])
def test_rescaling_restores_the_l1_norm(is_coarse):
    delta = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    delta = torch.round(delta * 4) / 4 if is_coarse else delta
    (plain,), (rescaled,) = (trimmed([delta], [0.2], size=999, rescale=rescale) for rescale in (False, True))
    factor = float(delta.double().abs().sum() / plain.double().abs().sum())
    torch.testing.assert_close(rescaled, plain * factor, rtol=1e-6, atol=0)
    assert float(rescaled.double().abs().sum()) == pytest.approx(float(delta.double().abs().sum()), rel=1e-6)


def test_rescaling_no_change_at_all_leaves_no_change():
    (result,) = trimmed([torch.zeros(10)], [0.5], rescale=True)
    assert torch.equal(result, torch.zeros(10))


def test_float16_ones_of_which_half_are_dropped_become_twos():
    delta = torch.ones(160_000, dtype=torch.float16).float()
    (result,) = trimmed([delta], [0.5], rescale=True)
    assert result.to(torch.float16).unique().tolist() == [0.0, 2.0]
    assert int((result != 0).sum()) == 80_000


def test_a_magnitude_of_few_bits_is_known_after_one_pass_though_others_have_more():
    """As among differences of bfloat16 numbers, most of which are bfloat16 numbers themselves."""
    few, many = torch.full((600,), 2.0**-9), torch.full((400,), 2.0**-9 + 2.0**-31)
    part = CountDigits(Trim(density=0.5))
    state = part.add(part.start(), torch.cat([few, many]), _no_bits)
    found = part.finish(state)
    assert not isinstance(found, CountDigits) and found.groups == (
        Group(int(np.float32(2.0**-9).view(np.int32)), rank=100, size=600),
    )
    among_the_rest = CountDigits(Trim(density=0.3))
    state = among_the_rest.add(among_the_rest.start(), torch.cat([few, many]), _no_bits)
    assert isinstance(among_the_rest.finish(state), CountDigits)


def _no_bits() -> torch.Tensor:
    raise AssertionError("counting needs no random numbers")
