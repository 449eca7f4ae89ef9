"""Drop changes at random and add up the rest."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.sparsify import drop_at_random
from merger.types import Noise


@merge_method(
    name="dare_linear",
    pretty_name="DARE linear",
    reference_url="https://arxiv.org/abs/2311.03099",
    split="elements",
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def dare_linear(
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
    """Drops most of each fine-tuning's changes at random, enlarges the rest, and adds them up.

    d_i = (x_i - b) r / density with r = 1 with probability `density`, else 0; y = b + lambda sum_i w_i d_i, the sum
    divided by sum_i w_i if normalize.

    DARE, Yu et al. 2023, arXiv 2311.03099. For fine-tunes with small changes, of which most can be dropped without
    loss; models then rarely meet in one element. With large changes (further pretraining) a low density
    hurts: raise it, or use TIES. The seed of the recipe decides what is dropped.

    Args:
        weight: Factor on this model's change.
        density: Probability of keeping a change.
        normalize: Divide by the sum of the weights.
        rescale: Divide what is kept by the density, so that the sum stays as large.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = drop_at_random(deltas, density, noise, rescale)
    return add_to_base(base_tensor, weighted_deltas(kept, weight, normalize), lambda_)
