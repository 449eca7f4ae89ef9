"""Weighted average of models."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import merge_method
from merger.ops.deltas import shares, weighted_sum
from merger.ops.weights import only_used, sum_problem, unused_problem
from merger.types import TensorContext


def _check(context: TensorContext) -> Iterator[Problem]:
    weights = context.per_model("weight")
    yield from unused_problem(weights)
    if context.parameters["normalize"]:
        yield from sum_problem(weights, "normalize")


def _only_model(context: TensorContext) -> int | None:
    weights = context.per_model("weight")
    used = only_used(weights)
    return used if used is not None and (context.parameters["normalize"] or weights[used] == 1) else None


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
    fusable=True,
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
