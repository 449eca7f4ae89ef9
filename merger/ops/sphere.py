"""Interpolation on the sphere: the coefficients follow from norms and a dot product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from merger.ops.scratch import scratch
from merger.types import Block

SHORTEST = 1e-8
"""Vectors up to this norm have no direction."""

NEARLY_PARALLEL = 0.9995
"""Cosines beyond this are interpolated on the straight line."""


RUN = 4096
"""Products that are summed together first."""


@dataclass(frozen=True)
class Gram:
    """A fold that measures dot products of whole tensors in float64; values that are not finite count as 0.

    Attributes:
        vectors: picks the vectors out of a block.
    """

    vectors: Callable[[Block], Sequence[Tensor]]

    def start(self) -> list[float]:
        return []

    def add(self, state: list[float], block: Block) -> list[float]:
        wide = [_widened(vector, place) for place, vector in enumerate(self.vectors(block))]
        pairs = [_dot(a, b) for place, a in enumerate(wide) for b in wide[place:]]
        return self.join(state, pairs)

    def join(self, left: list[float], right: list[float]) -> list[float]:
        if not left or not right:
            return left or right
        return [a + b for a, b in zip(left, right, strict=True)]

    def finish(self, state: list[float]) -> list[float]:
        """The entries on and above the diagonal, row by row."""
        return state


def _widened(vector: Tensor, place: int) -> Tensor:
    wide = scratch(f"wide {place}", vector, torch.float64)
    return wide.copy_(vector).nan_to_num_(0.0, 0.0, 0.0).reshape(-1)


def _dot(a: Tensor, b: Tensor) -> float:
    """The dot product, summed in runs that no number of threads divides otherwise, as a BLAS would."""
    products = torch.mul(a, b, out=scratch("products", a, torch.float64))
    whole = products.numel() // RUN * RUN
    return float(products[:whole].view(-1, RUN).sum(1).sum() + products[whole:].sum())


def slerp_coefficients(t: float, base: float, both: float, other: float) -> tuple[float, float]:
    """What the two vectors are multiplied with at ``t`` of the way along the arc between them.

    Directions are compared, but the vectors keep their lengths (Shoemake, "Animating rotation with
    quaternion curves", 1985). Nearly parallel and nearly opposite vectors, and those without a
    direction, are interpolated on the straight line.

    Args:
        t: 0 for the base, 1 for the other.
        base: squared norm of the base.
        both: dot product.
        other: squared norm of the other.
    """
    norms = [math.sqrt(max(square, 0.0)) for square in (base, other)]
    lengths = [norm if norm > SHORTEST else 1.0 for norm in norms]
    cosine = max(-1.0, min(1.0, both / lengths[0] / lengths[1]))
    if t in (0, 1) or abs(cosine) > NEARLY_PARALLEL:
        return 1.0 - t, t
    angle = math.acos(cosine)
    return math.sin((1.0 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
