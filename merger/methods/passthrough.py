"""One model's weights as they are."""

from __future__ import annotations

from torch import Tensor

from merger.methods.define import each, merge_method
from merger.ops.deltas import weighted_sum
from merger.types import TensorContext


def _unscaled(context: TensorContext) -> int | None:
    return 0 if context.per_model("scale") == [1] else None


@merge_method(
    name="passthrough",
    pretty_name="Passthrough",
    split="elements",
    copies=_unscaled,
    preview="sample",
    base="none",
    max_models=1,
)
def passthrough(tensors: list[Tensor], scale: list[float] = each(1.0)) -> Tensor:
    """Takes each tensor from one model.

    y = scale x.

    For stacking layers of several models into a deeper one, with slices; the result usually needs some
    training before it is better than its parts.

    Args:
        scale: Factor on the tensor; 0 on an attention's or MLP's last projection switches it off.
    """
    return weighted_sum(tensors, scale)
