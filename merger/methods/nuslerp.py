"""Spherical interpolation between two models or between their changes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from merger.methods.define import merge_method
from merger.ops.columns import per_row
from merger.ops.deltas import add_to_base, task_vectors, weighted_sum
from merger.ops.gram import ColumnGram, Gram, row_gram
from merger.ops.sphere import nuslerp_coefficients, share_of_opposite, weights_cancel
from merger.ops.weights import only_used
from merger.ops.witness import note_opposite
from merger.types import Fold, Split, TensorContext


def _split(context: TensorContext) -> Split:
    if context.parameters["nuslerp_flatten"]:
        return "elements"
    return "leading" if _goes_by_columns(context) else "rows"


def _goes_by_columns(context: TensorContext) -> bool:
    parameters = context.parameters
    return not parameters["nuslerp_flatten"] and parameters["nuslerp_row_wise"] and len(context.shape) > 1


def _measure(context: TensorContext) -> Fold | None:
    deltas = context.base_model is not None
    if context.parameters["nuslerp_flatten"]:
        return Gram(deltas)
    return ColumnGram(deltas) if _goes_by_columns(context) else None


def _end(context: TensorContext) -> int | None:
    weights = context.per_model("weight")
    return None if weights_cancel(*weights) else only_used(weights)


def _by_tensor(context: TensorContext) -> bool:
    return bool(context.parameters["nuslerp_flatten"])


@merge_method(
    name="nuslerp",
    pretty_name="NuSLERP",
    reference_url="https://github.com/arcee-ai/mergekit/blob/main/docs/merge_methods.md#nuslerp-nuslerp",
    split=_split,
    measure=_measure,
    copies=_end,
    preview="gram",
    needs_whole=_goes_by_columns,
    min_models=2,
    max_models=2,
    fusable=_by_tensor,
)
def nuslerp(
    tensors: list[Tensor],
    base_tensor: Tensor | None,
    weight: list[float],
    nuslerp_flatten: bool = True,
    nuslerp_row_wise: bool = False,
    *,
    measured: Any,
) -> Tensor:
    """Moves from one model to another along the arc between them, or between their changes to a base.

    y = sin((1 - t) a)/sin(a) v_1 + sin(t a)/sin(a) v_2, where t = w_2/(w_1 + w_2) and a is the angle between the
    tensors v_1 and v_2; with a base, v_i = x_i - b and b is added. A straight line where they are parallel or so
    nearly opposite that no arc is the shortest.

    SLERP (Shoemake 1985) with weights, as defined in mergekit; no paper. For two models; with a base for two
    fine-tunes of it, whose changes keep their size where an average shortens them. Nearly equal vectors give
    what linear gives; for more than two models use multi-SLERP or Karcher.

    Args:
        weight: Share of this model; only the ratio of the two counts.
        nuslerp_flatten: Take the whole tensor as one vector; off, each row of the last dimension by itself.
        nuslerp_row_wise: Without flattening, take the vectors along dimension 0 instead of the last.
    """
    gram = measured or row_gram(tensors, base_tensor)
    note_opposite(lambda: share_of_opposite(*gram))
    if nuslerp_flatten:
        coefficients = per_row(nuslerp_coefficients, *weight, *gram)
    else:
        coefficients = nuslerp_coefficients(*weight, *gram)
    if base_tensor is None:
        return weighted_sum(tensors, coefficients)
    return add_to_base(base_tensor, weighted_sum(task_vectors(tensors, base_tensor), coefficients), 1.0)
