"""Figures and their intervals from sums over rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from merger.statistics.estimates import Layout, RowSums, Totals, student_quantile


def whole(layout: Layout, **sums: float) -> RowSums:
    row = np.zeros((1, 1, layout.size))
    for name, value in sums.items():
        row[..., layout.column(name)] = value
    return RowSums(row, np.ones((1, 1)), np.ones(1))


def sampled(layout: Layout, rows: int, of: int, **sums: list[float]) -> RowSums:
    values = np.zeros((1, rows, layout.size))
    for name, column in sums.items():
        values[0, :, layout.column(name)] = column
    return RowSums(values, np.full((1, rows), of / rows), np.array([rows / of]))


def test_of_a_whole_tensor_the_interval_is_the_value() -> None:
    layout = Layout(1)
    totals = Totals.of(layout, [whole(layout, base=16.0, delta=4.0, zero=3, elements=12)])
    ratio = totals.norm_ratio("delta", "base")
    assert (ratio.value[0], ratio.low[0], ratio.high[0]) == (0.5, 0.5, 0.5)
    share = totals.share("zero", "elements")
    assert (share.value[0], share.low[0], share.high[0]) == (0.25, 0.25, 0.25)
    assert totals.norm("base").value[0] == 4.0


def test_fewer_than_eight_rows_give_a_value_without_an_interval() -> None:
    layout = Layout(1)
    totals = Totals.of(layout, [sampled(layout, 7, 70, base=[1.0] * 7, delta=[1.0] * 7)])
    ratio = totals.norm_ratio("delta", "base")
    assert ratio.value[0] == 1.0 and np.isnan(ratio.low[0]) and np.isnan(ratio.high[0]) and totals.is_rough[0]


def test_a_share_that_was_always_seen_is_not_taken_for_certain() -> None:
    layout = Layout(1)
    totals = Totals.of(layout, [sampled(layout, 20, 400, zero=[0.0] * 20, elements=[10.0] * 20)])
    share = totals.share("zero", "elements")
    assert (share.value[0], share.low[0]) == (0.0, 0.0) and 0.05 < share.high[0] < 0.25


def test_the_unsampled_part_shrinks_the_interval() -> None:
    layout = Layout(1)
    rows = sampled(layout, 50, 1000, delta=list(np.random.default_rng(0).uniform(1, 2, 50)))
    few = Totals.of(layout, [rows]).norm("delta")
    most = Totals.of(layout, [replace(rows, shares=np.array([0.95]))]).norm("delta")
    assert (most.high[0] / most.low[0] - 1) < 0.5 * (few.high[0] / few.low[0] - 1)


def test_quotients_of_nothing_are_undefined() -> None:
    layout = Layout(2)
    totals = Totals.of(layout, [whole(layout)])
    assert np.isnan(totals.norm_ratio("delta", "base").value[0])
    assert np.isnan(totals.share("agree", "both").value[0])
    assert np.isnan(totals.cosine(0).value[0])


def test_groups_add_sums_of_squares_and_counts() -> None:
    layout = Layout(1)
    parts = [whole(layout, delta=9, base=1, zero=1, elements=2), whole(layout, delta=16, base=24, zero=0, elements=8)]
    together = Totals.of(layout, parts).grouped([0, 0], 1)
    assert together.norm("delta").value[0] == 5.0
    assert together.norm_ratio("delta", "base").value[0] == 1.0
    assert together.share("zero", "elements").value[0] == 0.1


def test_a_group_with_a_rough_part_is_rough() -> None:
    layout = Layout(1)
    parts = [whole(layout, delta=9.0), sampled(layout, 3, 30, delta=[1.0] * 3)]
    together = Totals.of(layout, parts).grouped([0, 0], 1)
    assert together.is_rough[0] and np.isnan(together.norm("delta").low[0])


def test_parallel_changes_have_cosine_one() -> None:
    layout = Layout(2)
    rows = np.random.default_rng(1).uniform(1, 3, 30)
    totals = Totals.of(layout, [sampled(layout, 30, 300, dot=list(2 * rows), left=list(rows), right=list(4 * rows))])
    cosine = totals.cosine(0)
    assert cosine.value[0] == pytest.approx(1.0) and cosine.low[0] <= cosine.value[0] <= cosine.high[0] + 1e-12


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_quantiles_of_student(freedom: float, expected: float) -> None:
    assert student_quantile(np.array([float(freedom)]))[0] == pytest.approx(expected, rel=0.01)
