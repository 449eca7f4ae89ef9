"""Dropping elements at random."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.ops.noise import BlockNoise
from merger.ops.sparsify import drop_at_random, drop_by_rank, mean_ranks, spread


def noise(shape, models: int = 1, seed: int = 0) -> BlockNoise:
    return BlockNoise(seed, "w", range(models), 0, shape)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 0.9])
def test_each_element_is_kept_with_the_chance_of_its_density(density):
    count = 1 << 20
    (kept,) = drop_at_random([torch.ones(count)], [density], noise((count,)), rescale=False)
    deviation = math.sqrt(density * (1 - density) / count)
    assert abs(float(kept.double().mean()) - density) < 5 * deviation
    assert kept.unique().tolist() == [0.0, 1.0]


def test_an_element_is_kept_exactly_when_its_hash_is_below_the_density():
    (kept,) = drop_at_random([torch.ones(1000)], [0.3], noise((1000,)), rescale=False)
    hashes = noise((1000,)).bits(0).double() + 2**31
    assert torch.equal(kept, (hashes < math.floor(0.3 * 2**32)).float())


def test_survivors_are_divided_by_the_density():
    delta = torch.tensor([1000.0] + [0.001] * 999)
    (kept,) = drop_at_random([delta.clone()], [0.5], noise((1000,)), rescale=True)
    survives = kept != 0
    assert 0 < int(survives.sum()) < 1000
    assert torch.equal(kept[survives], delta[survives] * 2)


def test_densities_of_one_and_zero_are_decided_without_chance():
    deltas = [torch.ones(10), torch.full((10,), float("inf"))]
    kept = drop_at_random(deltas, [1.0, 0.0], noise((10,), 2), rescale=True)
    assert torch.equal(kept[0], torch.ones(10)) and torch.equal(kept[1], torch.zeros(10))


def test_a_dropped_infinity_is_gone_and_a_kept_one_stays():
    (kept,) = drop_at_random([torch.full((1000,), float("inf"))], [0.5], noise((1000,)), rescale=True)
    assert sorted(set(kept.tolist())) == [0.0, float("inf")]


def test_models_are_dropped_independently():
    count = 1 << 18
    a, b = drop_at_random([torch.ones(count), torch.ones(count)], [0.5, 0.5], noise((count,), 2), rescale=False)
    assert abs(float((a * b).mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / count)


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 999),
)
@settings(max_examples=100, deadline=None)
def test_ranks_are_those_of_counting(rows, length, kinds, dtype, seed):
    values = torch.randint(-kinds, kinds + 1, (rows, length), generator=torch.Generator().manual_seed(seed)).to(dtype)
    sizes = values.abs()
    smaller = (sizes[:, None, :] < sizes[:, :, None]).sum(-1)
    equal = (sizes[:, None, :] == sizes[:, :, None]).sum(-1)
    assert torch.equal(mean_ranks(values), (smaller + (equal - 1) / 2).to(dtype))


def test_the_chance_grows_evenly_with_the_rank():
    rows, length = 3000, 101
    delta = torch.arange(1.0, length + 1).repeat(rows, 1) * torch.where(torch.arange(length) % 2 == 0, 1, -1)
    (kept,) = drop_by_rank([delta.clone()], [0.5], [0.3], noise((rows, length)), rescale=False)
    chance = 0.2 + 0.6 * torch.arange(length) / (length - 1)
    share = (kept != 0).double().mean(0)
    assert float(((share - chance) / torch.sqrt(chance * (1 - chance) / rows)).abs().max()) < 5
    assert float(share.mean()) == pytest.approx(0.5, abs=0.005)


def test_what_is_kept_is_divided_by_its_own_chance():
    delta = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).repeat(500, 1)
    (kept,) = drop_by_rank([delta.clone()], [0.5], [0.25], noise((500, 5)), rescale=True)
    for place, chance in enumerate([0.25, 0.375, 0.5, 0.625, 0.75]):
        column = kept[:, place]
        assert column[column != 0].unique().tolist() == [pytest.approx(delta[0, place].item() / chance)]


@pytest.mark.parametrize("delta", [torch.full((400, 7), 0.5), torch.full((2800, 1), 0.5), torch.zeros(400, 7)])
def test_rows_of_equals_and_of_length_one_are_kept_with_the_mean_chance(delta):
    (kept,) = drop_by_rank([delta.clone()], [0.4], [0.3], noise(tuple(delta.shape)), rescale=True)
    if delta.any():
        share = float((kept != 0).double().mean())
        assert abs(share - 0.4) < 5 * math.sqrt(0.4 * 0.6 / delta.numel())
    assert set(kept.unique().tolist()) <= {0.0, (delta.max() / torch.tensor(0.4)).item()}


@pytest.mark.parametrize(
    ("density", "epsilon", "used"), [(0.5, 0.2, 0.2), (0.1, 0.2, 0.1), (0.9, 0.2, pytest.approx(0.1)), (1.0, 0.2, 0.0)]
)
def test_epsilon_keeps_chances_between_zero_and_one(density, epsilon, used):
    assert spread(density, epsilon) == used


def test_the_largest_possible_epsilon_stays_finite():
    delta = torch.arange(0.0, 100.0).repeat(100, 1)
    (kept,) = drop_by_rank([delta], [0.5], [0.5], noise((100, 100)), rescale=True)
    assert bool(kept.isfinite().all())
    assert bool((kept[:, 99] == 99).all())
