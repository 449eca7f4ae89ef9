"""Task arithmetic with what several models need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import Between, each, merge_method
from merger.ops.agreement import keep_needed
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.types import TensorContext


def _check(context: TensorContext) -> Iterator[Problem]:
    needed, models = context.parameters["k"], len(context.models)
    if needed > models:
        yield Problem(
            f"k is {needed} but only {models} of the models take part, so that the base comes out",
            hint="Lower k, or add models.",
            level="warning",
        )


@merge_method(
    name="consensus_ta",
    pretty_name="Consensus Task Arithmetic",
    reference_url="https://arxiv.org/abs/2405.07813",
    split="elements",
    check=_check,
    preview="sample",
    skips_zero_weight=True,
)
def consensus_ta(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float] = each(1.0),
    lambda_t: list[Annotated[float, Between(0)]] = each(0.4),
    k: Annotated[int, Between(1)] = 2,
    lambda_: float = 1.0,
) -> Tensor:
    """Adds up what each fine-tuning changed, where at least a few of the models need it.

    d_i = w_i (x_i - b), d = sum_i d_i; model i needs an element (its TALL mask) where |d_i| >= lambda_t |d - d_i|;
    y = b + lambda d in the elements that at least k models need, y = b in the others.

    Consensus Merging, Wang et al. 2024, arXiv 2405.07813. For many fine-tunes: it leaves out what only one model
    needs and what none does. The paper has weights of 1 and k = 2, and picks each task's lambda_t among .2, .3 ..
    .6 and lambda on validation data. With two models k = 2 keeps little more than where they agree; k = 1 leaves
    out only what no model needs.

    Args:
        weight: Factor on this model's change.
        lambda_t: How many times the others' change this model's must be to count as needed; larger keeps less.
        k: Fewest models that must need an element.
        lambda_: Factor on the sum of all changes.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = keep_needed(deltas, weight, lambda_t, k)
    return add_to_base(base_tensor, weighted_deltas(kept, weight, normalize=False), lambda_)
