"""Quantiles of a whole tensor, exactly, by counting and without sorting it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.ops.folds import PerModel
from merger.ops.importance import Quantiles
from merger.ops.select import COLLECTED, CountDigits
from merger.types import BLOCK_ELEMENTS
from tests.ops.selecting import folded

QUARTILES = (0.25, 0.5, 0.75)


def quantiles(values: Tensor, shares: tuple[float, ...] = QUARTILES, size: int = BLOCK_ELEMENTS):
    """The quantiles, and how many passes they took."""
    (found,), passes = folded(PerModel((CountDigits(Quantiles(shares)),)), [values], size)
    return found, passes


def by_sorting(values: Tensor, shares: tuple[float, ...] = QUARTILES) -> list[float]:
    ascending = values.sort().values.tolist()
    return [ascending[int(share * (len(ascending) - 1))] for share in shares]


@given(
    st.integers(1, 400),
    st.sampled_from(["fine", "coarse", "narrow", "mostly zero", "wide"]),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from([7, 64, BLOCK_ELEMENTS]),
    st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None)
def test_they_are_those_of_the_sorted_elements(count, kind, shares, size, seed):
    values = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = {
        "fine": lambda: values * 1e-12,
        "coarse": lambda: torch.round(values * 4) / 3,
        "narrow": lambda: 1 + values * 2**-40,
        "mostly zero": lambda: torch.where(values < 0.8, 0.0, values),
        "wide": lambda: 10.0 ** (600 * values - 300),
    }[kind]()
    assert quantiles(values, tuple(shares), size)[0] == by_sorting(values, tuple(shares))


@pytest.mark.parametrize(
    ("kind", "passes"), [("spread out", 2), ("close together", 3), ("all equal", 4), ("few bits", 1)]
)
def test_few_candidates_are_collected_and_many_are_counted_on(kind, passes):
    count = 4 * COLLECTED
    values = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = {
        "spread out": 2.0 ** (40 * values),
        "close together": 1 + values / 16,
        "all equal": torch.full_like(values, 1 / 3),
        "few bits": torch.round(values * 8),
    }[kind]
    assert quantiles(values) == (by_sorting(values), passes)


def test_what_is_not_finite_counts_as_zero():
    values = torch.arange(1.0, 10.0, dtype=torch.float64) + 1 / 3
    values[[0, 3, 8]] = torch.tensor([float("inf"), float("nan"), float("inf")], dtype=torch.float64)
    expected = by_sorting(values.nan_to_num(0.0, 0.0, 0.0), (0.0, 0.2, 0.5, 1.0))
    assert quantiles(values, (0.0, 0.2, 0.5, 1.0))[0] == expected
