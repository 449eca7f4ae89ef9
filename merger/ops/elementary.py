"""Elementary functions of a Python number or of a float64 tensor, so that a formula is written once for both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from merger.ops.columns import Number


def root(value: Number) -> Number:
    """The square root; of 0 where rounding has made a sum of squares negative."""
    return value.clamp(min=0.0).sqrt() if isinstance(value, Tensor) else math.sqrt(max(value, 0.0))


def sine(angle: Number) -> Number:
    """The sine."""
    return angle.sin() if isinstance(angle, Tensor) else math.sin(angle)


def angle_of(cosine: Number) -> Number:
    """The angle between 0 and pi with a cosine that lies in [-1, 1]."""
    return cosine.acos() if isinstance(cosine, Tensor) else math.acos(cosine)


def at_least(lowest: float, value: Number) -> Number:
    """The value, or ``lowest`` where it is smaller."""
    return value.clamp(min=lowest) if isinstance(value, Tensor) else max(lowest, value)


def at_most(highest: float, value: Number) -> Number:
    """The value, or ``highest`` where it is larger."""
    return value.clamp(max=highest) if isinstance(value, Tensor) else min(highest, value)


def choose(condition: bool | Tensor, value: Number, otherwise: Number) -> Number:
    """``value`` where the condition holds, else ``otherwise``; both have been computed."""
    if not isinstance(condition, Tensor):
        return value if condition else otherwise
    chosen: Tensor = torch.where(condition, _float64(value, condition), _float64(otherwise, condition))
    return chosen


def _float64(value: Number, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)
