"""Moving towards another model where the two are close."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, merge_method
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.reach import within_reach
from merger.types import TensorContext


def _base_alone(context: TensorContext) -> int | None:
    return -1 if context.parameters["t"] == 0 else None


@merge_method(
    name="nearswap",
    pretty_name="NearSwap",
    reference_url="https://huggingface.co/alchemonaut/QuartetAnemoi-70B-t0.0001",
    split="elements",
    copies=_base_alone,
    preview="sample",
    max_models=1,
)
def nearswap(tensors: list[Tensor], base_tensor: Tensor, t: Annotated[float, Between(0)]) -> Tensor:
    """Takes over the other model's values where they are within t of the base's, and moves by t elsewhere.

    y = b + c (x - b) with c = t / max(|x - b|, 1e-6), at most 1.

    By alchemonaut, 2024; there is no paper. For giving a base a touch of another model: no value moves further
    than t, usually .0001 to .01. For a true mixture use slerp or linear.

    Args:
        t: The furthest that a value may move; 0 is the base.
    """
    (delta,) = task_vectors(tensors, base_tensor)
    return add_to_base(base_tensor, within_reach(delta, t), 1.0)
