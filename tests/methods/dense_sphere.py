"""Methods on the sphere written down plainly for whole float64 vectors, and models to try them on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from hypothesis import strategies as st
from torch import Tensor

Merge = Callable[[Sequence[Tensor]], Tensor]


def changes(tensors: Sequence[Tensor], base: Tensor | None) -> list[Tensor]:
    """The vectors that are merged: tensors, or their float32 differences from the base."""
    return [(tensor if base is None else tensor.float() - base.float()).double() for tensor in tensors]


def added(merged: Tensor, base: Tensor | None) -> Tensor:
    return merged if base is None else base.double() + merged


def along_last(merge: Merge, vectors: Sequence[Tensor]) -> Tensor:
    """Every row of the last dimension merged by itself."""
    rows = [vector.reshape(-1, vector.shape[-1] if vector.dim() else 1) for vector in vectors]
    merged = [merge([row[place] for row in rows]) for place in range(rows[0].shape[0])]
    return torch.stack(merged).reshape(vectors[0].shape)


def along_first(merge: Merge, vectors: Sequence[Tensor]) -> Tensor:
    """Every vector along dimension 0 merged by itself."""
    if vectors[0].dim() < 2:
        return along_last(merge, vectors)
    return along_last(merge, [vector.transpose(0, -1) for vector in vectors]).transpose(0, -1)


def whole(merge: Merge, vectors: Sequence[Tensor]) -> Tensor:
    return merge([vector.reshape(-1) for vector in vectors]).reshape(vectors[0].shape)


def nuslerp(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first, second = vectors
    t = 0.5 if abs(weights[0] + weights[1]) < 1e-6 else weights[1] / (weights[0] + weights[1])
    one, other = (vector / max(float(vector.norm()), 1e-7) for vector in vectors)
    cosine = max(-1.0, min(1.0, float(one @ other)))
    if 1 - cosine**2 <= 1e-16 or 1 + cosine < 1e-5:
        return (1 - t) * first + t * second
    angle = math.acos(cosine)
    return (math.sin((1 - t) * angle) * first + math.sin(t * angle) * second) / math.sin(angle)


def multislerp(vectors: Sequence[Tensor], weights: Sequence[float], normalize: bool, eps: float = 1e-8) -> Tensor:
    whole = math.fsum(weights) if normalize else 1.0
    shares = [weight / whole for weight in weights]
    mean = sum(
        (share * vector / (vector.norm() + eps) for share, vector in zip(shares, vectors, strict=True)),
        torch.zeros_like(vectors[0]),
    )
    size = float(mean.norm())
    if size < max(eps, 1e-7 * math.fsum(map(abs, shares))):
        return sum(
            (share * vector for share, vector in zip(shares, vectors, strict=True)), torch.zeros_like(vectors[0])
        )
    return mean / size * math.fsum(share * float(vector.norm()) for share, vector in zip(shares, vectors, strict=True))


def agreement(vectors: Sequence[Tensor], weights: Sequence[float], eps: float) -> float:
    """Norm of the weighted mean direction, from 0 for directions that cancel to 1 for equal ones."""
    flat = [vector.reshape(-1) for vector in vectors]
    units = [vector / (vector.norm() + eps) for vector in flat]
    mean = sum((weight * unit for weight, unit in zip(weights, units, strict=True)), torch.zeros_like(units[0]))
    return float(mean.norm()) / math.fsum(map(abs, weights))


def karcher(vectors: Sequence[Tensor], weights: Sequence[float], max_iter: int = 10, tol: float = 1e-5) -> Tensor:
    """The mean by steps along the sphere, on the vectors themselves."""
    size = math.fsum(weight * float(vector.norm()) for weight, vector in zip(weights, vectors, strict=True))
    points = [(v / v.norm(), w) for v, w in zip(vectors, weights, strict=True) if v.norm() > 0 and w > 0]
    if not points:
        return torch.zeros_like(vectors[0])
    known = math.fsum(weight for _, weight in points)
    mean = sum((weight / known * unit for unit, weight in points), torch.zeros_like(vectors[0]))
    mean = mean / mean.norm() if mean.norm() > tol else points[0][0]
    for _ in range(max_iter):
        step = torch.zeros_like(mean)
        for unit, weight in points:
            cosine = max(-1.0, min(1.0, float(unit @ mean)))
            angle = math.acos(cosine)
            if math.pi - angle < 1e-4:
                return mean * (size / math.fsum(weights))
            if angle > tol:
                step = step + weight / known * angle / math.sin(angle) * (unit - cosine * mean)
        distance = float(step.norm())
        if distance <= tol:
            break
        mean = math.cos(distance) * mean + math.sin(distance) / distance * step
        mean = mean / mean.norm()
    return mean * (size / math.fsum(weights))


def stock_ratio(vectors: Sequence[Tensor]) -> float:
    """How far model stock goes from the base to the average."""
    norms = [float(vector.norm()) for vector in vectors]
    pairs = list(combinations(range(len(vectors)), 2))
    cosines = [
        float(vectors[a] @ vectors[b]) / (norms[a] * norms[b]) if norms[a] and norms[b] else 0.0 for a, b in pairs
    ]
    mean, models = math.fsum(cosines) / len(pairs), len(vectors)
    divisor = 1 + (models - 1) * mean
    return max(0.0, min(1.0, models * mean / divisor)) if divisor > 0 else 0.0


def model_stock(tensors: Sequence[Tensor], base: Tensor, filter_wise: bool = False) -> Tensor:
    def merged(rows: Sequence[Tensor]) -> Tensor:
        b, *models = rows
        ratio = stock_ratio(changes(models, b))
        return ratio * torch.stack(list(models)).double().mean(0) + (1 - ratio) * b.double()

    given = [tensor.float() for tensor in (base, *tensors)]
    return along_last(merged, given) if filter_wise else whole(merged, given)


SHAPES = [(1,), (5,), (130,), (3, 7), (2, 3, 5), (40, 2), ()]


def vector(*values: float) -> Tensor:
    return torch.tensor(values)


@dataclass
class Case:
    base: Tensor
    tensors: list[Tensor]
    weights: list[float]
    block: int


@st.composite
def cases(draw: st.DrawFn, models: int | None = None, fewest: int = 1) -> Case:
    """Models around a base or far from it; some are the base itself."""
    shape, count = draw(st.sampled_from(SHAPES)), models or draw(st.integers(fewest, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([1e-3, 0.3, 10.0]))
    base = torch.randn(shape, generator=generator)
    common = torch.randn(shape, generator=generator)

    def tuned() -> Tensor:
        kind = draw(st.sampled_from(["near", "near", "near", "base", "far"]))
        change = scale * (torch.randn(shape, generator=generator) + draw(st.sampled_from([0.0, 1.0])) * common)
        return {"near": base + change, "base": base.clone(), "far": change}[kind]

    tensors = [tuned() for _ in range(count)]
    weights = draw(st.lists(st.floats(0.05, 2), min_size=count, max_size=count))
    return Case(base, tensors, weights, draw(st.sampled_from([3, 64, 1 << 18])))


def assert_close(result: Tensor, expected: Tensor) -> None:
    """Up to float32 rounding of the terms."""
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=4e-6 * max(scale, 1.0))
