"""Model stock: against dense float64 vectors, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.methods import dense_sphere as dense
from tests.methods.dense_sphere import Case, assert_close, cases, vector
from tests.methods.driver import copied, merge, problems


@given(case=cases(fewest=2), filter_wise=st.booleans())
@settings(max_examples=150, deadline=None)
def test_model_stock_goes_as_far_as_the_changes_agree(case: Case, filter_wise: bool) -> None:
    result = merge(
        "model_stock",
        case.tensors,
        case.base,
        parameters={"filter_wise": filter_wise},
        block=case.block,
        out=torch.float64,
    )
    assert_close(result, dense.model_stock(case.tensors, case.base, filter_wise))


@pytest.mark.parametrize("filter_wise", [False, True])
@pytest.mark.parametrize("models", [2, 4])
def test_model_stock_of_identical_small_changes_is_the_fine_tune(models: int, filter_wise: bool) -> None:
    """However small they are: changes of 1e-5 are what fine-tuning in 16 bits makes."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(64, 64, generator=generator)
    tuned = base + 1e-5 * torch.randn(64, 64, generator=generator)
    result = merge("model_stock", [tuned] * models, base, parameters={"filter_wise": filter_wise})
    assert torch.equal(result, tuned)


def test_model_stock_of_opposite_changes_is_the_base() -> None:
    base = torch.zeros(2)
    assert torch.equal(merge("model_stock", [vector(1.0, 0.01), vector(-1.0, 0.01)], base), base)


def test_model_stock_by_hand() -> None:
    base, tensors = vector(1.0, 1.0), [vector(2.0, 1.0), vector(1.0 + math.sqrt(0.5), 1.0 + math.sqrt(0.5))]
    cosine = math.sqrt(0.5)
    ratio = 2 * cosine / (1 + cosine)
    expected = ratio * (tensors[0] + tensors[1]) / 2 + (1 - ratio) * base
    torch.testing.assert_close(merge("model_stock", tensors, base), expected)


def test_a_model_without_a_change_is_perpendicular_to_the_others() -> None:
    base = vector(1.0, 1.0)
    two = merge("model_stock", [base.clone(), vector(2.0, 1.0)], base)
    assert torch.equal(two, base)
    three = merge("model_stock", [base.clone(), vector(2.0, 1.0), vector(2.0, 1.0)], base)
    ratio = 3 * (1 / 3) / (1 + 2 / 3)
    torch.testing.assert_close(three, base + ratio * vector(2 / 3, 0.0))


def test_model_stock_with_one_model_left_is_the_base() -> None:
    assert copied("model_stock", 1, base=True) == 0
    (problem,) = problems("model_stock")
    assert problem.level == "note" and "the base's is copied" in problem.message
    assert copied("model_stock", 2, base=True) is None
