"""Sign election and disjoint merge, element by element."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.ops.consensus import disjoint_merge

value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, 1e-30, -1e-30])
weight = st.sampled_from([1.0, 0.5, -0.5, -1.0, 2.0, 0.0, 0.3])


def merged(columns, weights, normalize=True):
    return disjoint_merge([torch.tensor(column) for column in columns], weights, normalize).tolist()


def by_hand(deltas, weights, normalize):
    weighted = [w * d for w, d in zip(weights, deltas, strict=True)]
    sign = 1 if sum(weighted) >= 0 else -1
    kept = [(d, abs(w)) for d, w in zip(weighted, weights, strict=True) if d * sign > 0]
    total = math.fsum(d for d, _ in kept)
    return total / (math.fsum(w for _, w in kept) or 1.0) if normalize else total


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(*[st.lists(kind, min_size=n, max_size=n) for kind in (value, weight)])
    ),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_an_element_is_merged_as_by_hand(case, normalize):
    deltas, weights = case
    (result,) = merged([[delta] for delta in deltas], weights, normalize)
    assert result == pytest.approx(by_hand(deltas, weights, normalize), rel=1e-6, abs=1e-36)


def test_a_negative_weight_divides_by_its_size():
    assert merged([[1.0], [-2.0]], [1.0, -0.5]) == [pytest.approx(2 / 1.5)]


def test_nearly_cancelling_weights_do_not_explode():
    assert merged([[1.0], [-1.0]], [1.0, -0.999]) == [pytest.approx(1.0)]


def test_a_tie_elects_plus():
    assert merged([[1.0], [-1.0]], [1.0, 1.0]) == [1.0]


def test_a_model_without_a_change_has_no_vote():
    assert merged([[3.0], [0.0]], [1.0, 1.0]) == [3.0]
    assert merged([[-3.0], [0.0]], [1.0, 1.0]) == [-3.0]


def test_nobody_changing_anything_is_no_change():
    assert merged([[0.0], [-0.0]], [1.0, -1.0]) == [0.0]


def test_what_is_not_finite_reaches_the_result_and_only_its_element():
    result = merged([[math.nan, math.inf, 1.0], [1.0, -1.0, 1.0]], [1.0, 1.0])
    assert math.isnan(result[0]) and result[1:] == [math.inf, 1.0]
    assert not math.isfinite(merged([[math.inf], [-math.inf]], [1.0, 1.0])[0])


def test_a_model_of_weight_zero_is_absent_even_where_it_is_not_finite():
    assert merged([[1.0], [math.nan]], [2.0, 0.0]) == [1.0]
