"""Select, calculate and erase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from torch import Tensor

from merger.errors import Problem
from merger.methods.define import Between, merge_method
from merger.ops.consensus import disjoint_merge
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.spread import keep_most_spread, most_spread
from merger.types import Fold, Noise, TensorContext


def _measure(context: TensorContext) -> Fold | None:
    return most_spread(context.parameters["select_topk"])


def _one_model_or_base(context: TensorContext) -> int | None:
    if len(context.models) == 1:
        return 0
    return -1 if context.parameters["select_topk"] == 0 else None


def _unused_selection(context: TensorContext) -> Iterator[Problem]:
    if len(context.models) == 1 and context.parameters["select_topk"] < 1:
        yield Problem("select_topk has no effect on a single model: it compares models", level="warning")


@merge_method(
    name="sce",
    pretty_name="SCE",
    reference_url="https://arxiv.org/abs/2408.07990",
    split="elements",
    measure=_measure,
    check=_unused_selection,
    copies=_one_model_or_base,
    preview="sample",
)
def sce(
    tensors: list[Tensor],
    base_tensor: Tensor,
    select_topk: Annotated[float, Between(0, 1)] = 1.0,
    int8_mask: bool = False,
    *,
    measured: Any,
    noise: Noise,
) -> Tensor:
    """Adds up changes where fine-tunes differ most, each model weighted by how much it changed there.

    d_i = x_i - b, kept in the `select_topk` of the elements with the largest variance over models, the
    same for all; s = sign of sum_i d_i; m_i = 1 where d_i has sign s, else 0; c_i = mean(d_i^2) / sum_j mean(d_j^2);
    y = b + sum_i c_i m_i d_i / sum_i c_i m_i.

    SCE (FuseChat), Wan et al. 2024, arXiv 2408.07990. For fine-tunes of one base whose weights one does not want
    to choose by hand: they follow from the changes, tensor by tensor. A model that changed little has little say,
    however good it is; if it shall have more, use ties. Equal models do not differ: below a select_topk of 1
    nothing of them is kept.

    Args:
        select_topk: Share of the elements that differ between models to keep, those that differ most first.
        int8_mask: Accepted for recipes written elsewhere; has no effect.
    """
    deltas = task_vectors(tensors, base_tensor)
    kept = keep_most_spread(deltas, measured.cut, noise)
    return add_to_base(base_tensor, disjoint_merge(kept, measured.shares, normalize=True, weighs_votes=False), 1.0)
