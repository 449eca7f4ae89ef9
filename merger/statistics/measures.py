"""Sums over rows of what goes into a merge and of what comes out, for the preview's figures.

Differences are taken in the working dtype, as the merge takes them; products and sums in float64.
Values that are not finite count as no change, and are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from merger.ops.deltas import scaled
from merger.ops.witness import Seen
from merger.statistics.estimates import Floats, Integers, Layout


class Sheet:
    """Sums over the rows of one piece, filled in step by step.

    Args:
        layout: where each sum stands.
        rows: ``[rows]`` where each row begins among the piece's elements.
        elements: of the piece.

    Attributes:
        sums: ``[rows, sums]``.
    """

    def __init__(self, layout: Layout, rows: Integers, elements: int) -> None:
        self.layout, self.rows = layout, rows
        self.sums: Floats = np.zeros((len(rows), layout.size))
        self._lengths = np.diff(rows, append=elements).astype(np.float64)

    def inputs(self, reference: Tensor, tensors: Mapping[int, Tensor]) -> None:
        """Norms, zeros, cosines and agreement of the models' changes.

        Args:
            reference: ``[elements]`` what changes are measured from.
            tensors: ``[elements]`` of each model, by its place in the layout.
        """
        base = self._squares(reference)
        changes = {}
        for model, tensor in tensors.items():
            change = tensor - reference
            self._set("elements", self._lengths, model)
            self._set("base", base, model)
            self._set("zero", self._counts(change == 0), model)
            self._set("non_finite", self._counts(~torch.isfinite(change)), model)
            changes[model] = _finite(change)
        self._products({model: change.double() for model, change in changes.items()})
        if len(changes) > 1:
            self._agreement(list(changes.values()))

    def merged(self, reference: Tensor, merged: Tensor) -> None:
        """Norm of the merged change; both ``[elements]``."""
        self._set("merged", self._squares(merged - reference))
        self._set("merged_base", self._squares(reference))
        self._set("merged_of", self._lengths)
        self._set("merged_non_finite", self._counts(~torch.isfinite(merged)))

    def kept_all(self, models: Sequence[int]) -> None:
        """Nothing was dropped from these models."""
        for model in models:
            self._set("kept_of", self._lengths, model)
            self._set("kept", self._lengths, model)

    def mixed(self, models: Sequence[int | None], seen: Seen) -> None:
        """What a method kept and what survived its election; the inputs have been entered.

        Args:
            models: places of the models that the method merged, None for the reference.
            seen: what the method mixed; overwritten.
        """
        if seen.deltas is None or seen.unchanged is None:
            self.kept_all([model for model in models if model is not None])
        else:
            for model, delta, chance in zip(models, seen.deltas, seen.unchanged, strict=True):
                if model is not None:
                    self._set("kept_of", self._lengths, model)
                    unchanged = self.sums[:, self.layout.column("zero", model)] * self._by_row(chance)
                    self._set("kept", self._counts(delta != 0) + unchanged, model)
        self._set("opposite", self._lengths * self._by_row(seen.opposite))
        if seen.deltas is not None and seen.elects and len(seen.deltas) > 1:
            plain = None if seen.weighs_votes else _sum_of(seen.deltas)
            weighted = [scaled(delta, by) for delta, by in zip(seen.deltas, seen.weights, strict=True)]
            self._survival(weighted, _sum_of(weighted) if plain is None else plain)

    def _products(self, changes: Mapping[int, Tensor]) -> None:
        squares = {model: self._totals(change * change) for model, change in changes.items()}
        for model, square in squares.items():
            self._set("delta", square, model)
        for place, (a, b) in enumerate(self.layout.pairs):
            if a in changes and b in changes:
                self._set("dot", self._totals(changes[a] * changes[b]), place)
                self._set("left", squares[a], place)
                self._set("right", squares[b], place)

    def _agreement(self, changes: Sequence[Tensor]) -> None:
        """Of the elements that at least two models change, those whose changes have one sign."""
        signs = torch.stack([torch.sign(change).to(torch.int8) for change in changes])
        total, moved = signs.sum(0, dtype=torch.int8), signs.abs().sum(0, dtype=torch.int8)
        both = moved > 1
        self._set("both", self._counts(both))
        self._set("agree", self._counts(both & (total.abs() == moved)))

    def _survival(self, weighted: Sequence[Tensor], balance: Tensor) -> None:
        """Weighted change, and the part of it whose sign the balance has; a balance of zero elects plus."""
        is_plus = balance >= 0
        for change in weighted:
            size = _finite(change.abs()).double()
            self._add("change", self._totals(size))
            self._add("survived", self._totals(size.mul_((change >= 0) == is_plus)))

    def _set(self, name: str, values: Floats, index: int = 0) -> None:
        self.sums[:, self.layout.column(name, index)] = values

    def _add(self, name: str, values: Floats) -> None:
        self.sums[:, self.layout.column(name)] += values

    def _squares(self, values: Tensor) -> Floats:
        wide = _finite(values).double()
        return self._totals(wide * wide)

    def _totals(self, values: Tensor) -> Floats:
        return np.asarray(np.add.reduceat(values.reshape(-1).numpy(), self.rows))

    def _counts(self, mask: Tensor) -> Floats:
        return np.add.reduceat(mask.reshape(-1).numpy().view(np.uint8), self.rows, dtype=np.float64)

    def _by_row(self, number: float | Tensor) -> float | Floats:
        """A number, or a column with equally many numbers for each tensor, as one per row: their mean if many."""
        if not isinstance(number, Tensor):
            return float(number)
        values = number.double().reshape(-1).numpy()
        if len(values) > len(self.rows):
            return values.reshape(len(self.rows), -1).mean(1)
        return values[np.arange(len(self.rows)) * len(values) // len(self.rows)]


def _sum_of(tensors: Sequence[Tensor]) -> Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result.add_(tensor)
    return result


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
