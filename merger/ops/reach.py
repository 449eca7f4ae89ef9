"""Limiting changes to a distance, as NearSwap does."""

from __future__ import annotations

import torch
from torch import Tensor

from merger.ops.columns import Number, number_like
from merger.ops.scratch import scratch

SMALLEST_CHANGE = 1e-6
"""Changes below this are divided by this instead."""


def within_reach(delta: Tensor, reach: Number) -> Tensor:
    """``min(reach / max(|delta|, 1e-6), 1) * delta`` in place: no change is larger than ``reach``.

    Args:
        delta: task vector; NaN and infinities become NaN.
        reach: 0 or more.
    """
    size = torch.abs(delta, out=scratch("size", delta, delta.dtype)).clamp_(min=SMALLEST_CHANGE)
    share = torch.div(number_like(reach, delta), size, out=size).clamp_(max=1.0)
    return delta.mul_(share)
