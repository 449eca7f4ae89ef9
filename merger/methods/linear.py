"""Weighted average of models."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import merge_method
from merger.ops.deltas import shares, weighted_sum
from merger.types import TensorContext


def _check(context: TensorContext) -> Iterator[Problem]:
    weights = context.per_model("weight")
    if not any(weights):
        yield Problem("every weight is 0; give at least one model a weight")
    elif context.parameters["normalize"] and abs(fsum(weights)) <= 1e-8 * fsum(map(abs, weights)):
        shown = ", ".join(f"{weight:g}" for weight in weights)
        yield Problem(f"the weights {shown} add up to 0 and cannot be divided by that; change one, or normalize: false")


def _only_model(context: TensorContext) -> int | None:
    weights = context.per_model("weight")
    used = [model for model, weight in enumerate(weights) if weight != 0]
    if len(used) != 1:
        return None
    return used[0] if context.parameters["normalize"] or weights[used[0]] == 1 else None


@merge_method(
    name="linear",
    pretty_name="Linear",
    reference_url="https://arxiv.org/abs/2203.05482",
    split="elements",
    check=_check,
    copies=_only_model,
    preview="sample",
    base="none",
    skips_zero_weight=True,
)
def linear(tensors: list[Tensor], weight: list[float], normalize: bool = True) -> Tensor:
    """Averages the models' weights.

    y = sum_i w_i x_i, divided by sum_i w_i if normalize.

    Model soups, Wortsman et al. 2022, arXiv 2203.05482. The first thing to try for models that were
    fine-tuned from one base on similar data. Models that learned different skills dilute each
    other here: use task arithmetic or TIES for those.

    Args:
        weight: Share of this model in the average.
        normalize: Divide the weights by their sum.
    """
    return weighted_sum(tensors, shares(weight) if normalize else weight)
