"""Drop small changes with higher probability and add up the rest."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.sparsify import drop_by_rank, spread_problems
from merger.types import Noise


@merge_method(
    name="della_linear",
    pretty_name="DELLA linear",
    reference_url="https://arxiv.org/abs/2406.11617",
    split="leading",
    check=spread_problems,
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def della_linear(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    density: list[Annotated[float, Between(0, 1)]] = each(1.0),
    epsilon: list[Annotated[float, Between(0, 1)]] = each(0.15),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    *,
    noise: Noise,
) -> Tensor:
    """Drops small changes more often than large ones, enlarges the rest, and adds them up.

    p_i = density - epsilon + 2 epsilon r, r = rank of the change's magnitude in its row, scaled to [0, 1];
    d_i = (x_i - b) / p_i with probability p_i, else 0; y = b + lambda sum_i w_i d_i, the sum
    divided by sum_i w_i if normalize.

    DELLA-Merging, Deep et al. 2024, arXiv 2406.11617, without its sign election: for models that seldom
    contradict each other. Ranks cost time: expect several times that of DARE.

    Args:
        weight: Factor on this model's change.
        density: Mean probability of keeping a change.
        epsilon: How far the probability of the largest and the smallest change lies from the density.
        normalize: Divide by the sum of the weights.
        rescale: Divide what is kept by its probability, so that the sum stays as large.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = drop_by_rank(deltas, density, epsilon, noise, rescale)
    return add_to_base(base_tensor, weighted_deltas(kept, weight, normalize), lambda_)
