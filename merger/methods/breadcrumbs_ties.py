"""Task vectors without their outliers and their smallest changes, where they agree on a direction."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.consensus import disjoint_merge
from merger.ops.cutting import largest_but_outliers
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.trim import keep_largest
from merger.types import Noise


@merge_method(
    name="breadcrumbs_ties",
    pretty_name="Model Breadcrumbs with TIES",
    reference_url="https://arxiv.org/abs/2312.06795",
    split="elements",
    measure=largest_but_outliers,
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def breadcrumbs_ties(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    density: list[Annotated[float, Between(0, 1)]] = each(1.0),
    gamma: list[Annotated[float, Between(0, 1)]] = each(0.01),
    normalize: bool = False,
    rescale: bool = False,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    *,
    measured: Any,
    noise: Noise,
) -> Tensor:
    """Adds up the changes of middling size that agree on a direction.

    d_i = x_i - b without its `gamma` largest magnitudes and, of the rest, without the smallest until `density` of
    all remain; s = sign of sum_i w_i d_i; y = b + lambda m, where m sums the w_i d_i of sign s, divided by
    the sum of their |w_i| if normalize.

    Model Breadcrumbs, Davari and Belilovsky 2023, arXiv 2312.06795, with the sign election of TIES, arXiv
    2306.01708. For several fine-tunes with outliers whose changes contradict each other; with gamma 0 it
    is ties without the division. At density 1 nothing is dropped.

    Args:
        weight: Factor on this model's change.
        density: Share of this model's changes to keep; at least one is kept unless it is 0.
        gamma: Share of this model's changes to drop for being the largest, less if density leaves no room.
        normalize: Divide by the weights of the models that take part, element by element.
        rescale: Enlarge what is kept until its L1 norm is that of the whole change.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = keep_largest(deltas, density, measured, noise)
    return add_to_base(base_tensor, disjoint_merge(kept, weight, normalize), lambda_)
