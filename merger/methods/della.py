"""Drop small changes with higher probability, elect sign and merge."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.consensus import disjoint_merge
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.sparsify import drop_by_rank, spread_problems
from merger.types import Noise


@merge_method(
    name="della",
    pretty_name="DELLA",
    reference_url="https://arxiv.org/abs/2406.11617",
    split="leading",
    check=spread_problems,
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def della(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    density: list[Annotated[float, Between(0, 1)]] = each(1.0),
    epsilon: list[Annotated[float, Between(0, 1)]] = each(0.15),
    normalize: bool = True,
    rescale: bool = True,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    *,
    noise: Noise,
) -> Tensor:
    """Drops small changes more often than large ones, and adds up those that agree on a direction.

    p_i = density - epsilon + 2 epsilon r, r = rank of the change's magnitude in its row, scaled to [0, 1];
    d_i = (x_i - b) / p_i with probability p_i, else 0; s = sign of sum_i w_i d_i; y = b + lambda m, where m
    sums the w_i d_i of sign s, divided by the sum of their |w_i| if normalize.

    DELLA-Merging, Deep et al. 2024, arXiv 2406.11617. Between TIES, which keeps exactly the largest changes, and
    DARE, which ignores magnitude. Ranks cost time: expect several times that of DARE.

    Args:
        weight: Factor on this model's change.
        density: Mean probability of keeping a change.
        epsilon: How far the probability of the largest and the smallest change lies from the density.
        normalize: Divide by the weights of the models that take part, element by element.
        rescale: Divide what is kept by its probability, so that the sum stays as large.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = drop_by_rank(deltas, density, epsilon, noise, rescale)
    return add_to_base(base_tensor, disjoint_merge(kept, weight, normalize), lambda_)
