"""Figures by layer and role as plain arrays: what a page redraws while a slider moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from merger.statistics.estimates import PAIR_SUMS, Floats, Integers, Layout, quotient
from merger.statistics.preview import Part


class Grid:
    """Adds tensors up by layer and role.

    Args:
        layout: of the sums.
        parts: the tensors.

    Attributes:
        layers: columns: None for tensors outside of layers, then the layers' indices.
        roles: rows.
    """

    def __init__(self, layout: Layout, parts: Sequence[Part]) -> None:
        self.layout = layout
        found = {part.layer for part in parts}
        self.layers: list[int | None] = [layer for layer in (None,) if layer in found]
        self.layers += sorted(layer for layer in found if layer is not None)
        self.roles = list(dict.fromkeys(part.role for part in parts))
        column = {layer: place for place, layer in enumerate(self.layers)}
        row = {role: place for place, role in enumerate(self.roles)}
        cells: Integers = np.array([row[part.role] * len(column) + column[part.layer] for part in parts], np.int64)
        self._cell_of = np.zeros((len(row) * len(column), len(parts)))
        self._cell_of[cells, np.arange(len(parts))] = 1

    def arrays(self, totals: Floats) -> dict[str, Any]:
        """The figures of one setting.

        Args:
            totals: ``[tensors, sums]``.

        Returns:
            ``layers``, ``roles``; ``relative_delta`` ``[models + 1, roles, layers]`` with the merged model
            last; ``sign_agreement`` and ``surviving_share`` ``[layers]``; ``kept_share``
            ``[models, layers]``; ``cosine`` ``[models, models]`` of whole models; ``overall``, a dictionary of
            ``relative_delta`` (as above), ``kept_share`` ``[models]``, ``sign_agreement`` and ``surviving_share``.
            NaN where a figure is not defined.
        """
        cells = (self._cell_of @ totals).reshape(len(self.roles), len(self.layers), self.layout.size)
        layers, whole = cells.sum(0), cells.sum((0, 1))
        return {
            "layers": list(self.layers),
            "roles": list(self.roles),
            "relative_delta": self._relative(cells),
            **self._shares(layers),
            "cosine": self._cosines(whole),
            "overall": {"relative_delta": self._relative(whole), **self._shares(whole)},
        }

    def _relative(self, sums: Floats) -> Floats:
        column, models = self.layout.column, range(self.layout.models)
        top = [sums[..., column("delta", model)] for model in models] + [sums[..., column("merged")]]
        bottom = [sums[..., column("base", model)] for model in models] + [sums[..., column("merged_base")]]
        return np.sqrt(quotient(np.stack(top), np.stack(bottom)))

    def _shares(self, sums: Floats) -> dict[str, Floats]:
        column, models = self.layout.column, range(self.layout.models)
        survived = quotient(sums[..., column("survived")], sums[..., column("change")])
        kept = [quotient(sums[..., column("kept", m)], sums[..., column("kept_of", m)]) for m in models]
        return {
            "sign_agreement": quotient(sums[..., column("agree")], sums[..., column("both")]),
            "surviving_share": np.where(np.isnan(survived) & (sums[..., column("merged_of")] > 0), 1.0, survived),
            "kept_share": np.array(kept),
        }

    def _cosines(self, whole: Floats) -> Floats:
        cosines = np.eye(self.layout.models)
        for place, (a, b) in enumerate(self.layout.pairs):
            dot, left, right = (whole[self.layout.column(name, place)] for name in PAIR_SUMS)
            cosines[a, b] = cosines[b, a] = np.clip(quotient(dot, np.sqrt(left * right)), -1, 1)
        return cosines
