"""Own changes enlarged, shared changes averaged."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from merger.methods.define import Between, merge_method
from merger.ops.columns import per_row
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.overlap import CountOverlaps, merge_overlaps
from merger.types import TensorContext


def _measure(context: TensorContext) -> CountOverlaps:
    return CountOverlaps(context.parameters["epsilon"])


def _enlargement(overlap: float, r: float, alpha: float) -> float:
    return 1.0 + r * max(0.0, min(overlap, alpha))


@merge_method(
    name="ramplus_tl",
    pretty_name="RAM+ (tensor-local)",
    reference_url="https://arxiv.org/abs/2601.13572",
    split="elements",
    measure=_measure,
    preview="sample",
)
def ramplus_tl(
    tensors: list[Tensor],
    base_tensor: Tensor,
    epsilon: Annotated[float, Between(0)] = 1e-5,
    r: Annotated[float, Between(0)] = 0.1,
    alpha: Annotated[float, Between(0)] = 0.2,
    *,
    measured: Any,
) -> Tensor:
    """Enlarges the changes that one model makes alone, the more it shares, and averages those that several make.

    d_i = x_i - b; m_i = 1 where |d_i| > epsilon, else 0; c = sum_i m_i;
    y = b + sum_i m_i d_i s_i where c = 1, and b + sum_i m_i d_i / c where c > 1, with
    s_i = 1 + r min(rho_i, alpha) and rho_i = (elements where m_i = 1, c > 1) / (elements where m_i = 1, c = 1).

    Reinforced Agent Merging, Yuan et al. 2026, arXiv 2601.13572, with the overlap counted in each tensor. As ram, for
    models whose shared changes lose too much in the average: their own ones make up for it. Where models
    change different elements it is ram.

    Args:
        epsilon: Changes up to this magnitude are none.
        r: How much the overlap enlarges a model's own changes.
        alpha: Overlap beyond which they are not enlarged further.
    """
    deltas = task_vectors(tensors, base_tensor)
    alone = [per_row(_enlargement, overlap, r, alpha) for overlap in measured]
    return add_to_base(base_tensor, merge_overlaps(deltas, epsilon, alone), 1.0)
