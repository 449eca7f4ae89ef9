"""The few arrays that the figures show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
OUTSIDE = "other"
"""Column of the tensors that belong to no layer."""
ORIGIN = "the base model"
"""What changes are measured from, when there is a base."""


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
        roles: row labels, in the order of the output's tensors.
        rows: where each of them stands in a sample's arrays.
        change_limit: end of the colour scale of relative changes.
        skills: of the demo's models; without views for other models.
        origin: what the changes are measured from, in words.
    """

    models: tuple[str, ...]
    layers: tuple[str, ...]
    roles: tuple[str, ...]
    rows: tuple[int, ...]
    change_limit: float
    skills: Skills = field(default_factory=Skills)
    origin: str = ORIGIN

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Any],
        names: Sequence[str],
        roles: Sequence[str],
        skills: Skills | None = None,
        origin: str = ORIGIN,
    ) -> Shape:
        """The arrangement of the arrays that a sample gives.

        Args:
            arrays: of any setting.
            names: of the models whose changes are measured.
            roles: of the tensors, in their order.
            skills: of the demo's models.
            origin: what the changes are measured from, in words.
        """
        ordered = tuple(dict.fromkeys(roles))
        return cls(
            models=tuple(names),
            layers=tuple(OUTSIDE if layer is None else str(layer) for layer in arrays["layers"]),
            roles=ordered,
            rows=tuple(map(list(arrays["roles"]).index, ordered)),
            change_limit=_change_limit(arrays["relative_delta"][:-1]),
            skills=skills or Skills(),
            origin=origin,
        )


@dataclass(frozen=True)
class Numbers:
    """What moves.

    Attributes:
        change: ``[roles, layers]`` relative change of the merged model, or of the chosen one.
        total_change: the same over the whole model.
        agreement: ``[layers]`` share of the values that several models change, where all go one way.
        surviving: ``[layers]`` share of the weighted changes that is left after the models were made to agree.
        kept: ``[models, layers]`` share of each change that sparsifying keeps.
        cosine: ``[models, models]`` between the changes of whole models.
        total_agreement, total_surviving, total_kept: over the whole model.
        accuracy: ``[views]`` of the merged demo model.
        best: ``[views]`` of the best merge found by trying, or None while it is searched for.
        is_complete: whether the merge of every tensor could be told from the sample.
    """

    change: Floats
    total_change: float
    agreement: Floats
    surviving: Floats
    kept: Floats
    cosine: Floats
    total_agreement: float
    total_surviving: float
    total_kept: float
    accuracy: Floats | None = None
    best: Floats | None = None
    is_complete: bool = True

    @classmethod
    def of(cls, arrays: Mapping[str, Any], shape: Shape, chosen: int | None = None) -> Numbers:
        """The arrays of one setting.

        Args:
            arrays: as `merger.Sample.evaluate_arrays` gives them.
            shape: of the same models.
            chosen: the model whose change the map shows; None for the merged model's.
        """
        overall, shown = arrays["overall"], -1 if chosen is None else chosen
        is_complete = chosen is not None or not has_unknown(arrays)
        is_known = is_complete and np.isfinite(arrays["relative_delta"][shown]).any()
        kept, change = overall["kept_share"], arrays["relative_delta"][shown][list(shape.rows)]
        return cls(
            change=change,
            total_change=float(overall["relative_delta"][shown]) if is_known else float("nan"),
            agreement=arrays["sign_agreement"],
            surviving=arrays["surviving_share"],
            kept=arrays["kept_share"],
            cosine=arrays["cosine"],
            total_agreement=float(overall["sign_agreement"]),
            total_surviving=float(overall["surviving_share"]),
            total_kept=float(np.nanmean(kept)) if np.isfinite(kept).any() else float("nan"),
            is_complete=is_complete,
        )


def has_unknown(arrays: Mapping[str, Any]) -> bool:
    """Whether the merge of some tensors cannot be told from the sample that gave the arrays."""
    *models, merged = arrays["relative_delta"]
    return bool((np.isnan(merged) & np.isfinite(models).any(0)).any())


def _change_limit(changes: Floats) -> float:
    """Where the colours end: well above what nine of ten parts of the most changed model reach."""
    largest = max((float(np.quantile(c[np.isfinite(c)], 0.9)) for c in changes if np.isfinite(c).any()), default=0.0)
    return round(1.5 * largest, 4) or 1.0
