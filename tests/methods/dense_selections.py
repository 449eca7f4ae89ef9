"""Formulas of the methods that select elements, written down plainly for whole tensors, as references for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from merger.ops.noise import BlockNoise
from tests.methods.dense import in_order, scalar

f32, f64 = torch.float32, torch.float64


def ordered(values: Tensor, model: int, seed: int, name: str) -> list[int]:
    """Places of a small tensor from the largest value to the smallest; of equal ones the smallest hash first."""
    hashes = BlockNoise(seed, name, range(model + 1), 0, (values.numel(),)).bits(model).tolist()
    sizes = values.reshape(-1).tolist()
    return sorted(range(values.numel()), key=lambda place: (-sizes[place], hashes[place]))


def mask_of(shape: torch.Size, places: Sequence[int]) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask.view(-1)[list(places)] = True
    return mask


def breadcrumbs_mask(delta: Tensor, density: float, gamma: float, model: int, seed: int, name: str) -> Tensor:
    count = delta.numel()
    if density == 0:
        return mask_of(delta.shape, [])
    target, top = max(1, int(density * count)), int(gamma * count)
    if count - target - top < 0:
        top = count - target
    return mask_of(delta.shape, ordered(delta.abs(), model, seed, name)[top : top + target])


def crumbs(
    base: Tensor,
    tensors: Sequence[Tensor],
    densities: Sequence[float],
    gammas: Sequence[float],
    seed: int = 0,
    name: str = "layer.weight",
) -> list[Tensor]:
    """The sparsified task vectors of breadcrumbs."""
    found = []
    for model, (x, density, gamma) in enumerate(zip(tensors, densities, gammas, strict=True)):
        delta = x.to(f32) - base.to(f32)
        found.append(torch.where(breadcrumbs_mask(delta, density, gamma, model, seed, name), delta, scalar(0.0)))
    return found


def sce_mask(deltas: Sequence[Tensor], share: float, seed: int, name: str = "layer.weight") -> Tensor:
    """The elements with the largest variance, of equal float32 deviations those with the smallest hashes."""
    if share == 1:
        return torch.ones_like(deltas[0], dtype=torch.bool)
    variance = torch.stack([delta.to(f64) for delta in deltas]).var(0, unbiased=False)
    deviation = variance.sqrt().to(f32)
    count = int(share * int(deviation.count_nonzero()))
    return mask_of(deviation.shape, ordered(deviation, 0, seed, name)[:count])


def sce(base: Tensor, tensors: Sequence[Tensor], share: float, seed: int = 0) -> Tensor:
    """In float64, but for the election."""
    deltas = [x.to(f32) - base.to(f32) for x in tensors]
    if len(tensors) == 1:
        return base.to(f64) + deltas[0].to(f64)
    mask = sce_mask(deltas, share, seed)
    deltas = [torch.where(mask, delta, scalar(0.0)) for delta in deltas]
    sign = torch.where(in_order(deltas) >= 0, 1.0, -1.0)
    kept = [delta.to(f64) for delta in deltas]
    energies = [float((delta * delta).mean()) for delta in kept]
    shares = [energy / (sum(energies) or 1.0) for energy in energies]
    agrees = [(torch.sign(delta) == sign).to(f64) for delta in kept]
    top = in_order([delta * c * m for delta, c, m in zip(kept, shares, agrees, strict=True)])
    bottom = in_order([c * m for c, m in zip(shares, agrees, strict=True)])
    return base.to(f64) + torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, 1.0), 0.0)


def arcee_fusion(base: Tensor, tensor: Tensor) -> Tensor:
    importances = importance(base, tensor)
    ascending = importances.reshape(-1).sort().values
    lower, median, upper = (float(ascending[int(q * (len(ascending) - 1))]) for q in (0.25, 0.5, 0.75))
    return torch.where(importances >= median + 1.5 * (upper - lower), tensor, base)


def importance(base: Tensor, tensor: Tensor) -> Tensor:
    x, b = tensor.to(f64), base.to(f64)
    p, q = (values.softmax(-1) + 1e-8 for values in (x, b))
    divergence = (p * (p / q).log()).sum(-1, keepdim=True).clamp(min=0)
    return (x - b).abs() * divergence


def ram(base: Tensor, tensors: Sequence[Tensor], epsilon: float, r: float = 0.0, alpha: float = 0.0) -> Tensor:
    """In float64."""
    deltas = [(x.to(f32) - base.to(f32)) for x in tensors]
    masks = [delta.abs() > scalar(epsilon) for delta in deltas]
    makers = torch.stack(masks).sum(0)
    result = base.to(f64)
    for delta, mask in zip(deltas, masks, strict=True):
        shared, alone = int((mask & (makers > 1)).sum()), int((mask & (makers == 1)).sum())
        factor = 1 + r * min(max(shared / max(alone, epsilon), 0), alpha)
        wide = delta.to(f64) * mask
        result = result + wide * (makers == 1) * factor + wide * (makers > 1) / makers.clamp(min=1)
    return result
