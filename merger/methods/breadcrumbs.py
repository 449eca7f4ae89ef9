"""Task vectors without their outliers and their smallest changes."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.cutting import largest_but_outliers
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.trim import keep_largest
from merger.types import Noise


@merge_method(
    name="breadcrumbs",
    pretty_name="Model Breadcrumbs",
    reference_url="https://arxiv.org/abs/2312.06795",
    split="elements",
    measure=largest_but_outliers,
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def breadcrumbs(
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
    """Adds up the changes of middling size: neither the very largest nor the small ones.

    d_i = x_i - b without its `gamma` largest magnitudes and, of the rest, without the smallest until `density` of
    all remain; y = b + lambda sum_i w_i d_i, the sum divided by sum_i w_i if normalize.

    Model Breadcrumbs, Davari and Belilovsky 2023, arXiv 2312.06795. For adding up many fine-tunes, where a few
    outliers of each do harm. Gamma is small (.01), density .1 to .9; at density 1 nothing is dropped.
    Where changes contradict each other, breadcrumbs_ties does better.

    Args:
        weight: Factor on this model's change.
        density: Share of this model's changes to keep; at least one is kept unless it is 0.
        gamma: Share of this model's changes to drop for being the largest, less if density leaves no room.
        normalize: Divide by the sum of the weights.
        rescale: Enlarge what is kept until its L1 norm is that of the whole change.
        lambda_: Factor on the sum of all changes.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = keep_largest(deltas, density, measured, noise)
    return add_to_base(base_tensor, weighted_deltas(kept, weight, normalize), lambda_)
