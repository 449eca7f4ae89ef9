"""From a preview to the few arrays that the figures show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from merger import Preview

Floats = NDArray[np.floating[Any]]
OUTSIDE = "other"
"""Column of the tensors that belong to no layer."""
@dataclass(frozen=True)
class Skills:
    """What is known of the demo's models: accuracy on each view of the test images.

    Attributes:
        views: names of the test sets.
        models: the base first, then its fine-tunes.
        accuracy: ``[models, views]``.
    """

    views: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    accuracy: Floats = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True)
class Shape:
    """What stays the same while sliders move: the models and how their tensors are arranged.

    Attributes:
        models: names of the models that are mixed, without the one that changes are measured from.
        layers: column labels.
        roles: row labels.
        columns, rows: place of each of the preview's parts.
        change_limit: end of the colour scale of relative changes.
        skills: of the demo's models; without views for other models.
    """

    models: tuple[str, ...]
    layers: tuple[str, ...]
    roles: tuple[str, ...]
    columns: tuple[int, ...]
    rows: tuple[int, ...]
    change_limit: float
    skills: Skills = field(default_factory=Skills)

    @classmethod
    def of(cls, preview: Preview, names: Sequence[str], skills: Skills | None = None) -> Shape:
        """The arrangement of a preview's parts: layers in order, roles as they first appear."""
        numbered = sorted({part.layer for part in preview.parts if part.layer is not None})
        layers: dict[int | None, int] = {layer: place for place, layer in enumerate(numbered)}
        labels = [str(layer) for layer in numbered]
        if any(part.layer is None for part in preview.parts):
            layers[None] = len(labels)
            labels.append(OUTSIDE)
        roles = list(dict.fromkeys(part.role for part in preview.parts))
        return cls(
            models=tuple(names),
            layers=tuple(labels),
            roles=tuple(roles),
            columns=tuple(layers[part.layer] for part in preview.parts),
            rows=tuple(roles.index(part.role) for part in preview.parts),
            change_limit=_change_limit(preview),
            skills=skills or Skills(),
        )

    @property
    def cells(self) -> list[int]:
        """Each part's place in the flattened grid of roles and layers."""
        return [row * len(self.layers) + column for row, column in zip(self.rows, self.columns)]


@dataclass(frozen=True)
class Numbers:
    """What moves.

    Attributes:
        change: ``[roles, layers]`` relative change of the merged model, or of the chosen one.
        total_change: the same over the whole model.
        agreement: ``[layers]`` share of the values that several models change, where all go one way.
        kept: ``[models, layers]`` share of each change that sparsifying keeps.
        cosine: ``[models, models]`` between the changes of whole models.
        total_agreement, total_surviving, total_kept: over the whole model.
        accuracy: ``[views]`` of the merged demo model.
        best: ``[views]`` of the best merge found by trying, or None while it is searched for.
    """

    change: Floats
    total_change: float
    agreement: Floats
    kept: Floats
    cosine: Floats
    total_agreement: float
    total_surviving: float
    total_kept: float
    accuracy: Floats | None = None
    best: Floats | None = None

    @classmethod
    def of(cls, preview: Preview, shape: Shape, chosen: int | None = None) -> Numbers:
        """The arrays of a preview.

        Args:
            preview: of the recipe as the controls say it.
            shape: from a preview of the same models.
            chosen: the model whose change the map shows; None for the merged model's.
        """
        models = range(len(preview.model_names))
        cells = preview.totals.grouped(shape.cells, len(shape.roles) * len(shape.layers))
        layers = preview.totals.grouped(shape.columns, len(shape.layers))
        whole = preview.totals.grouped([0] * len(shape.columns), 1)
        ratio = ("merged", "merged_base", 0) if chosen is None else ("delta", "base", chosen)
        kept = sum(float(whole.sum_of("kept", model)[0]) for model in models)
        kept_of = sum(float(whole.sum_of("kept_of", model)[0]) for model in models)
        return cls(
            change=cells.norm_ratio(*ratio).value.reshape(len(shape.roles), len(shape.layers)),
            total_change=float(whole.norm_ratio(*ratio).value[0]),
            agreement=layers.share("agree", "both").value,
            kept=np.array([layers.share("kept", "kept_of", model).value for model in models]),
            cosine=_cosines(whole, len(models)),
            total_agreement=float(whole.share("agree", "both").value[0]),
            total_surviving=float(whole.share("survived", "change").value[0]),
            total_kept=kept / kept_of if kept_of else float("nan"),
        )


def _cosines(whole: Any, models: int) -> Floats:
    matrix = np.eye(models)
    for place, (first, second) in enumerate(whole.layout.pairs):
        matrix[first, second] = matrix[second, first] = whole.cosine(place).value[0]
    return matrix


def _change_limit(preview: Preview) -> float:
    """Where the colours end: well above what nine of ten parts of the most changed model reach."""
    totals = preview.totals
    changes = [totals.norm_ratio("delta", "base", model).value for model in range(len(preview.model_names))]
    finite = [values[np.isfinite(values)] for values in changes]
    largest = max((float(np.quantile(values, 0.9)) for values in finite if values.size), default=0.0)
    return round(1.5 * largest, 4) or 1.0
