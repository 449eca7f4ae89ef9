"""Small cases that can be worked out by hand, and the traps of each method."""

from __future__ import annotations

import math

import pytest
import torch

from tests.methods.driver import copied, merge, problems

NAN, INF = math.nan, math.inf


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values)


# linear


def test_linear_divides_weights_by_their_sum():
    assert merge("linear", [vector(1.0), vector(5.0)], weight=[3.0, 1.0]).tolist() == [2.0]
    unnormalized = merge("linear", [vector(1.0), vector(5.0)], weight=[3.0, 1.0], parameters={"normalize": False})
    assert unnormalized.tolist() == [8.0]


def test_linear_rounds_coefficients_to_float32_and_terms_one_by_one():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(10_000, generator=generator) for _ in range(3)]
    c = [torch.tensor(w / (0.1 + 0.2 + 0.4), dtype=torch.float32) for w in (0.1, 0.2, 0.4)]
    expected = (c[0] * tensors[0] + c[1] * tensors[1]) + c[2] * tensors[2]
    assert torch.equal(merge("linear", tensors, weight=[0.1, 0.2, 0.4]), expected)


def test_linear_works_in_float64_when_an_input_is_float64():
    a, b = torch.tensor([1.0 + 2**-40], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    assert merge("linear", [a, b], weight=[0.1, 0.2]).tolist() == [pytest.approx(1 + 2**-40 / 3, rel=1e-16)]


def test_linear_refuses_weights_that_add_up_to_nothing():
    (problem,) = problems("linear", weight=[1.0, -1.0])
    assert problem.level == "error" and "1, -1 add up to 0" in problem.message
    (problem,) = problems("linear", weight=[1.0, -1.0 + 1e-12])
    assert problem.level == "error"
    assert problems("linear", {"normalize": False}, weight=[1.0, -1.0]) == []
    (problem,) = problems("linear", {"normalize": False}, weight=[0.0, 0.0])
    assert "every weight is 0" in problem.message


def test_a_result_that_is_one_of_the_inputs_is_copied():
    assert copied("linear", 2, weight=[0.0, 0.7]) == 1
    assert copied("linear", 2, {"normalize": False}, weight=[0.0, 0.7]) is None
    assert copied("linear", 2, {"normalize": False}, weight=[1.0, 0.0]) == 0
    assert copied("linear", 2, weight=[0.5, 0.5]) is None
    assert copied("slerp", 1, {"t": 0}, base=True) == 0
    assert copied("slerp", 1, {"t": 1.0}, base=True) == 1
    assert copied("slerp", 1, {"t": 0.5}, base=True) is None
    assert copied("passthrough", 1) == 0
    assert copied("passthrough", 1, scale=[0.5]) is None


# slerp


@pytest.mark.parametrize(("t", "place"), [(0, 0), (1, 1)])
def test_slerp_ends_are_bitwise_the_models_whatever_the_other_holds(t, place):
    ends = vector(-0.0, 1.5, 3.0), vector(INF, NAN, 1e-40)
    result = merge("slerp", [ends[1]], ends[0], parameters={"t": t})
    assert torch.equal(result.view(torch.int32), ends[place].view(torch.int32))


def test_slerp_of_perpendicular_vectors_keeps_their_length():
    result = merge("slerp", [vector(0.0, 2.0)], vector(2.0, 0.0), parameters={"t": 0.5})
    torch.testing.assert_close(result, vector(math.sqrt(2), math.sqrt(2)))


def test_slerp_with_a_zero_vector_and_with_itself():
    result = merge("slerp", [vector(0.0, 0.0)], vector(2.0, 0.0), parameters={"t": 0.5})
    torch.testing.assert_close(result, vector(math.sqrt(2), 0.0))
    same = vector(0.1, -0.7, 3.0)
    torch.testing.assert_close(merge("slerp", [same], same, parameters={"t": 0.3}), same)


# task vectors


@pytest.mark.parametrize(("normalize", "expected"), [(False, 1.0 + 2 * (0.5 + 3 * 0.5)), (True, 1.0 + 2 * (2.0 / 3.5))])
def test_task_arithmetic_by_hand(normalize, expected):
    result = merge(
        "task_arithmetic",
        [vector(2.0), vector(1.5)],
        vector(1.0),
        weight=[0.5, 3.0],
        parameters={"lambda": 2.0, "normalize": normalize},
    )
    assert result.tolist() == [pytest.approx(expected)]


def test_weights_that_cancel_are_not_divided_by():
    result = merge(
        "task_arithmetic", [vector(3.0), vector(2.0)], vector(1.0), weight=[1.0, -1.0], parameters={"normalize": True}
    )
    assert result.tolist() == [2.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_results_are_the_float32_result_rounded_once(dtype):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(5000, generator=generator).to(dtype)
    tensors = [(base + 0.01 * torch.randn(5000, generator=generator)).to(dtype) for _ in range(3)]
    deltas = [weight * (x.float() - base.float()) for x, weight in zip(tensors, (0.5, 0.25, 2.0), strict=True)]
    expected = base.float() + ((deltas[0] + deltas[1]) + deltas[2])
    result = merge("task_arithmetic", tensors, base, weight=[0.5, 0.25, 2.0])
    assert torch.equal(result, expected.to(dtype))


def test_ties_divides_by_the_size_of_negative_weights():
    result = merge("ties", [vector(1.0), vector(-2.0)], vector(0.0), weight=[1.0, -0.5])
    assert result.tolist() == [pytest.approx(2 / 1.5)]


def test_ties_of_five_elements_at_density_a_tenth_keeps_exactly_the_maximum():
    tuned = vector(0.1, -0.5, 0.2, 0.4, 0.3)
    result = merge("ties", [tuned], torch.zeros(5), weight=[1.0], density=[0.1])
    assert torch.equal(result, vector(0.0, -0.5, 0.0, 0.0, 0.0))


def test_the_weight_takes_part_in_the_election():
    result = merge("ties", [vector(1.0), vector(-2.0)], vector(0.0), weight=[1.0, 0.4])
    assert result.tolist() == [1.0]


@pytest.mark.parametrize("method", ["ties", "dare_linear", "dare_ties", "della", "della_linear"])
def test_density_zero_contributes_nothing(method):
    base = vector(1.0, 2.0, 3.0)
    alone = merge(method, [vector(INF, 0.0, NAN)], base, weight=[1.0], density=[0.0])
    assert torch.equal(alone, base)
    both = merge(method, [vector(5.0, 5.0, 5.0), vector(2.0, 3.0, 4.0)], base, weight=[1.0, 1.0], density=[0.0, 1.0])
    assert torch.equal(both, base + 1.0)


def test_dare_survivors_are_exactly_doubled_at_density_one_half():
    tuned = torch.tensor([1000.0] + [0.001] * 999)
    result = merge("dare_linear", [tuned], torch.zeros(1000), weight=[1.0], density=[0.5])
    assert set(result.tolist()) <= {0.0, 2000.0, torch.tensor(0.002).item()}
    plain = merge("dare_linear", [tuned], torch.zeros(1000), weight=[1.0], density=[0.5], parameters={"rescale": False})
    assert torch.equal(plain * 2, result)


def test_rescaled_float16_ones_become_zeros_and_twos():
    ones = torch.ones(160_000, dtype=torch.float16)
    for method, parameters in (("dare_linear", {}), ("ties", {"rescale": True})):
        result = merge(method, [ones], torch.zeros_like(ones), weight=[1.0], density=[0.5], parameters=parameters)
        assert result.unique().tolist() == [0.0, 2.0]


def test_dare_needs_no_rescaling_on_average():
    count = 1 << 18
    result = merge("dare_linear", [torch.ones(count)], torch.zeros(count), weight=[1.0], density=[0.1])
    assert float(result.double().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(0.9 / 0.1 / count))


def test_della_rows_are_those_of_the_first_dimension():
    """A tensor with three dimensions has its rank taken over the last two."""
    tuned = torch.arange(1.0, 25.0).reshape(2, 3, 4)
    kept = 0
    for seed in range(200):
        merged = merge("della", [tuned], torch.zeros(2, 3, 4), weight=[1.0], density=[0.5], epsilon=[0.5], seed=seed)
        kept = kept + (merged != 0)
    assert bool((kept[:, 0, 0] == 0).all()) and bool((kept[:, 2, 3] == 200).all())
    assert 0 < int(kept[0, 2, 0]) < 200


def test_della_warns_when_epsilon_does_not_fit():
    found = problems("della", weight=[1.0, 1.0, 1.0], density=[0.1, 0.5, 1.0], epsilon=[0.2, 0.2, 0.2])
    assert [(p.level, p.message) for p in found] == [
        (
            "warning",
            "epsilon of a is reduced from 0.2 to 0.1, which keeps probabilities around density 0.1 between 0 and 1",
        )
    ]


@pytest.mark.parametrize("density", [-0.1, 1.1, NAN])
def test_a_density_that_is_no_share_is_an_error(density):
    (problem,) = problems("ties", weight=[1.0, 1.0], density=[0.5, density])
    assert problem.level == "error" and problem.message.startswith("density of b is ")


# passthrough


def test_passthrough_scales():
    assert merge("passthrough", [vector(1.0, -2.0)], scale=[0.5]).tolist() == [0.5, -1.0]
    assert merge("passthrough", [vector(NAN, -2.0)], scale=[0.0]).tolist() == [0.0, 0.0]


def test_int8_mask_is_accepted_without_effect():
    tuned, base = vector(1.0, 5.0, -3.0), torch.zeros(3)
    for method in ("task_arithmetic", "ties", "dare_linear", "dare_ties", "della", "della_linear"):
        one, other = (
            merge(method, [tuned], base, weight=[1.0], parameters={"int8_mask": flag}) for flag in (True, False)
        )
        assert torch.equal(one, other)
