"""How far to go from the base to the average follows from the angles between the models."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import merge_method
from merger.ops.columns import Number, per_row, total
from merger.ops.deltas import weighted_sum
from merger.ops.elementary import at_least, at_most, choose, root
from merger.ops.gram import Gram, row_gram
from merger.types import Split, TensorContext


def _split(context: TensorContext) -> Split:
    return "rows" if context.parameters["filter_wise"] else "elements"


def _measure(context: TensorContext) -> Gram | None:
    return None if context.parameters["filter_wise"] else Gram(deltas=True)


def _check(context: TensorContext) -> Iterator[Problem]:
    if len(context.models) == 1:
        yield Problem(
            "where only one model has a tensor there is nothing to compare it with, and the base's is copied",
            level="note",
        )


def _base_when_alone(context: TensorContext) -> int | None:
    return -1 if len(context.models) == 1 else None


def _by_tensor(context: TensorContext) -> bool:
    return not context.parameters["filter_wise"]


@merge_method(
    name="model_stock",
    pretty_name="Model Stock",
    reference_url="https://arxiv.org/abs/2403.19522",
    split=_split,
    measure=_measure,
    check=_check,
    copies=_base_when_alone,
    preview="gram",
    min_models=2,
    fusable=_by_tensor,
)
def model_stock(tensors: list[Tensor], base_tensor: Tensor, filter_wise: bool = False, *, measured: Any) -> Tensor:
    """Moves from the base towards the models' average, the further the more their changes agree.

    y = t mean_i(x_i) + (1 - t) b with t = N c/(1 + (N - 1) c), between 0 and 1, where c is the mean cosine between the
    changes x_i - b of two models.

    Model Stock, Jang et al. 2024, arXiv 2403.19522. For several fine-tunes of one base on the same data with other
    seeds or settings, without anything to tune. Fine-tunes of different tasks change in unrelated
    directions, which this takes for noise: the result stays close to the base.

    Args:
        filter_wise: Measure the angles row by row instead of once per tensor.
    """
    if filter_wise:
        ratio = interpolation_ratio(*row_gram(tensors, base_tensor))
    else:
        ratio = per_row(interpolation_ratio, *measured)
    share = ratio / len(tensors)
    return weighted_sum([base_tensor, *tensors], [1.0 - ratio, *[share] * len(tensors)])


def interpolation_ratio(*gram: Number) -> Number:
    """The paper's t, from the dot products of the changes on and above the diagonal, row by row.

    A model without a change counts as perpendicular to the others.
    """
    models = int((2 * len(gram)) ** 0.5)
    firsts = [place * models - place * (place - 1) // 2 for place in range(models)]
    norms = [root(gram[first]) for first in firsts]
    cosines = [
        _cosine(gram[firsts[one] + other - one], norms[one], norms[other])
        for one, other in combinations(range(models), 2)
    ]
    mean = at_least(0.0, total(cosines) / len(cosines))
    return at_most(1.0, models * mean / (1.0 + (models - 1) * mean))


def _cosine(both: Number, first: Number, second: Number) -> Number:
    has_none = (first == 0) | (second == 0)
    product = both / choose(has_none, 1.0, first) / choose(has_none, 1.0, second)
    return at_least(-1.0, at_most(1.0, choose(has_none, 0.0, product)))
