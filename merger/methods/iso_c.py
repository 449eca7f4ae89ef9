"""Isotropic merging in the common subspace."""

from __future__ import annotations

from torch import Tensor

from merger.methods.define import each, merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.singular import flatten_spectrum, matrices_whole, put_non_finite, square_bytes, take_non_finite


@merge_method(
    name="iso_c",
    pretty_name="Iso-C",
    reference_url="https://arxiv.org/abs/2502.04959",
    split=matrices_whole,
    workspace=lambda context: square_bytes(context, 4),
    skips_zero_weight=True,
)
def iso_c(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float] = each(1.0),
    lambda_: float = 1.0,
) -> Tensor:
    """Adds up the changes of each matrix and makes the sum equally strong in all its directions.

    sum_i w_i (x_i - b) = U diag(s) V^T by SVD; y = b + lambda mean(s) U V^T. The mean is over the rank, and
    directions in which nothing changed stay unchanged. Embeddings, output heads and tensors that are not
    matrices are merged by task arithmetic: y = b + lambda sum_i w_i (x_i - b).

    Marczak et al. 2025, arXiv 2502.04959. For several full fine-tunes whose sum is ruled by a few directions
    that they share. The paper has weights of 1, tunes lambda on validation data (begin with 1), and averages what
    is not a matrix: lower the weights there by a filter to do the same. Not for adapters of low rank that were
    merged into 16-bit weights: it would enlarge their rounding errors. Needs whole matrices in memory and one
    eigendecomposition of each.

    Args:
        weight: Factor on this model's change.
        lambda_: Factor on the merged change.
    """
    mixed = weighted_deltas(task_vectors(tensors, base_tensor), weight, normalize=False)
    if base_tensor.dim() == 2:
        not_finite = take_non_finite([mixed])
        mixed = put_non_finite(flatten_spectrum(mixed), not_finite)
    return add_to_base(base_tensor, mixed, lambda_)
