"""NuSLERP, multi-SLERP and the Karcher mean: against dense float64 vectors, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.methods import dense_sphere as dense
from tests.methods.dense_sphere import Case, assert_close, cases, vector
from tests.methods.driver import copied, merge, problems


def is_well_conditioned(vectors: list[Tensor], weights: list[float], eps: float = 1e-8) -> bool:
    """Whether directions do not nearly cancel, which would enlarge the rounding of each term a thousandfold."""
    agreement = dense.agreement(vectors, weights, eps)
    return agreement < 1e-8 or agreement > 1e-2


# NuSLERP

DIRECTIONS = {"whole": dense.whole, "last": dense.along_last, "first": dense.along_first}
SWITCHES = {
    "whole": {},
    "last": {"nuslerp_flatten": False},
    "first": {"nuslerp_flatten": False, "nuslerp_row_wise": True},
}


@pytest.mark.parametrize("vectors", DIRECTIONS)
@pytest.mark.parametrize("with_base", [False, True])
@given(case=cases(models=2))
@settings(max_examples=60, deadline=None)
def test_nuslerp_follows_the_arc(vectors: str, with_base: bool, case: Case) -> None:
    base = case.base if with_base else None
    result = merge(
        "nuslerp",
        case.tensors,
        base,
        weight=case.weights,
        parameters=SWITCHES[vectors],
        block=case.block,
        out=torch.float64,
    )
    merged = DIRECTIONS[vectors](lambda pair: dense.nuslerp(pair, case.weights), dense.changes(case.tensors, base))
    assert_close(result, dense.added(merged, base))


@pytest.mark.parametrize("parameters", SWITCHES.values(), ids=SWITCHES)
def test_nearly_opposite_vectors_meet_on_the_straight_line(parameters) -> None:
    """No rounding noise over a sine of almost 0: the arc has no defined way round."""
    first = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    if "nuslerp_row_wise" in parameters:
        first = first.T.contiguous()
    second = -first * (1 + 1e-4 * torch.sin(torch.arange(1000.0)).reshape(first.shape))
    result = merge("nuslerp", [first, second], weight=[0.7, 0.3], parameters=parameters, out=torch.float64)
    torch.testing.assert_close(result, 0.7 * first.double() + 0.3 * second.double(), rtol=1e-5, atol=1e-7)


def test_nuslerp_row_wise_without_flattening_goes_along_dimension_0() -> None:
    first, second = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.0, 3.0], [1.0, 0.0]])
    half = math.sqrt(0.5)
    by_column = merge("nuslerp", [first, second], weight=[1.0, 1.0], parameters=SWITCHES["first"])
    torch.testing.assert_close(by_column, torch.tensor([[half, 3.0], [half, 0.0]]))
    whole = merge("nuslerp", [first, second], weight=[1.0, 1.0], parameters={"nuslerp_row_wise": True})
    torch.testing.assert_close(whole, merge("nuslerp", [first, second], weight=[1.0, 1.0]))


def test_nuslerp_of_changes_adds_them_to_the_base() -> None:
    base, half = vector(10.0, 20.0), math.sqrt(0.5)
    result = merge("nuslerp", [base + vector(1.0, 0.0), base + vector(0.0, 1.0)], base, weight=[1.0, 1.0])
    torch.testing.assert_close(result, base + vector(half, half))


def test_nuslerp_weights_that_cancel_meet_half_way() -> None:
    ends = vector(1.0, 0.0), vector(0.0, 1.0)
    assert torch.equal(merge("nuslerp", ends, weight=[1.0, -1.0]), merge("nuslerp", ends, weight=[0.5, 0.5]))
    assert problems("nuslerp", weight=[1.0, -1.0]) == []


def test_nuslerp_at_an_end_is_that_model() -> None:
    assert copied("nuslerp", 2, weight=[0.0, 0.4]) == 1
    assert copied("nuslerp", 2, base=True, weight=[0.4, 0.0]) == 1
    assert copied("nuslerp", 2, weight=[0.4, 0.1]) is None
    assert copied("nuslerp", 2, weight=[0.0, 1e-7]) is None


@pytest.mark.parametrize("base", [None, vector(1.0, 2.0)])
def test_nuslerp_of_a_vector_of_zeros(base) -> None:
    zero, other = (vector(*pair) + (0.0 if base is None else base) for pair in ((0.0, 0.0), (0.0, 2.0)))
    expected = vector(0.0, math.sqrt(2.0)) + (0.0 if base is None else base)
    torch.testing.assert_close(merge("nuslerp", [zero, other], base, weight=[1.0, 1.0]), expected)


# Multi-SLERP


@pytest.mark.parametrize("with_base", [False, True])
@given(case=cases(), normalize=st.booleans())
@settings(max_examples=100, deadline=None)
def test_multislerp_gives_the_mean_direction_the_mean_length(with_base: bool, case: Case, normalize: bool) -> None:
    base = case.base if with_base else None
    result = merge(
        "multislerp",
        case.tensors,
        base,
        weight=case.weights,
        parameters={"normalize_weights": normalize},
        block=case.block,
        out=torch.float64,
    )
    if len(case.tensors) == 1:
        assert torch.equal(result, case.tensors[0].double())
        return
    vectors = dense.changes(case.tensors, base)
    assume(is_well_conditioned(vectors, case.weights))
    merged = dense.whole(lambda found: dense.multislerp(found, case.weights, normalize), vectors)
    assert_close(result, dense.added(merged, base))


@pytest.mark.parametrize("models", [2, 3, 4])
def test_multislerp_of_models_that_equal_the_base_is_the_base(models: int) -> None:
    base = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(merge("multislerp", [base] * models, base, weight=[1.0] * models), base)


def test_multislerp_of_directions_that_cancel_is_the_weighted_sum() -> None:
    tensors = [vector(2.0, 0.0), vector(-4.0, 0.0), vector(0.0, 1.0), vector(0.0, -1.0)]
    result = merge("multislerp", tensors, weight=[1.0, 1.0, 1.0, 1.0])
    assert result.tolist() == [-0.5, 0.0]


@pytest.mark.parametrize("seed", range(20))
def test_multislerp_does_not_blow_up_rounding_where_directions_cancel(seed: int) -> None:
    first = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    second = -3.0 * first
    result = merge("multislerp", [first, second], weight=[1.0, 1.0], parameters={"eps": 1e-12}, out=torch.float64)
    torch.testing.assert_close(result, -first.double(), rtol=1e-6, atol=0)


def test_multislerp_of_one_model_is_that_model() -> None:
    assert copied("multislerp", 1, {"normalize_weights": False}, weight=[0.3]) == 0
    assert copied("multislerp", 1, base=True, weight=[0.3]) == 1


def test_multislerp_refuses_weights_that_add_up_to_nothing() -> None:
    (problem,) = problems("multislerp", weight=[1.0, -1.0])
    assert problem.level == "error" and "normalize_weights: false" in problem.message
    assert problems("multislerp", {"normalize_weights": False}, weight=[1.0, -1.0]) == []
    for normalize in (True, False):
        (problem,) = problems("multislerp", {"normalize_weights": normalize}, weight=[0.0, 0.0])
        assert "every weight is 0" in problem.message


# Karcher mean


@given(case=cases(), max_iter=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_karcher_takes_the_steps_that_whole_vectors_would(case: Case, max_iter: int) -> None:
    result = merge(
        "karcher",
        case.tensors,
        weight=case.weights,
        parameters={"max_iter": max_iter},
        block=case.block,
        out=torch.float64,
    )
    vectors = dense.changes(case.tensors, None)
    assume(is_well_conditioned(vectors, case.weights, eps=1e-30))
    assert_close(result, dense.whole(lambda found: dense.karcher(found, case.weights, max_iter), vectors))


def directions(models: int, seed: int) -> list[Tensor]:
    """Vectors within a cone, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(30, generator=generator, dtype=torch.float64)
    return [
        (1 + place) * (common + 0.5 * torch.randn(30, generator=generator, dtype=torch.float64))
        for place in range(models)
    ]


