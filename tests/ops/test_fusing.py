"""A kernel does in one pass what the written-down steps do one by one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.ops.bits import ALL
from merger.ops.consensus import disjoint_merge
from merger.ops.convert import stored_result
from merger.ops.deferred import Input
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas, weighted_sum
from merger.ops.fusing import formula_of
from merger.ops.noise import BlockNoise, HashKeys
from merger.ops.sparsify import drop_at_random, drop_by_rank
from merger.ops.trim import Cut, keep_largest

MODELS = 3
Function = Callable[[list[Any], Any, Any], Any]
SPECIAL = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, -1e-39, 3e38, -3e38]
numbers = st.sampled_from([0.0, 1.0, -0.5, 0.3, 1.7])
starts = st.integers(0, 2**40).filter(lambda start: start >> 32 == (start + 2999) >> 32)
weights = st.lists(numbers, min_size=MODELS, max_size=MODELS)
densities = st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=MODELS, max_size=MODELS)


def pattern(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


boundaries = st.tuples(st.sampled_from([0, pattern(2.0**-9), pattern(0.002)]), st.sampled_from([0, 1 << 30, ALL]))
cuts = st.builds(
    lambda lower, upper, factor: Cut(*lower, *upper, factor) if upper[0] > lower[0] else Cut(*lower, factor=factor),
    boundaries,
    boundaries,
    st.sampled_from([0.0, 1.0, 1.3]),
)


def inputs(dtype: torch.dtype, elements: int, seed: int, *, spoiled: bool) -> Tensor:
    """``[1 + models, elements]``: a base and fine-tunes with many equal and many missing changes."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(elements, generator=generator) * 0.02
    tuned = [base + torch.round(torch.randn(elements, generator=generator) * 2) / 512 for _ in range(MODELS)]
    values = torch.stack([base, *tuned])
    if spoiled:
        for value in SPECIAL:
            values.view(-1)[torch.randint(0, values.numel(), (5,), generator=generator)] = value
    return values.to(dtype)


def one_by_one(function: Function, values: Tensor, noise: Any, rows: int) -> Tensor:
    wide = [row.float().clone().view(rows, -1) if rows else row.float().clone() for row in values]
    merged: Tensor = function(wide[1:], wide[0], noise)
    return merged


def at_once(function: Function, values: Tensor, start: int, code: str, rows: int) -> tuple[bytes, int]:
    formula = formula_of(function([Input(1 + model) for model in range(MODELS)], Input(0), None))
    assert formula is not None
    kind = {torch.bfloat16: (torch.int16, np.uint16), torch.float32: (torch.int32, np.uint32)}[values.dtype]
    stored = values.view(kind[0]).numpy().view(kind[1])
    result = np.empty(stored.shape[1], np.uint16 if code == "BF16" else np.uint32)
    keys = HashKeys(7, "w", range(MODELS)).at(start)
    spoiled = formula.run(stored, stored.shape[1] // (rows or 1), keys, result)
    return result.tobytes(), spoiled


def compare(function: Function, *, start: int = 0, rows: int = 0, elements: int = 3000) -> None:
    shape = (rows, elements // rows) if rows else (elements,)
    for dtype, code, spoiled in [
        (torch.bfloat16, "BF16", False),
        (torch.float32, "F32", False),
        (torch.bfloat16, "F32", True),
        (torch.float32, "BF16", True),
    ]:
        values = inputs(dtype, elements, seed=start & 0xFFFF, spoiled=spoiled)
        noise = BlockNoise(7, "w", range(MODELS), start, shape)
        expected, count = stored_result(one_by_one(function, values, noise, rows), code)
        assert at_once(function, values, start, code, rows) == (bytes(expected), count)


@settings(max_examples=20, deadline=None)
@given(weights.filter(any), numbers)
def test_weighted_sums(coefficients, first):
    compare(lambda tensors, base, noise: weighted_sum([base, *tensors], [first, *coefficients]))


@settings(max_examples=20, deadline=None)
@given(weights, numbers, st.booleans())
def test_sums_of_changes(weight, factor, normalize):
    def steps(tensors: list[Any], base: Any, noise: Any) -> Any:
        return add_to_base(base, weighted_deltas(task_vectors(tensors, base), weight, normalize), factor)

    compare(steps)


@settings(max_examples=20, deadline=None)
@given(weights, numbers, st.booleans(), st.lists(cuts, min_size=MODELS, max_size=MODELS), starts)
def test_cut_and_elected_changes(weight, factor, normalize, found, start):
    def steps(tensors: list[Any], base: Any, noise: Any) -> Any:
        kept = keep_largest(task_vectors(tensors, base), [0.5] * MODELS, found, noise)
        return add_to_base(base, disjoint_merge(kept, weight, normalize), factor)

    compare(steps, start=start)


@settings(max_examples=20, deadline=None)
@given(weights, densities, st.booleans(), st.booleans(), starts)
def test_changes_dropped_at_random(weight, density, rescale, normalize, start):
    def steps(tensors: list[Any], base: Any, noise: Any) -> Any:
        kept = drop_at_random(task_vectors(tensors, base), density, noise, rescale)
        return add_to_base(base, disjoint_merge(kept, weight, normalize), 0.9)

    compare(steps, start=start)


@settings(max_examples=20, deadline=None)
@given(weights, densities, st.booleans(), st.sampled_from([1, 3, 3000]))
def test_changes_dropped_by_rank(weight, density, rescale, rows):
    def steps(tensors: list[Any], base: Any, noise: Any) -> Any:
        kept = drop_by_rank(task_vectors(tensors, base), density, [0.1, 0.2, 0.5], noise, rescale)
        return add_to_base(base, weighted_deltas(kept, weight, False), 1.0)

    compare(steps, rows=rows)


@pytest.mark.parametrize(
    "steps",
    [
        lambda tensors, base, noise: weighted_sum([tensors[1], tensors[0]], [0.5, 0.5]),
        lambda tensors, base, noise: weighted_sum([base, *tensors], [0.0] * 4),
        lambda tensors, base, noise: weighted_sum([base, *tensors], [torch.ones(2, 1)] * 4),
        lambda tensors, base, noise: task_vectors(tensors, base),
        lambda tensors, base, noise: base,
    ],
    ids=["another order", "nothing at all", "columns", "no result", "an input"],
)
def test_what_no_kernel_knows_is_left_to_torch(steps: Function):
    assert formula_of(steps([Input(1 + model) for model in range(MODELS)], Input(0), None)) is None


def test_steps_of_real_tensors_are_carried_out_at_once():
    values: Sequence[Tensor] = [torch.ones(3), torch.full((3,), 2.0)]
    assert torch.equal(weighted_sum(list(values), [0.5, 0.25]), torch.ones(3))
