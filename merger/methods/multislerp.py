"""Barycentric interpolation between any number of models on the sphere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import Between, merge_method
from merger.ops.deltas import add_to_base, shares, task_vectors, weighted_sum
from merger.ops.gram import Gram, coefficients
from merger.ops.sphere import multislerp_coefficients
from merger.ops.weights import sum_problem, unused_problem
from merger.types import TensorContext


def _check(context: TensorContext) -> Iterator[Problem]:
    weights = context.per_model("weight")
    yield from unused_problem(weights)
    if context.parameters["normalize_weights"]:
        yield from sum_problem(weights, "normalize_weights")


def _only_model(context: TensorContext) -> int | None:
    return 0 if len(context.models) == 1 else None


@merge_method(
    name="multislerp",
    pretty_name="Multi-SLERP",
    reference_url="https://goddard.blog/posts/multislerp-wow-what-a-cool-idea",
    split="elements",
    measure=lambda context: Gram(deltas=context.base_model is not None),
    check=_check,
    copies=_only_model,
    preview="gram",
    fusable=True,
)
def multislerp(
    tensors: list[Tensor],
    base_tensor: Tensor | None,
    weight: list[float],
    normalize_weights: bool = True,
    eps: Annotated[float, Between(0)] = 1e-8,
    *,
    measured: Any,
) -> Tensor:
    """Averages the directions of any number of models and gives the result their average length.

    m = sum_i w_i v_i/(|v_i| + eps); y = m/|m| sum_i w_i |v_i|, where v_i is a whole tensor, or with a base its change
    x_i - b, and b is added. The weights are divided by their sum if normalize_weights. Where the directions
    cancel each other (|m| < eps), y = sum_i w_i v_i.

    As defined in mergekit; no paper. SLERP for more than two models, in one step: cheaper than Karcher, which finds the
    true mean on the sphere, and nearly the same for small angles. For fine-tunes of one base without
    naming it the angles are tiny and the result is that of linear.

    Args:
        weight: Share of this model.
        normalize_weights: Divide the weights by their sum.
        eps: Added to each norm before dividing by it, so that a tensor of zeros is no trouble.
    """
    weights = shares(weight) if normalize_weights else weight
    factors = coefficients(lambda w, gram, one: multislerp_coefficients(w, gram, *one), weights, measured, [eps])
    if base_tensor is None:
        return weighted_sum(tensors, factors)
    return add_to_base(base_tensor, weighted_sum(task_vectors(tensors, base_tensor), factors), 1.0)
