"""Interpolation on the sphere: what vectors are multiplied with follows from their dot products alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from merger.ops.columns import Number
from merger.ops.elementary import angle_of, at_least, at_most, choose, root, sine
from merger.ops.gram import square_matrix

SHORTEST = 1e-8
"""SLERP: vectors up to this norm have no direction."""

NEARLY_PARALLEL = 0.9995
"""SLERP: cosines beyond this are interpolated on the straight line."""

LEAST_LENGTH = 1e-7
"""NuSLERP: what shorter vectors are divided by to get their direction."""

RESOLUTION = 1e-7
"""Norm of a sum of unit vectors, weighted to 1, below which float64 dot products cannot tell it from 0."""


def slerp_coefficients(t: float, first: float, both: float, second: float) -> tuple[float, float]:
    """What the two vectors are multiplied with at ``t`` of the way along the arc between them.

    Directions are compared, but the vectors keep their lengths (Shoemake, "Animating rotation with
    quaternion curves", 1985). Nearly parallel and nearly opposite vectors are interpolated on the straight line;
    a vector without a direction counts as perpendicular to the other.

    Args:
        t: 0 for the first vector, 1 for the second.
        first: squared norm of the first.
        both: dot product.
        second: squared norm of the second.
    """
    norms = [math.sqrt(max(square, 0.0)) for square in (first, second)]
    lengths = [norm if norm > SHORTEST else 1.0 for norm in norms]
    cosine = max(-1.0, min(1.0, both / lengths[0] / lengths[1]))
    if abs(cosine) > NEARLY_PARALLEL:
        return 1.0 - t, t
    angle = math.acos(cosine)
    return math.sin((1.0 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def nuslerp_coefficients(
    first_weight: Number, second_weight: Number, first: Number, both: Number, second: Number
) -> tuple[Number, Number]:
    """What two vectors are multiplied with on the arc between them, the weights saying where.

    Parallel vectors, and those that are so nearly opposite that no arc is the shortest, are interpolated on the
    straight line. Weights that cancel each other meet half way.

    Args:
        first_weight: weight of the first vector.
        second_weight: weight of the second.
        first: squared norm of the first; a number, or a column with a row for each pair of vectors.
        both: dot product.
        second: squared norm of the second.
    """
    whole = first_weight + second_weight
    cancel = weights_cancel(first_weight, second_weight)
    t = choose(cancel, 0.5, second_weight / choose(cancel, 1.0, whole))
    cosine = _nuslerp_cosine(first, both, second)
    is_straight = (1.0 - cosine * cosine <= 1e-16) | _is_nearly_opposite(cosine)
    angle = angle_of(cosine)
    height = choose(is_straight, 1.0, sine(angle))
    return (
        choose(is_straight, 1.0 - t, sine((1.0 - t) * angle) / height),
        choose(is_straight, t, sine(t * angle) / height),
    )


def weights_cancel(first_weight: Number, second_weight: Number) -> bool | Tensor:
    """Whether NuSLERP cannot divide two weights by their sum."""
    whole = first_weight + second_weight
    return (whole > -1e-6) & (whole < 1e-6)


def share_of_opposite(first: Number, both: Number, second: Number) -> Number:
    """The share of pairs that NuSLERP does not join by an arc, since rounding would decide which way round it goes.

    Args:
        first: squared norm of the first vector of a pair: a number, a column or a row of them.
        both: dot product.
        second: squared norm of the second.

    Returns:
        1 or 0 for numbers and for each number of a column, the share for all columns of a tensor.
    """
    found = _is_nearly_opposite(_nuslerp_cosine(first, both, second))
    if not isinstance(found, Tensor):
        return float(found)
    return found.double() if found.shape[-1] == 1 else float(found.double().mean())


def _nuslerp_cosine(first: Number, both: Number, second: Number) -> Number:
    lengths = [at_least(LEAST_LENGTH, root(square)) for square in (first, second)]
    return at_least(-1.0, at_most(1.0, both / lengths[0] / lengths[1]))


def _is_nearly_opposite(cosine: Number) -> bool | Tensor:
    return 1.0 + cosine < 1e-5


def multislerp_coefficients(weights: Sequence[float], gram: Sequence[float], eps: float) -> list[float]:
    """What vectors are multiplied with so that the weighted mean of their directions gets their weighted mean norm.

    Where the directions cancel each other, the vectors themselves are summed with their weights.

    Args:
        weights: one for each vector.
        gram: dot products of the vectors, on and above the diagonal.
        eps: added to each norm before dividing by it, and the least norm of a mean that has a direction; a mean
            that rounding could have made has none either.
    """
    matrix = square_matrix(gram)
    norms = [math.sqrt(matrix[place][place]) for place in range(len(weights))]
    shares = [weight / (norm + eps) if norm + eps else 0.0 for weight, norm in zip(weights, norms, strict=True)]
    mean = math.sqrt(quadratic_form(matrix, shares))
    if mean < eps or mean <= RESOLUTION * math.fsum(map(abs, weights)):
        return list(weights)
    size = math.fsum(weight * norm for weight, norm in zip(weights, norms, strict=True))
    return [share * (size / mean) for share in shares]


def quadratic_form(matrix: Sequence[Sequence[float]], factors: Sequence[float]) -> float:
    """Squared norm of a sum of vectors from their dot products, no smaller than 0."""
    rows = zip(matrix, factors, strict=True)
    return max(math.fsum(a * b * entry for row, a in rows for entry, b in zip(row, factors, strict=True)), 0.0)
