"""Merging of task singular vectors."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.singular import (
    matrices_whole,
    put_non_finite,
    recombined,
    square_bytes,
    strongest,
    take_non_finite,
    weighted_changes,
    wide,
)
from merger.types import Split, TensorContext


def _split(context: TensorContext) -> Split:
    """One model with all its directions needs no decomposition."""
    weights = [weight for weight in context.per_model("weight") if weight != 0]
    is_whole = len(weights) == 1 and context.parameters["rank_fraction"] in (0, 1)
    return "elements" if is_whole else matrices_whole(context)


def _workspace(context: TensorContext) -> int:
    return square_bytes(context, 7) if _split(context) == "tensor" else 0


@merge_method(
    name="tsv_m",
    pretty_name="TSV-Merge",
    reference_url="https://arxiv.org/abs/2412.00081",
    split=_split,
    workspace=_workspace,
    aliases=("tsvm",),
    skips_zero_weight=True,
)
def tsv_m(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float] = each(1.0),
    rank_fraction: Annotated[float, Between(0, 1)] = 0.0,
    lambda_: float = 1.0,
) -> Tensor:
    """Keeps the strongest singular directions of each change and makes those of all models orthogonal.

    w_i (x_i - b) = U_i diag(s_i) V_i^T by SVD, of which the first k = rank / T directions are kept for T models;
    U = [U_1 .. U_T] and V likewise; y = b + lambda U' diag(s) V'^T with the orthonormal U' = U (U^T U)^(-1/2) and
    V' closest to them. Embeddings, output heads and tensors that are not matrices are merged by task arithmetic:
    y = b + lambda sum_i w_i (x_i - b).

    TSV-Merge, Gargiulo et al. 2024, arXiv 2412.00081. For many fine-tunes of one base, whose changes have low rank
    and get in each other's way. The paper has weights of 1, lambda 1 and a share of 1/T of the directions, and
    averages what is not a matrix: lower the weights there by a filter to do the same. With two or three models that
    hardly interfere, it throws away more than it gains. Needs whole matrices in memory and T + 2
    eigendecompositions of each.

    Args:
        weight: Factor on this model's change.
        rank_fraction: Share of each model's singular directions to keep; 0 is one over the number of models.
        lambda_: Factor on the merged change.
    """
    deltas = task_vectors(tensors, base_tensor)
    if base_tensor.dim() != 2:
        return add_to_base(base_tensor, weighted_deltas(deltas, weight, normalize=False), lambda_)
    changes = weighted_changes(deltas, weight)
    if not changes:
        return base_tensor
    not_finite = take_non_finite(changes)
    rank = min(base_tensor.shape)
    kept = int(rank * rank_fraction) if rank_fraction else rank // len(changes)
    parts = [strongest(wide(change), max(1, kept)) for change in changes]
    recombined(parts, torch.cat([part.values for part in parts]), out=wide(changes[0]))
    return add_to_base(base_tensor, put_non_finite(changes[0], not_finite), lambda_)
