"""The mean of models on the sphere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import Between, each, merge_method
from merger.ops.deltas import weighted_sum
from merger.ops.gram import Gram, coefficients
from merger.ops.karcher import karcher_coefficients
from merger.ops.weights import only_used, unused_problem
from merger.types import TensorContext


def _check(context: TensorContext) -> Iterator[Problem]:
    return unused_problem(context.per_model("weight"))


def _only_model(context: TensorContext) -> int | None:
    return only_used(context.per_model("weight"))


@merge_method(
    name="karcher",
    pretty_name="Karcher mean",
    reference_url="https://en.wikipedia.org/wiki/Karcher_mean",
    split="elements",
    measure=lambda context: Gram(deltas=False),
    check=_check,
    copies=_only_model,
    preview="gram",
    base="none",
    skips_zero_weight=True,
    fusable=True,
)
def karcher(
    tensors: list[Tensor],
    weight: list[Annotated[float, Between(0)]] = each(1.0),
    max_iter: Annotated[int, Between(1)] = 10,
    tol: Annotated[float, Between(0)] = 1e-5,
    *,
    measured: Any,
) -> Tensor:
    """Finds the direction that is closest to those of all models along the sphere, and gives it their average length.

    y = u sum_i a_i |x_i| with a_i = w_i/sum_j w_j, where u minimizes sum_i a_i angle(u, x_i)^2 over unit vectors. From
    the direction of the average, u moves by T = sum_i a_i angle_i/sin(angle_i) (u_i - cos(angle_i) u) along the sphere
    until |T| <= tol.

    Karcher 1977, "Riemannian center of mass and mollifier smoothing". For any number of models that are far apart, of
    which none shall come first, as it does when SLERP is repeated. For fine-tunes of one base the angles
    are tiny and linear does the same.

    Args:
        weight: Share of this model in the mean.
        max_iter: Most steps towards the mean; a few are enough.
        tol: Steps and angles up to this are taken for none.
    """
    factors = coefficients(
        lambda weights, gram, one: karcher_coefficients(weights, gram, max_iter, *one), weight, measured, [tol]
    )
    return weighted_sum(tensors, factors)
