"""Sums over rows of what goes into a merge and of what comes out, for the preview's figures.

Differences are taken in the working dtype, as the merge takes them; products and sums in float64.
Values that are not finite count as no change, and are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.estimates import Floats, Integers, Layout


def input_sums(
    layout: Layout, models: Sequence[int], reference: Tensor, tensors: Sequence[Tensor], rows: Integers
) -> Floats:
    """Norms, zeros, cosines and agreement of the models' changes.

    Args:
        layout: of the result.
        models: each tensor's place among the layout's models.
        reference: ``[elements]`` what changes are measured from.
        tensors: ``[elements]`` per model.
        rows: ``[rows]`` where each row begins.

    Returns:
        ``[rows, sums]``; sums that are not measured here are zero.
    """
    sums = np.zeros((len(rows), layout.size))
    lengths = np.diff(rows, append=reference.numel())
    base = _row_sums(_double(reference) ** 2, rows)
    changes = []
    for model, tensor in zip(models, tensors, strict=True):
        change = tensor - reference
        sums[:, layout.column("elements", model)] = lengths
        sums[:, layout.column("base", model)] = base
        sums[:, layout.column("zero", model)] = _row_counts(change == 0, rows)
        sums[:, layout.column("non_finite", model)] = _row_counts(~torch.isfinite(change), rows)
        changes.append(_finite(change))
    _products(layout, models, changes, rows, sums)
    if len(changes) > 1:
        _agreement(layout, changes, rows, sums)
    return sums


def _products(layout: Layout, models: Sequence[int], changes: Sequence[Tensor], rows: Integers, sums: Floats) -> None:
    wide = [change.double().numpy() for change in changes]
    squares = {model: np.add.reduceat(values * values, rows) for model, values in zip(models, wide, strict=True)}
    by_model = dict(zip(models, wide, strict=True))
    for model, square in squares.items():
        sums[:, layout.column("delta", model)] = square
    for place, (a, b) in enumerate(layout.pairs):
        if a in squares and b in squares:
            sums[:, layout.column("dot", place)] = np.add.reduceat(by_model[a] * by_model[b], rows)
            sums[:, layout.column("left", place)] = squares[a]
            sums[:, layout.column("right", place)] = squares[b]


def _agreement(layout: Layout, changes: Sequence[Tensor], rows: Integers, sums: Floats) -> None:
    """Of the elements that at least two models change, those whose changes have one sign."""
    signs = torch.stack([torch.sign(change).to(torch.int8) for change in changes])
    total, moved = signs.sum(0, dtype=torch.int8), signs.abs().sum(0, dtype=torch.int8)
    both = moved > 1
    sums[:, layout.column("both")] = _row_counts(both, rows)
    sums[:, layout.column("agree")] = _row_counts(both & (total.abs() == moved), rows)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _double(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(_finite(values).double().numpy())


def _row_sums(values: NDArray[np.float64], rows: Integers) -> Floats:
    return np.add.reduceat(values, rows)


def _row_counts(mask: Tensor, rows: Integers) -> Floats:
    return np.add.reduceat(mask.numpy(), rows, dtype=np.int64).astype(np.float64)


def merged_sums(layout: Layout, reference: Tensor, merged: Tensor, rows: Integers) -> Floats:
    """Norm of the merged tensor's change.

    Args:
        layout: of the result.
        reference: ``[elements]``.
        merged: ``[elements]``.
        rows: ``[rows]`` where each row begins.

    Returns:
        ``[rows, sums]``.
    """
    sums = np.zeros((len(rows), layout.size))
    sums[:, layout.column("merged")] = _squares(merged - reference, rows)
    sums[:, layout.column("merged_base")] = _squares(reference, rows)
    sums[:, layout.column("merged_of")] = np.diff(rows, append=reference.numel())
    sums[:, layout.column("merged_non_finite")] = _row_counts(~torch.isfinite(merged), rows)
    return sums


def kept_sums(layout: Layout, models: Sequence[int], kept: Sequence[Tensor] | None, elements: int,
              rows: Integers) -> Floats:
    """How many elements a method's sparsification keeps; all of them when ``kept`` is None.

    Args:
        layout: of the result.
        models: places among the layout's models.
        kept: ``[elements]`` per model, not zero where an element is kept.
        elements: of each model.
        rows: ``[rows]`` where each row begins.

    Returns:
        ``[rows, sums]``.
    """
    sums = np.zeros((len(rows), layout.size))
    lengths = np.diff(rows, append=elements)
    for place, model in enumerate(models):
        sums[:, layout.column("kept_of", model)] = lengths
        sums[:, layout.column("kept", model)] = lengths if kept is None else _row_counts(kept[place] != 0, rows)
    return sums


def survival_sums(layout: Layout, weighted: Sequence[Tensor], rows: Integers) -> Floats:
    """How much of the weighted change has the elected sign.

    Args:
        layout: of the result.
        weighted: ``[elements]`` per model, the sparsified change times its weight.
        rows: ``[rows]`` where each row begins.

    Returns:
        ``[rows, sums]``.
    """
    sums = np.zeros((len(rows), layout.size))
    balance = weighted[0].clone()
    for change in weighted[1:]:
        balance.add_(change)
    is_plus = balance >= 0
    for change in weighted:
        size = _finite(change.abs()).double()
        sums[:, layout.column("change")] += np.add.reduceat(size.numpy(), rows)
        size.mul_((change >= 0) == is_plus)
        sums[:, layout.column("survived")] += np.add.reduceat(size.numpy(), rows)
    return sums
