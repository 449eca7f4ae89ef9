"""Names and numbers as Plotly may show them."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components import text
from components.numbers import Shape


def label(name: str, limit: int = 28) -> str:
    """A name as Plotly may show it: its pseudo-HTML is escaped and it is cut in the middle."""
    return html.escape(text.short(name, limit), quote=False)


def rounded(values: NDArray[np.floating[Any]], digits: int = 4) -> list[Any]:
    """Values short enough to travel on every move; what is not a number becomes null."""
    keep = np.round(np.asarray(values, dtype=float), digits).astype(object)
    keep[~np.isfinite(np.asarray(values, dtype=float))] = None
    return keep.tolist()


def labels(names: tuple[str, ...], limit: int = 28) -> list[str]:
    """Labels that stay different from each other after cutting, as categories must."""
    seen: dict[str, int] = {}
    unique = []
    for name in (label(name, limit) for name in names):
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def places(shape: Shape) -> list[str]:
    """Where each column stands, for hovering."""
    return [html.escape(text.place(layer), quote=False) for layer in shape.layers]
