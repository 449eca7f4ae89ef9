"""The mean of directions on the sphere (Karcher, "Riemannian center of mass and mollifier smoothing", 1977).

The mean lies in the span of the vectors, so every step needs only their dot products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from merger.ops.gram import square_matrix
from merger.ops.sphere import RESOLUTION, quadratic_form

OPPOSITE = 1e-4
"""Directions whose angle is this close to pi have no shortest arc between them."""


@dataclass(frozen=True)
class Directions:
    """Unit vectors with weights.

    A vector in their span is given by what they are multiplied with.

    Attributes:
        cosines: between each two of them.
        weights: that sum to 1.
    """

    cosines: Sequence[Sequence[float]]
    weights: Sequence[float]

    def normalized(self, factors: Sequence[float]) -> list[float]:
        """The vector of norm 1 in this direction."""
        norm = math.sqrt(quadratic_form(self.cosines, factors))
        return [factor / norm for factor in factors]

    def start(self, tol: float) -> list[float]:
        """The direction of the weighted mean, or the first vector where the vectors cancel each other."""
        if math.sqrt(quadratic_form(self.cosines, self.weights)) >= max(tol, RESOLUTION):
            return self.normalized(self.weights)
        first = next(place for place, weight in enumerate(self.weights) if weight)
        return [float(place == first) for place in range(len(self.weights))]

    def step(self, mean: Sequence[float], tol: float) -> list[float] | None:
        """The weighted mean of the arcs from ``mean`` to the vectors; None when one of them has no shortest arc."""
        lengths, along = [], 0.0
        for row, weight in zip(self.cosines, self.weights, strict=True):
            cosine = max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(row, mean, strict=True))))
            angle = math.acos(cosine)
            if weight and math.pi - angle < OPPOSITE:
                return None
            length = weight * angle / math.sin(angle) if weight and angle > tol else 0.0
            lengths.append(length)
            along += length * cosine
        return [length - along * factor for length, factor in zip(lengths, mean, strict=True)]

    def mean(self, max_iter: int, tol: float) -> list[float]:
        """The vector of norm 1 whose squared distances to the others, along the sphere, have the least weighted sum."""
        mean = self.start(tol)
        for _ in range(max_iter):
            step = self.step(mean, tol)
            distance = 0.0 if step is None else math.sqrt(quadratic_form(self.cosines, step))
            if step is None or distance <= tol:
                break
            stay, move = math.cos(distance), math.sin(distance) / distance
            mean = self.normalized([stay * a + move * b for a, b in zip(mean, step, strict=True)])
        return mean


def karcher_coefficients(weights: Sequence[float], gram: Sequence[float], max_iter: int, tol: float) -> list[float]:
    """What vectors are multiplied with to give the mean of their directions their weighted mean norm.

    Vectors without a direction take part in the mean norm only. Directions that are opposite to the mean leave it
    where it is.

    Args:
        weights: one for each vector, not negative and not all 0.
        gram: dot products of the vectors, on and above the diagonal.
        max_iter: most steps towards the mean.
        tol: steps and angles up to this count as none.
    """
    matrix, whole = square_matrix(gram), math.fsum(weights)
    shares = [weight / whole for weight in weights]
    norms = [math.sqrt(row[place]) for place, row in enumerate(matrix)]
    valid = [place for place, norm in enumerate(norms) if norm]
    known = math.fsum(shares[place] for place in valid)
    if not known:
        return shares
    cosines = [[matrix[a][b] / norms[a] / norms[b] for b in valid] for a in valid]
    mean = Directions(cosines, [shares[place] / known for place in valid]).mean(max_iter, tol)
    size = math.fsum(share * norm for share, norm in zip(shares, norms, strict=True))
    found = list(shares)
    for place, factor in zip(valid, mean, strict=True):
        found[place] = size * factor / norms[place]
    return found
