"""Own changes whole, shared changes averaged."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from merger.methods.define import Between, merge_method
from merger.ops.deltas import add_to_base, task_vectors
from merger.ops.overlap import merge_overlaps


@merge_method(
    name="ram",
    pretty_name="RAM",
    reference_url="https://arxiv.org/abs/2601.13572",
    split="elements",
    preview="sample",
)
def ram(tensors: list[Tensor], base_tensor: Tensor, epsilon: Annotated[float, Between(0)] = 1e-5) -> Tensor:
    """Keeps the changes that one model makes alone, and averages those that several make.

    d_i = x_i - b; m_i = 1 where |d_i| > epsilon, else 0; c = sum_i m_i;
    y = b + sum_i m_i d_i / c, and b where c = 0.

    Reinforced Agent Merging, Yuan et al. 2026, arXiv 2601.13572. For models trained by reinforcement learning, which
    change few elements each: an average would dilute what one alone has learned. Where every model changes
    nearly every element it is the plain mean, and linear is quicker.

    Args:
        epsilon: Changes up to this magnitude are none.
    """
    deltas = task_vectors(tensors, base_tensor)
    return add_to_base(base_tensor, merge_overlaps(deltas, epsilon, [1.0] * len(deltas)), 1.0)