weights_of = st.lists(st.floats(0.1, 3), min_size=2, max_size=5)


@given(weights=weights_of, seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_the_karcher_mean_is_where_the_pull_of_all_models_cancels(weights: list[float], seed: int) -> None:
    tensors = directions(len(weights), seed)
    mean = merge("karcher", tensors, weight=weights, parameters={"max_iter": 200, "tol": 1e-7})
    unit, pull = mean / mean.norm(), torch.zeros(30, dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        other = tensor / tensor.norm()
        angle = torch.acos((unit @ other).clamp(-1, 1))
        pull += weight / sum(weights) * angle / torch.sin(angle) * (other - torch.cos(angle) * unit)
    assert float(pull.norm()) < 1e-6


@given(weights=weights_of, seed=st.integers(0, 1000), factor=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_the_karcher_mean_depends_on_shares_and_not_on_order(weights: list[float], seed: int, factor: float) -> None:
    tensors = directions(len(weights), seed)
    mean = merge("karcher", tensors, weight=weights)
    torch.testing.assert_close(merge("karcher", tensors[::-1], weight=weights[::-1]), mean, rtol=1e-9, atol=1e-9)
    scaled = merge("karcher", tensors, weight=[factor * weight for weight in weights])
    torch.testing.assert_close(scaled, mean, rtol=1e-9, atol=1e-9)
    length = sum(w * float(x.norm()) for w, x in zip(weights, tensors, strict=True)) / sum(weights)
    assert float(mean.norm()) == pytest.approx(length)


def test_the_karcher_mean_of_two_is_half_way_on_the_arc() -> None:
    result = merge("karcher", [vector(2.0, 0.0), vector(0.0, 4.0)], weight=[1.0, 1.0])
    torch.testing.assert_close(result, vector(3.0 * math.sqrt(0.5), 3.0 * math.sqrt(0.5)))


def test_the_karcher_mean_goes_along_the_arc_and_not_the_chord() -> None:
    """At three to one the arc is divided in angles: 22.5 degrees from the heavier, where the chord has 18.4."""
    result = merge("karcher", [vector(1.0, 0.0), vector(0.0, 1.0)], weight=[3.0, 1.0], parameters={"tol": 1e-7})
    angle = math.pi / 8
    torch.testing.assert_close(result, vector(math.cos(angle), math.sin(angle)))


def test_zeros_have_no_direction_but_shorten_the_karcher_mean() -> None:
    tensors = [vector(0.0, 0.0), vector(6.0, 0.0), vector(0.0, 6.0)]
    torch.testing.assert_close(
        merge("karcher", tensors, weight=[1.0, 1.0, 1.0]), vector(4.0 * math.sqrt(0.5), 4.0 * math.sqrt(0.5))
    )
    assert torch.equal(merge("karcher", [torch.zeros(3)] * 2, weight=[1.0, 2.0]), torch.zeros(3))


def test_the_karcher_mean_of_opposite_models_starts_and_stays_at_the_first() -> None:
    tensors = [vector(2.0, 0.0), vector(-4.0, 0.0)]
    assert merge("karcher", tensors, weight=[1.0, 1.0]).tolist() == [3.0, 0.0]
    assert merge("karcher", tensors[::-1], weight=[1.0, 1.0]).tolist() == [-3.0, 0.0]


def test_the_karcher_mean_does_not_start_in_a_direction_that_rounding_made() -> None:
    for seed in range(20):
        first = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        result = merge("karcher", [first, -3.0 * first], weight=[1.0, 1.0], parameters={"tol": 0.0})
        torch.testing.assert_close(result, 2.0 * first)


def test_karcher_weights_are_not_negative_and_not_all_zero() -> None:
    (problem,) = problems("karcher", weight=[1.0, -0.5])
    assert problem.message == "weight of b is -0.5 but must be at least 0"
    (problem,) = problems("karcher", weight=[0.0, 0.0])
    assert "every weight is 0" in problem.message
    assert copied("karcher", 1) == 0 and copied("karcher", 2, weight=[0.0, 2.0]) == 1


# What all of them share


@pytest.mark.parametrize(
    ("method", "settings_"),
    [
        ("nuslerp", {"weight": [0.3, 0.9]}),
        ("nuslerp", {"weight": [0.3, 0.9], "parameters": SWITCHES["last"]}),
        ("nuslerp", {"weight": [0.3, 0.9], "parameters": SWITCHES["first"]}),
        ("multislerp", {"weight": [0.3, 0.9]}),
        ("karcher", {"weight": [0.3, 0.9]}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_models_come_back_exactly_whatever_the_vectors(method, settings_, dtype) -> None:
    tensor = torch.randn(33, 17, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(merge(method, [tensor, tensor], **settings_), tensor)


@pytest.mark.parametrize("base", [None, 1000.0])
def test_small_changes_are_told_apart_from_large_tensors(base) -> None:
    """Angles between changes come from the changes: products of the tensors would drown them in rounding."""
    half = math.sqrt(0.5)
    start = torch.zeros(2) if base is None else torch.full((2,), base)
    tensors = [start + vector(0.125, 0.0), start + vector(0.0, 0.125)]
    for method in ("nuslerp", "multislerp"):
        result = merge(method, tensors, start, weight=[1.0, 1.0], out=torch.float64)
        torch.testing.assert_close(result - start, vector(half, half).double() / 8, rtol=1e-3, atol=1e-4)
