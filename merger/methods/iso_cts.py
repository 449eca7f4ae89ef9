"""Isotropic merging in common and task-specific subspaces."""

from __future__ import annotations

from math import prod
from typing import Annotated

import torch
from torch import Tensor

from merger.methods.define import Between, each, merge_method
from merger.ops.deltas import add_to_base, task_vectors, weighted_deltas
from merger.ops.singular import (
    NEGLIGIBLE,
    is_matrix,
    matrices_whole,
    put_non_finite,
    recombined,
    remove_outputs,
    square_bytes,
    strongest,
    take_non_finite,
    weighted_changes,
    wide,
)
from merger.types import TensorContext


def _workspace(context: TensorContext) -> int:
    """The sum of all changes beside them, and square matrices."""
    return square_bytes(context, 7) + 8 * prod(context.shape) if is_matrix(context) else 0


@merge_method(
    name="iso_cts",
    pretty_name="Iso-CTS",
    reference_url="https://arxiv.org/abs/2502.04959",
    split=matrices_whole,
    workspace=_workspace,
    skips_zero_weight=True,
)
def iso_cts(
    tensors: list[Tensor],
    base_tensor: Tensor,
    weight: list[float] = each(1.0),
    common_space_fraction: Annotated[float, Between(0, 1)] = 0.8,
    lambda_: float = 1.0,
) -> Tensor:
    """Gives each model some directions of its own beside those of the sum, and makes all equally strong.

    d_i = w_i (x_i - b). The first `common_space_fraction` of the singular directions U_c of sum_i d_i are common;
    the rest is divided evenly between the models, each of which fills its part with the first singular directions
    of (1 - U_c U_c^T) d_i. U, s and V hold them all; y = b + lambda mean(s) U' V'^T with the orthonormal U' = U
    (U^T U)^(-1/2) and V' closest to U and V. Embeddings, output heads and tensors that are not matrices are merged
    by task arithmetic: y = b + lambda sum_i w_i (x_i - b).

    Marczak et al. 2025, arXiv 2502.04959. For many full fine-tunes (8 to 20 in the paper), where a sum loses what
    only one model knows; with a few models Iso-C is much the same and cheaper. The paper has weights of 1, a common
    space of .8, tunes lambda on validation data (begin with 1), and averages what is not a matrix. Not for adapters
    of low rank that were merged into 16-bit weights. Needs whole matrices in memory and T + 3 eigendecompositions
    of each.

    Args:
        weight: Factor on this model's change.
        common_space_fraction: Share of the directions that all models have in common.
        lambda_: Factor on the merged change.
    """
    deltas = task_vectors(tensors, base_tensor)
    if base_tensor.dim() != 2:
        return add_to_base(base_tensor, weighted_deltas(deltas, weight, normalize=False), lambda_)
    changes = weighted_changes(deltas, weight)
    if not changes:
        return base_tensor
    not_finite = take_non_finite(changes)
    common, own = _directions(min(base_tensor.shape), len(changes), common_space_fraction)
    shared = strongest(wide(_sum(changes)), common)
    negligible = NEGLIGIBLE * float(shared.values[-1]) if common and len(shared.values) else 0.0
    parts = [strongest(wide(remove_outputs(change, shared)), own, floor=negligible) for change in changes]
    values = torch.cat([part.values for part in (*parts, shared)])
    recombined([*parts, shared], values.mean().expand(len(values)), out=wide(changes[0]))
    return add_to_base(base_tensor, put_non_finite(changes[0], not_finite), lambda_)


def _directions(rank: int, models: int, fraction: float) -> tuple[int, int]:
    """How many directions are common, and how many each model has of its own; together they are all."""
    own = min(round((rank - int(rank * fraction)) / models), rank // models)
    return rank - own * models, own


def _sum(changes: list[Tensor]) -> Tensor:
    total = changes[0].clone()
    for change in changes[1:]:
        total.add_(change)
    return total
