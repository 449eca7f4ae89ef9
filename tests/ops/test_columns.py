"""One number for a tensor, or a column of numbers for many tensors."""

from __future__ import annotations

import torch

from merger.ops.columns import per_row, stack, total
from merger.ops.trim import Cut


def test_sums_go_from_left_to_right():
    assert total([0.1] * 10) == 0.9999999999999999
    column = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    assert total([column, 0.5]).tolist() == [[1.5], [2.5]]


def test_a_function_of_numbers_is_called_once():
    assert per_row(lambda a, b: a - b, 3.0, 1.0) == 2.0


def test_a_function_of_columns_is_called_for_each_row():
    column = torch.tensor([[0.25], [0.5]], dtype=torch.float64)
    low, high = per_row(lambda a, b: (a - b, a + b), column, 0.25)
    assert low.tolist() == [[0.0], [0.25]] and high.tolist() == [[0.5], [0.75]]


def test_measured_values_of_many_tensors_become_columns_of_the_same_structure():
    first, second = stack([[Cut(5, 1 << 32), (1.0, None)], [Cut(7, 3, factor=0.5), (2, None)]])
    assert isinstance(first, Cut)
    assert first.threshold.tolist() == [[5], [7]] and first.ties.tolist() == [[1 << 32], [3]]
    assert first.threshold.dtype == torch.int64 and first.factor.dtype == torch.float64
    assert second[0].tolist() == [[1.0], [2.0]] and second[1] is None
