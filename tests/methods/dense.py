"""The methods' formulas written down plainly for whole float32 tensors, as references for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from merger.ops.noise import BlockNoise

f32 = torch.float32


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=f32)


def in_order(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def linear(tensors: Sequence[Tensor], weights: Sequence[float], normalize: bool = True) -> Tensor:
    divisor = 1.0
    if normalize:
        divisor = 0.0
        for weight in weights:
            divisor += weight
    return in_order([scalar(weight / divisor) * x.to(f32) for x, weight in zip(tensors, weights, strict=True)])


def task_arithmetic(
    base: Tensor, tensors: Sequence[Tensor], weights: Sequence[float], normalize: bool = False, lambda_: float = 1.0
) -> Tensor:
    b = base.to(f32)
    mixed = in_order([scalar(weight) * (x.to(f32) - b) for x, weight in zip(tensors, weights, strict=True)])
    divisor = 0.0
    for weight in weights:
        divisor += weight
    if normalize:
        mixed = mixed / scalar(divisor if abs(divisor) >= 1e-8 else 1.0)
    return b + scalar(lambda_) * mixed


def largest(delta: Tensor, density: float, seed: int, name: str, model: int) -> Tensor:
    """Which elements TIES keeps of a small tensor: the largest, ties by smallest hash."""
    count = delta.numel()
    keep = torch.zeros(count, dtype=torch.bool)
    if density > 0:
        hashes = BlockNoise(seed, name, range(model + 1), 0, (count,)).bits(model).tolist()
        sizes = delta.reshape(-1).abs().tolist()
        order = sorted(range(count), key=lambda i: (-sizes[i], hashes[i]))
        keep[order[: count if density == 1 else max(1, int(density * count))]] = True
    return keep.reshape(delta.shape)


def ties(
    base: Tensor,
    tensors: Sequence[Tensor],
    weights: Sequence[float],
    densities: Sequence[float],
    normalize: bool = True,
    lambda_: float = 1.0,
    seed: int = 0,
    name: str = "layer.weight",
) -> Tensor:
    b = base.to(f32)
    changes = []
    for model, (x, weight, density) in enumerate(zip(tensors, weights, densities, strict=True)):
        delta = x.to(f32) - b
        kept = torch.where(largest(delta, density, seed, name, model), delta, scalar(0.0))
        changes.append(scalar(weight) * kept)
    return b + scalar(lambda_) * disjoint_mean(changes, weights, normalize)


def disjoint_mean(changes: Sequence[Tensor], weights: Sequence[float], normalize: bool) -> Tensor:
    sign = torch.where(in_order(changes) >= 0, scalar(1.0), scalar(-1.0))
    agrees = [torch.sign(change) == sign for change in changes]
    mixed = in_order([torch.where(yes, change, scalar(0.0)) for yes, change in zip(agrees, changes, strict=True)])
    if not normalize:
        return mixed
    parts = [torch.where(yes, scalar(abs(w)), scalar(0.0)) for yes, w in zip(agrees, weights, strict=True)]
    divisor = in_order(parts)
    return mixed / torch.where(divisor == 0, scalar(1.0), divisor)
