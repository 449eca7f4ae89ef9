"""Coefficients of spherical interpolation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.ops.sphere import multislerp_coefficients, nuslerp_coefficients, slerp_coefficients


def test_half_way_between_perpendicular_vectors_keeps_the_length():
    first, second = slerp_coefficients(0.5, 1.0, 0.0, 1.0)
    assert (first, second) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


def test_directions_are_compared_whatever_the_lengths():
    assert slerp_coefficients(0.3, 4.0, 0.0, 9e-6) == pytest.approx(slerp_coefficients(0.3, 1.0, 0.0, 1.0))


@pytest.mark.parametrize("cosine", [0.9996, -0.9996, 1.0, -1.0])
def test_nearly_parallel_and_nearly_opposite_vectors_are_mixed_on_the_line(cosine):
    assert slerp_coefficients(0.3, 1.0, cosine, 1.0) == (0.7, 0.3)


def test_rounding_cannot_push_the_cosine_out_of_bounds():
    assert slerp_coefficients(0.25, 1.0, 1.0 + 1e-12, 1.0) == (0.75, 0.25)


@pytest.mark.parametrize("square", [0.0, 1e-17])
def test_a_vector_without_direction_counts_as_perpendicular(square):
    first, second = slerp_coefficients(0.5, square, 0.0, 1.0)
    assert (first, second) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


@pytest.mark.parametrize(("t", "ends"), [(0.0, (1.0, 0.0)), (1.0, (0.0, 1.0))])
def test_the_ends_are_exact(t, ends):
    assert slerp_coefficients(t, 2.0, 0.3, 5.0) == ends


nuslerp = nuslerp_coefficients


def test_weights_say_where_on_the_arc_the_result_lies():
    first, second = nuslerp(1.0, 3.0, 4.0, 0.0, 9.0)
    assert (first, second) == pytest.approx((math.sin(math.pi / 8), math.cos(math.pi / 8)))
    assert nuslerp(2.0, 6.0, 4.0, 0.0, 9.0) == (first, second)


@pytest.mark.parametrize("weights", [(1.0, -1.0), (0.0, 0.0), (3e-7, 5e-7)])
def test_weights_that_cancel_meet_half_way(weights):
    assert nuslerp(*weights, 1.0, 0.0, 1.0) == nuslerp(0.5, 0.5, 1.0, 0.0, 1.0)


@pytest.mark.parametrize("cosine", [1.0, 1.0 + 1e-12, -1.0, -1.0 + 9e-6])
def test_parallel_and_nearly_opposite_vectors_are_mixed_on_the_line_whatever_their_lengths(cosine):
    assert nuslerp(0.7, 0.3, 4.0, cosine * 2.0 * 0.5, 0.25) == (1.0 - 0.3, 0.3)


def test_vectors_that_are_not_quite_opposite_have_an_arc():
    first, _ = nuslerp(0.5, 0.5, 1.0, -1.0 + 2e-5, 1.0)
    assert first == pytest.approx(0.5 / math.cos(math.acos(-1.0 + 2e-5) / 2))


def test_a_vector_of_zeros_counts_as_perpendicular():
    assert nuslerp(0.5, 0.5, 0.0, 0.0, 1.0) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


@given(
    st.lists(st.tuples(st.floats(0, 4), st.floats(-1.1, 1.1), st.floats(0, 4)), min_size=1, max_size=20),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
@settings(deadline=None)
def test_rows_have_the_coefficients_that_each_has_alone(rows, first_weight, second_weight):
    gram = [(a * a, cosine * a * b, b * b) for a, cosine, b in rows]
    columns = [torch.tensor(column, dtype=torch.float64).reshape(-1, 1) for column in zip(*gram, strict=True)]
    together = torch.cat(nuslerp(first_weight, second_weight, *columns), dim=1)
    alone = torch.tensor([nuslerp(first_weight, second_weight, *row) for row in gram], dtype=torch.float64)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


def test_the_mean_direction_gets_the_mean_length():
    first, second = multislerp_coefficients([0.5, 0.5], [4.0, 0.0, 36.0], 0.0)
    assert (first, second) == pytest.approx((4.0 * math.sqrt(0.5) / 2.0, 4.0 * math.sqrt(0.5) / 6.0))


@pytest.mark.parametrize("gram", [[0.0] * 6, [1.0, -1.0, 0.0, 1.0, 0.0, 0.0]])
def test_directions_that_cancel_leave_the_weighted_sum(gram):
    assert multislerp_coefficients([0.25, 0.25, 0.5], gram, 1e-8) == [0.25, 0.25, 0.5]
