"""Dot products of whole tensors, rows and columns."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.ops.gram import ColumnGram, Gram, coefficients, row_gram, square_matrix
from merger.ops.noise import BlockNoise
from merger.types import Block


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def block(tensors: list[Tensor], base: Tensor | None = None) -> Block:
    noise = BlockNoise(0, "w", range(len(tensors)), 0, tuple(tensors[0].shape))
    return Block([tensor.clone() for tensor in tensors], None if base is None else base.clone(), noise)


def measured(fold, *blocks: Block):
    state = fold.start()
    for piece in blocks:
        state = fold.join(state, fold.add(fold.start(), piece))
    return fold.finish(state)


def in_the_defined_order(a: Tensor, b: Tensor) -> float:
    """One block's dot product, written down plainly: halves of runs, then the runs from left to right."""
    products = [x * y for x, y in zip(a.double().tolist(), b.double().tolist(), strict=True)]
    products += [0.0] * (-len(products) % 1024)
    total = 0.0
    for start in range(0, len(products), 1024):
        run = products[start : start + 1024]
        while len(run) > 1:
            half = len(run) // 2
            run = [x + y for x, y in zip(run[:half], run[half:], strict=True)]
        total += run[0]
    return total


@given(st.integers(1, 4), st.integers(1, 20_000), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_every_entry_is_summed_in_the_defined_order(models, elements, deltas, dtype):
    base = numbers(elements, dtype=dtype)
    tensors = [base + 0.1 * numbers(elements, seed=seed, dtype=dtype) for seed in range(1, models + 1)]
    vectors = [tensor - base for tensor in tensors] if deltas else [base, *tensors]
    expected = [in_the_defined_order(a, b) for place, a in enumerate(vectors) for b in vectors[place:]]
    assert measured(Gram(deltas), block(tensors, base)) == expected


def test_a_whole_block_of_many_models_is_summed_in_the_same_order():
    """Large blocks are worked through in pieces, which must not show."""
    tensors = [numbers((1 << 17) + 77, seed=seed) for seed in range(5)]
    expected = [in_the_defined_order(a, b) for place, a in enumerate(tensors) for b in tensors[place:]]
    assert measured(Gram(deltas=False), block(tensors)) == expected


def test_blocks_are_joined_from_left_to_right():
    pieces = [numbers(3000, seed=seed) for seed in range(4)]
    one, two, three, four = (in_the_defined_order(piece, piece) for piece in pieces)
    assert measured(Gram(deltas=False), *(block([piece]) for piece in pieces)) == [((one + two) + three) + four]


def test_what_is_not_finite_counts_as_zero():
    base, other = numbers(2000), numbers(2000, seed=1)
    base[3], other[7], other[8] = math.nan, math.inf, -math.inf
    clean = [vector.nan_to_num(0.0, 0.0, 0.0) for vector in (base, other)]
    assert measured(Gram(deltas=False), block([other], base)) == measured(
        Gram(deltas=False), block(clean[1:], clean[0])
    )
    difference = (other - base).nan_to_num(0.0, 0.0, 0.0)
    assert measured(Gram(deltas=True), block([other], base)) == measured(Gram(deltas=False), block([difference]))


def test_the_number_of_threads_does_not_change_a_bit():
    tensors, threads, results = (
        [numbers((1 << 18) - 77, seed=seed) for seed in range(2)],
        torch.get_num_threads(),
        set(),
    )
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.add(tuple(measured(Gram(deltas=False), block(tensors))))
    torch.set_num_threads(threads)
    assert len(results) == 1


def test_differences_are_measured_and_not_what_is_left_of_products():
    """Products of the tensors themselves could not tell such small changes apart."""
    base = torch.full((4096,), 1000.0)
    tensors = [base + 0.0625 * sign for sign in (1, -1)]
    first, both, second = measured(Gram(deltas=True), block(tensors, base))
    assert both / math.sqrt(first * second) == -1.0


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(1, 3))
@settings(deadline=None)
def test_rows_and_columns_are_measured_each_by_itself(rows, length, with_base, models):
    base = numbers(rows, length) if with_base else None
    tensors = [numbers(rows, length, seed=seed) for seed in range(1, models + 1)]
    vectors = [(tensor if base is None else tensor - base).double() for tensor in tensors]
    pairs = [(a, b) for place, a in enumerate(vectors) for b in vectors[place:]]
    by_row = row_gram([tensor.clone() for tensor in tensors], base)
    half = rows // 2
    parts = [slice(0, half), slice(half, rows)] if half else [slice(0, rows)]
    pieces = [block([t[part] for t in tensors], None if base is None else base[part]) for part in parts]
    by_column = measured(ColumnGram(with_base), *pieces)
    for (a, b), row, column in zip(pairs, by_row, by_column, strict=True):
        torch.testing.assert_close(row, (a * b).sum(1, keepdim=True))
        torch.testing.assert_close(column, (a * b).sum(0, keepdim=True))


def test_measuring_rows_leaves_the_tensors_as_they_are():
    base, tensor = numbers(4, 6), numbers(4, 6, seed=1)
    before = base.clone(), tensor.clone()
    row_gram([tensor], base)
    assert torch.equal(base, before[0]) and torch.equal(tensor, before[1])


def test_a_matrix_is_symmetric_and_its_squares_are_not_negative():
    assert square_matrix([-1e-30, 2.0, 3.0, 4.0, 5.0, 6.0]) == [[0.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]]


def test_groups_of_numbers_stay_together_row_by_row():
    column = torch.tensor([[1.0], [10.0]], dtype=torch.float64)
    found = coefficients(lambda pair, single: (pair[0] + pair[1], single[0]), [column, 2.0], [3.0])
    assert [part.reshape(-1).tolist() for part in found] == [[3.0, 12.0], [3.0, 3.0]]
    assert coefficients(lambda pair, single: (pair[0] + pair[1], single[0]), [1.0, 2.0], [3.0]) == [3.0, 3.0]


@pytest.mark.parametrize("models", [1, 2, 7])
def test_a_tensor_of_one_element_has_a_gram_matrix_too(models):
    found = measured(Gram(deltas=False), block([torch.tensor(2.0) for _ in range(models)]))
    assert found == [4.0] * (models * (models + 1) // 2)
