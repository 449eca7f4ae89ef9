"""Consensus Task Arithmetic: elements that several models need."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.graph import BlockMerge
from merger.methods import registry
from tests.methods.driver import make_task, merge

FIRST, SECOND = torch.tensor([1.0, 1.0, 0.0, 2.0]), torch.tensor([1.0, -0.5, 0.0, 0.0])
seeds = st.integers(0, 2**31)


def consensus(tensors: list[Tensor], k: int, weight: float, threshold: float) -> Tensor:
    changes = [weight * tensor for tensor in tensors]
    total = changes[0] + changes[1] + changes[2]
    needed = sum((change.abs() >= (total - change).abs() * threshold).int() for change in changes)
    return total * (needed >= k)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [2.0, 0.5, 0.0, 2.0]), (2, [2.0, 0.0, 0.0, 0.0]), (3, [0.0, 0.0, 0.0, 0.0])]
)
def test_an_element_stays_where_at_least_k_models_need_it(k, expected):
    merged = merge("consensus_ta", [FIRST, SECOND], torch.zeros(4), lambda_t=[1.0, 1.0], parameters={"k": k})
    assert merged.tolist() == expected


def test_each_model_has_its_own_threshold():
    merged = merge("consensus_ta", [FIRST, SECOND], torch.zeros(4), lambda_t=[1.0, 0.25])
    assert merged.tolist() == [2.0, 0.5, 0.0, 0.0]


def test_what_is_not_needed_is_the_base_exactly():
    base = torch.tensor([0.1, 0.2, 0.3, 0.4])
    merged = merge("consensus_ta", [base + FIRST, base + SECOND], base, lambda_t=[1.0, 1.0])
    assert merged[1:].tolist() == base[1:].tolist() and merged[0] == base[0] + 2.0


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(1, 3), st.sampled_from([0.25, 0.5, 1.0]))
def test_it_is_task_arithmetic_under_the_consensus_of_the_tall_masks(seed, k, threshold):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-3, 4, (50,), generator=generator).float() for _ in range(3)]
    merged = merge(
        "consensus_ta", tensors, torch.zeros(50), weight=[0.5] * 3, lambda_t=[threshold] * 3, parameters={"k": k}
    )
    assert torch.equal(merged, consensus(tensors, k, 0.5, threshold))


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_a_larger_threshold_keeps_less(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(60, generator=generator) for _ in range(3)]
    loose, strict = (merge("consensus_ta", tensors, torch.zeros(60), lambda_t=[t] * 3) != 0 for t in (0.2, 0.9))
    assert bool((strict <= loose).all())


def test_identical_models_are_added_up():
    merged = merge("consensus_ta", [FIRST] * 3, torch.zeros(4), parameters={"lambda": 2.0})
    assert torch.equal(merged, 6 * FIRST)


@pytest.mark.parametrize(("models", "problems"), [(1, 1), (2, 0), (3, 0)])
def test_a_consensus_of_more_models_than_there_are_is_pointed_out(models, problems):
    method = registry.get("consensus_ta")
    task = make_task(method, shape=(4,), models=models, base=True, parameters={}, per_model={})
    assert isinstance(task, BlockMerge)
    found = method.check(task.context())
    assert [problem.level for problem in found] == ["warning"] * problems
