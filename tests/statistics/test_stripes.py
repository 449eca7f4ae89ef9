"""Which rows a sample looks at, and what reading them costs."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch

from merger.checkpoints.memory import MemoryCheckpoint
from merger.statistics.stripes import WHOLE_ELEMENTS, choose_stripes, read_stripes, share_of
from merger.types import ModelReference

SHAPES = [(512, 384), (96, 4096), (30_000,), (50, 30_001), (64, 3, 7, 7), (9000, 1), (257, 129), (5, 100_000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("elements", [2048, 20_000])
def test_rows_are_distinct_ascending_and_inside_the_tensor(shape: tuple[int, ...], elements: int) -> None:
    stripes = choose_stripes(shape, elements, 0, "w")
    indices = stripes.indices().reshape(-1)
    assert torch.equal(indices, indices.unique(sorted=True))
    assert indices[0] >= 0 and indices[-1] < prod(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("elements", [2048, 20_000])
def test_a_sample_stays_near_its_budget_and_has_rows_for_an_interval(shape: tuple[int, ...], elements: int) -> None:
    stripes = choose_stripes(shape, elements, 0, "w")
    assert stripes.is_whole or (0.75 * elements <= stripes.sampled <= elements and len(stripes.starts) >= 16)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_weighted_rows_stand_for_the_whole_tensor(shape: tuple[int, ...]) -> None:
    stripes = choose_stripes(shape, 4096, 0, "w")
    assert stripes.weights.sum() * stripes.length == pytest.approx(prod(shape))


def test_short_rows_are_never_cut() -> None:
    stripes = choose_stripes((4096, 3), 3000, 0, "w")
    assert np.all(stripes.starts % 3 == 0) and stripes.length % 3 == 0


def test_a_tensor_within_the_budget_is_whole() -> None:
    stripes = choose_stripes((10, 10), 100, 0, "w")
    assert stripes.is_whole and stripes.indices().flatten().tolist() == list(range(100))


def test_a_preview_takes_a_share_in_whole_rows_and_small_tensors_whole() -> None:
    assert share_of((128, 128), 0.05) == WHOLE_ELEMENTS
    assert share_of((2000, 500), 0.05) == 50_000
    assert share_of((40, 5000), 0.05) == 16 * 5000
    assert share_of((100_000, 4096), 0.05) == 1 << 20


def test_every_row_is_drawn_equally_often() -> None:
    shape = (100, 64)
    counts = np.zeros(100)
    for seed in range(2000):
        counts[choose_stripes(shape, 16 * 64, seed, "w").starts // 64] += 1
    assert np.all(np.abs(counts / 2000 - 0.16) < 0.05)


def test_seed_and_name_choose_the_rows() -> None:
    first = choose_stripes((500, 64), 2048, 0, "a").starts
    assert np.array_equal(first, choose_stripes((500, 64), 2048, 0, "a").starts)
    assert not np.array_equal(first, choose_stripes((500, 64), 2048, 1, "a").starts)
    assert not np.array_equal(first, choose_stripes((500, 64), 2048, 0, "b").starts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_gives_the_rows_and_touches_nothing_else(dtype: torch.dtype) -> None:
    weights = torch.randn(1000, 80).to(dtype)
    reference = ModelReference("m")
    checkpoint = MemoryCheckpoint(reference, {"w": weights})
    stripes = choose_stripes((1000, 80), 4000, 3, "w")
    found = read_stripes(checkpoint, checkpoint.tensors["w"], stripes)
    assert torch.equal(found, weights.reshape(-1)[stripes.indices().reshape(-1)])
    assert checkpoint.bytes_read == stripes.sampled * weights.element_size()


def test_neighbouring_rows_are_read_in_one_go() -> None:
    class Counting(MemoryCheckpoint):
        calls = 0

        def read_into(self, *arguments: object) -> None:
            Counting.calls += 1
            super().read_into(*arguments)  # type: ignore[arg-type]

    checkpoint = Counting(ModelReference("m"), {"w": torch.randn(100, 64)})
    dense = choose_stripes((100, 64), 64 * 90, 0, "w")
    read_stripes(checkpoint, checkpoint.tensors["w"], dense)
    assert len(dense.starts) == 90 and Counting.calls <= 20


@pytest.mark.parametrize("shape", [(40, 30), (500, 384), (9, 5000), (70_000,)])
def test_a_thinner_sample_is_part_of_the_fuller_one(shape: tuple[int, ...]) -> None:
    full = choose_stripes(shape, 16_384, 0, "w")
    thin, places = full.thinned(2048, 0, "w")
    assert thin.sampled <= 2048 or thin.is_whole
    assert torch.equal(full.indices().reshape(-1)[places], thin.indices().reshape(-1))
    assert thin.weights.sum() * thin.length == pytest.approx(prod(shape))
