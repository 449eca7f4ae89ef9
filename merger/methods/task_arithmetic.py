"""Adding task vectors to the base."""

from __future__ import annotations

from torch import Tensor

from merger.methods.define import merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas


@merge_method(
    name="task_arithmetic",
    pretty_name="Task Arithmetic",
    reference_url="https://arxiv.org/abs/2212.04089",
    split="elements",
    aliases=("task",),
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def task_arithmetic(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    normalize: bool = False,
    lambda_: float = 1.0,
    int8_mask: bool = False,
) -> Tensor:
    """Adds up what each fine-tuning changed.

    y = b + lambda sum_i w_i (x_i - b), the sum divided by sum_i w_i if normalize.

    Ilharco et al. 2022, arXiv 2212.04089. For fine-tunes of one base that learned different skills: the sum
    keeps them where an average dilutes them. A negative weight removes a skill. Where changes
    contradict each other much, TIES does better.

    Args:
        weight: Factor on this model's change.
        normalize: Divide by the sum of the weights.
        lambda_: Factor on the sum of all changes.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    return add_to_base(base_tensor, weighted_deltas(deltas, weight, normalize), lambda_)
