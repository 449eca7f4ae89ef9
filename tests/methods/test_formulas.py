"""Every element of the deterministic methods, against the formulas written down plainly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.methods import dense
from tests.methods.driver import merge

SHAPES = [(1,), (5,), (130,), (3, 7), (2, 3, 5), ()]
number = st.floats(-2, 2, allow_subnormal=False).filter(lambda value: value == 0 or abs(value) > 1e-6)
share = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.floats(0, 1))


@dataclass
class Case:
    base: Tensor
    tensors: list[Tensor]
    weights: list[float]
    densities: list[float]
    normalize: bool
    lambda_: float
    block: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Models around a base; coarse numbers make many magnitudes equal, as in 16-bit fine-tunes."""
    shape, models = draw(st.sampled_from(SHAPES)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    is_coarse = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def numbers(scale: float) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return (torch.round(values * 2) / 2 if is_coarse else values) * scale

    base = numbers(1.0).to(dtype)
    return Case(
        base=base,
        tensors=[(base.float() + numbers(0.25)).to(dtype) for _ in range(models)],
        weights=draw(st.lists(number, min_size=models, max_size=models)),
        densities=draw(st.lists(share, min_size=models, max_size=models)),
        normalize=draw(st.booleans()),
        lambda_=draw(number),
        block=draw(st.sampled_from([3, 64, 1 << 18])),
    )


def assert_same(result: Tensor, reference: Tensor, dtype: torch.dtype) -> None:
    """Equal in every element, once rounded to the models' type."""
    assert result.dtype == dtype
    assert torch.equal(result, reference.to(dtype))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_linear_is_the_weighted_sum_in_the_defined_order(case: Case) -> None:
    total = sum(case.weights)
    assume(any(case.weights) and not (case.normalize and abs(total) < 1e-3))
    result = merge(
        "linear", case.tensors, weight=case.weights, parameters={"normalize": case.normalize}, block=case.block
    )
    assert_same(result, dense.linear(case.tensors, case.weights, case.normalize), case.base.dtype)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_task_arithmetic_adds_weighted_task_vectors(case: Case) -> None:
    result = merge(
        "task_arithmetic",
        case.tensors,
        case.base,
        weight=case.weights,
        parameters={"normalize": case.normalize, "lambda": case.lambda_},
        block=case.block,
    )
    expected = dense.task_arithmetic(case.base, case.tensors, case.weights, case.normalize, case.lambda_)
    assert_same(result, expected, case.base.dtype)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_ties_trims_elects_and_merges(case: Case) -> None:
    result = merge(
        "ties",
        case.tensors,
        case.base,
        weight=case.weights,
        density=case.densities,
        parameters={"normalize": case.normalize, "lambda": case.lambda_},
        block=case.block,
        seed=7,
    )
    expected = dense.ties(case.base, case.tensors, case.weights, case.densities, case.normalize, case.lambda_, seed=7)
    assert_same(result, expected, case.base.dtype)


@given(cases())
@settings(max_examples=50, deadline=None)
def test_without_dropping_anything_the_random_methods_are_their_relatives(case: Case) -> None:
    full = [1.0] * len(case.tensors)
    parameters = {"normalize": case.normalize, "lambda": case.lambda_}
    for name in ("dare_linear", "della_linear"):
        result = merge(name, case.tensors, case.base, weight=case.weights, density=full, parameters=parameters)
        expected = dense.task_arithmetic(case.base, case.tensors, case.weights, case.normalize, case.lambda_)
        assert_same(result, expected, case.base.dtype)
    for name in ("dare_ties", "della"):
        result = merge(name, case.tensors, case.base, weight=case.weights, density=full, parameters=parameters)
        expected = dense.ties(case.base, case.tensors, case.weights, full, case.normalize, case.lambda_)
        assert_same(result, expected, case.base.dtype)


@given(cases(), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_slerp_follows_the_arc(case: Case, t: float) -> None:
    """Against float64 arithmetic on whole vectors."""
    base, other = case.base, case.tensors[0]
    result = merge("slerp", [other], base, parameters={"t": t}, out=torch.float64, block=case.block)
    a, b = base.double().reshape(-1), other.double().reshape(-1)
    lengths = [norm if norm > 1e-8 else 1.0 for norm in (float(a.norm()), float(b.norm()))]
    cosine = max(-1.0, min(1.0, float(a @ b) / lengths[0] / lengths[1]))
    first, second = 1 - t, t
    if abs(cosine) <= 0.9995:
        angle = torch.acos(torch.tensor(cosine, dtype=torch.float64))
        first, second = torch.sin((1 - t) * angle) / torch.sin(angle), torch.sin(t * angle) / torch.sin(angle)
    expected = (first * a + second * b).reshape(base.shape)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=2e-6)
