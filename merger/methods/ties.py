"""Trim, elect sign and merge."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.consensus import disjoint_merge
from merger.ops.cutting import largest
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.trim import keep_largest
from merger.types import Fold, Noise, TensorContext


def _measure(context: TensorContext) -> Fold | None:
    return largest(context.per_model("density"), rescale=context.parameters["rescale"])


@merge_method(
    name="ties",
    pretty_name="TIES",
    reference_url="https://arxiv.org/abs/2306.01708",
    split="elements",
    measure=_measure,
    preview="sample",
    skips_zero_weight=True,
    fusable=True,
)
def ties(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float],
    density: list[Annotated[float, Between(0, 1)]] = each(1.0),
    normalize: bool = True,
    rescale: bool = False,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    *,
    measured: Any,
    noise: Noise,
) -> Tensor:
    """Adds up the largest changes of each fine-tuning where they agree on a direction.

    d_i = the largest `density` of x_i - b by magnitude; s = sign of sum_i w_i d_i; y = b + lambda m, where m
    sums the w_i d_i of sign s, divided by the sum of their |w_i| if normalize.

    TIES-Merging, Yadav et al. 2023, arXiv 2306.01708. For several fine-tunes whose changes contradict each
    other. Densities of .2 to .5 are usual; with models that barely overlap task arithmetic is simpler.

    Args:
        weight: Factor on this model's change.
        density: Share of this model's changes to keep, the largest first.
        normalize: Divide by the weights of the models that take part, element by element.
        rescale: Enlarge what is kept until its L1 norm is that of the whole change.
        lambda_: Factor on the merged change.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = keep_largest(deltas, density, measured, noise)
    return add_to_base(base_tensor, disjoint_merge(kept, weight, normalize), lambda_)
