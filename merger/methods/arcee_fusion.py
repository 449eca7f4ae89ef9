"""Taking over the changes that matter most."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from merger.methods.define import merge_method
from merger.ops.importance import importance, importance_threshold, taken_over
from merger.types import Fold, TensorContext


def _measure(context: TensorContext) -> Fold:
    return importance_threshold()


@merge_method(
    name="arcee_fusion",
    pretty_name="Arcee Fusion",
    reference_url="https://arcee.ai",
    split="rows",
    measure=_measure,
    max_models=1,
)
def arcee_fusion(tensors: list[Tensor], base_tensor: Tensor, *, measured: Any) -> Tensor:
    """Takes over the other model's values where they change a lot in a row that changes a lot.

    p = softmax(x) + 1e-8 and q = softmax(b) + 1e-8 along the last dimension; K = max(sum p log(p / q), 0) of
    the row; importance = |x - b| K; y = x where importance >= median + 1.5 (third - first quartile) of the
    tensor's importances, else b.

    Arcee's MergeKit 2025; there is no paper. For giving a model the few changes of another that stand out,
    usually less than a tenth, without touching the rest. Rows without such changes stay the base's; for a
    share that one chooses, use ties. Quartiles are exact.
    """
    (tensor,) = tensors
    return taken_over(tensor, base_tensor, importance(tensor, base_tensor) < measured)
