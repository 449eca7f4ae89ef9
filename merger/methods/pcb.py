"""Merging by balancing the competition of parameters."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.competition import Standing, competition, scores, share_weighted
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.trim import keep_largest
from merger.types import BLOCK_ELEMENTS, Noise, TensorContext


def _workspace(context: TensorContext) -> int:
    """A score for each model and a few products, at most float64."""
    return (len(context.models) + 6) * BLOCK_ELEMENTS * 8


@merge_method(
    name="pcb",
    pretty_name="PCB-Merging",
    reference_url="https://arxiv.org/abs/2410.02396",
    split="elements",
    measure=lambda context: competition(context.per_model("density")),
    workspace=_workspace,
)
def pcb(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float] = each(1.0),
    density: list[Annotated[float, Between(0, 1)]] = each(0.1),
    lambda_: float = 1.0,
    *,
    measured: Standing,
    noise: Noise,
) -> Tensor:
    """Mixes changes by how much each matters to its own model and how well it goes with the others'.

    d_i = x_i - b, n models; s_i = softmax(n norm(d_i d_i)) sum_j softmax(norm(d_i d_j)), where norm brings the
    products of one tensor into [0, 1] and softmax is over the tensor; s_i is 0 but for its largest `density`;
    y = b + lambda sum_i s_i w_i d_i / sum_i s_i.

    PCB-Merging, Du et al. 2024, arXiv 2410.02396. For fine-tunes that compete for the same elements: an element
    goes to the model that needs it most. The paper compares elements of the whole model, here those of one tensor
    are compared: every tensor keeps its share. It has weights of 1 or finds them by evolution; its program keeps
    .05 to .1 with a lambda of 1.2, and differs from its formula, which is what stands here (it clamps outliers, and
    tanh of summed products replaces the second softmax). Five passes over the models and work for each pair of
    them: many times slower than TIES.

    Args:
        weight: Factor on this model's change; a model of weight 0 still competes.
        density: Share of this model's elements to keep, the highest scores first.
        lambda_: Factor on the merged change.
    """
    deltas = task_vectors(tensors, base_tensor)
    shares = keep_largest(scores(deltas, measured.scales), density, measured.cuts, noise)
    return add_to_base(base_tensor, share_weighted(deltas, weight, shares), lambda_)
