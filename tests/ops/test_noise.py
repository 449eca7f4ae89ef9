"""Random numbers that depend on where they are used and on nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from merger.ops.noise import BlockNoise, tensor_key

COUNT = 1 << 20
PINNED_KEY = 0xBF14E847A3EB5A9E
PINNED_BITS = [2007303383, 646572377, -1163902409, -2111342788]


def bits(count: int = COUNT, *, seed: int = 0, name: str = "layer.weight", model: int = 0, start: int = 0):
    return BlockNoise(seed, name, [model], start, (count,)).bits(0)


def uniform(count: int = COUNT, **where):
    return BlockNoise(
        where.get("seed", 0),
        where.get("name", "layer.weight"),
        [where.get("model", 0)],
        where.get("start", 0),
        (count,),
    ).uniform(0)


def chi_square_score(cells: torch.Tensor, kinds: int) -> float:
    """How many standard deviations the counts are from those of even chances."""
    counts = torch.bincount(cells.reshape(-1).long(), minlength=kinds).double()
    expected = cells.numel() / kinds
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (kinds - 1)) / math.sqrt(2 * (kinds - 1))


def correlation_score(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a.double() - 0.5) * (b.double() - 0.5)).mean()) * 12 * math.sqrt(a.numel())


def test_the_numbers_never_change():
    """Merges of earlier versions stay reproducible."""
    noise = BlockNoise(1234, "model.layers.0.mlp.up_proj.weight", [0, 2], 1 << 33, (4,))
    assert tensor_key(0, "layer.weight", 0) == PINNED_KEY
    assert noise.bits(1).tolist() == PINNED_BITS


@pytest.mark.parametrize("size", [64, 1000, 1 << 18])
def test_any_cut_gives_the_same_numbers(size):
    whole = bits(300_000, start=5)
    pieces = [bits(min(size, 300_000 - start), start=5 + start) for start in range(0, 300_000, size)]
    assert torch.equal(torch.cat(pieces), whole)


def test_the_shape_of_a_block_does_not_matter():
    rows = BlockNoise(0, "layer.weight", [0], 96, (4, 8)).bits(0)
    assert rows.shape == (4, 8)
    assert torch.equal(rows.reshape(-1), bits(32, start=96))


@pytest.mark.parametrize("start", [0, 12345, (1 << 32) - 7, 5 << 32])
def test_sampled_elements_get_the_numbers_of_the_whole(start):
    whole = bits(100, start=start)
    picked = torch.tensor([[3, 99], [42, 0]])
    sampled = BlockNoise.at(0, "layer.weight", [0], picked + start)
    assert torch.equal(sampled.bits(0), whole[picked])


def test_many_tensors_are_sampled_at_once():
    names, picked = ["a", "b", "c"], torch.tensor([[1, 5], [7, 2], [0, 1 << 33]])
    together = BlockNoise.at(9, names, [4, 1], picked)
    for row, name in enumerate(names):
        alone = BlockNoise.at(9, name, [4, 1], picked[row])
        assert torch.equal(together.bits(1)[row], alone.bits(1))
        assert torch.equal(together.uniform(0)[row], alone.uniform(0))


def test_a_model_keeps_its_numbers_when_another_lacks_the_tensor():
    everyone = BlockNoise(0, "w", [0, 1, 2], 0, (50,))
    without_the_second = BlockNoise(0, "w", [0, 2], 0, (50,))
    assert torch.equal(without_the_second.bits(1), everyone.bits(2))


def test_each_call_gives_fresh_memory():
    noise = BlockNoise(0, "w", [0], 0, (50,))
    first = noise.bits(0)
    kept = first.clone()
    noise.uniform(0).zero_()
    assert torch.equal(first, kept)


def test_uniform_numbers_are_the_upper_bits():
    numbers, hashes = uniform(1000), bits(1000).double()
    assert numbers.dtype == torch.float32
    assert torch.equal(numbers.double(), torch.floor((hashes + 2**31) / 256) / 2**24)
    assert numbers.min() >= 0 and numbers.max() < 1


@pytest.mark.parametrize("seed", range(5))
def test_every_number_is_equally_likely(seed):
    numbers = bits(seed=seed)
    for low in (16, 8, 0):
        assert abs(chi_square_score((numbers >> low) & 0xFFFF, 1 << 16)) < 5


def test_two_elements_of_a_tensor_never_share_a_hash():
    assert bits(1 << 21).unique().numel() == 1 << 21


@pytest.mark.parametrize("lag", [1, 2, 7, 384, 768, 4096])
def test_neighbours_in_rows_and_columns_are_independent(lag):
    for seed in range(2):
        numbers = uniform(seed=seed)
        assert abs(correlation_score(numbers[:-lag], numbers[lag:])) < 5
        for share in (0.05, 0.5):
            kept = (numbers < share).double() - share
            score = float((kept[:-lag] * kept[lag:]).mean()) / (share * (1 - share)) * math.sqrt(COUNT - lag)
            assert abs(score) < 5


def test_pairs_and_triples_of_neighbours_are_evenly_spread():
    numbers = uniform()
    coarse, coarser = (numbers * 256).long(), (numbers * 32).long()
    assert abs(chi_square_score(coarse[:-1] * 256 + coarse[1:], 1 << 16)) < 5
    assert abs(chi_square_score((coarser[:-2] * 32 + coarser[1:-1]) * 32 + coarser[2:], 1 << 15)) < 5


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"name": "layer.bias"}, {"name": "layers.1.weight"}, {"model": 1}, {"start": 1 << 32}]
)
def test_seeds_tensors_models_and_far_parts_are_independent(other):
    here, there = uniform(), uniform(**other)
    assert abs(correlation_score(here, there)) < 5
    cells = (here * 256).long() * 256 + (there * 256).long()
    assert abs(chi_square_score(cells, 1 << 16)) < 5


def test_rows_and_columns_have_the_spread_of_chance():
    grid = uniform()[: 1024 * 1024].reshape(1024, 1024).double()
    for means in (grid.mean(0), grid.mean(1)):
        scores = (means - 0.5) * math.sqrt(12 * 1024)
        assert abs(float(scores.var()) - 1) < 5 * math.sqrt(2 / 1024)


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    uniform(100)
    assert torch.equal(torch.get_rng_state(), before)
