"""Drop changes at random, elect sign and merge."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.consensus import disjoint_merge
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.sparsify import drop_at_random
from merger.types import Noise


@merge_method(
    name="dare_ties",
    pretty_name="DARE TIES",
    reference_url="https://arxiv.org/abs/2311.03099",
    split="elements",
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def dare_ties(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    density: list[Annotated[float, Between(0, 1)]] = each(1.0),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    *,
    noise: Noise,
) -> Tensor:
    """Drops most changes at random, enlarges the rest, and adds up those that agree on a direction.

    d_i = (x_i - b) r / density with r = 1 with probability `density`, else 0; s = sign of sum_i w_i d_i;
    y = b + lambda m, where m sums the w_i d_i of sign s, divided by the sum of their |w_i| if normalize.

    DARE, Yu et al. 2023, arXiv 2311.03099, with the sign election of TIES, arXiv 2306.01708. For several
    fine-tunes with small changes that contradict each other. The seed of the recipe decides what is dropped.

    Args:
        weight: Factor on this model's change.
        density: Probability of keeping a change.
        normalize: Divide by the weights of the models that take part, element by element.
        rescale: Divide what is kept by the density, so that the sum stays as large.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = drop_at_random(deltas, density, noise, rescale)
    return add_to_base(base_tensor, disjoint_merge(kept, weight, normalize), lambda_)
