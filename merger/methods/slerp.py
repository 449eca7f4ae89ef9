"""Spherical interpolation between two models."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from merger.methods.define import Between, merge_method
from merger.ops.columns import per_row
from merger.ops.deltas import weighted_sum
from merger.ops.gram import Gram
from merger.ops.sphere import slerp_coefficients
from merger.types import TensorContext


def _end(context: TensorContext) -> int | None:
    return {0: -1, 1: 0}.get(context.parameters["t"])


@merge_method(
    name="slerp",
    pretty_name="SLERP",
    reference_url="https://en.wikipedia.org/wiki/Slerp",
    split="elements",
    measure=lambda context: Gram(deltas=False),
    copies=_end,
    preview="gram",
    max_models=1,
    fusable=True,
)
def slerp(tensors: list[Tensor], base_tensor: Tensor, t: Annotated[float, Between(0, 1)], *, measured: Any) -> Tensor:
    """Moves from the base to one other model along the arc between them.

    y = sin((1 - t) a)/sin(a) x_0 + sin(t a)/sin(a) x_1, where a is the angle between the tensors x_0 of
    the base and x_1 of the other; a straight line where they are nearly parallel.

    Shoemake 1985. For two models that are far apart, whose plain average would come out too short; for
    fine-tunes of one base the angle is tiny and the result is that of linear: NuSLERP with a base compares what they
    changed instead.

    Args:
        t: How far to go: 0 is the base, 1 the other model.
    """
    return weighted_sum([base_tensor, *tensors], per_row(slerp_coefficients, t, *measured))
