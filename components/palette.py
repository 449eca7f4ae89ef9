"""Colours of the figures and cards, once for light and once for dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Palette:
    """One theme's colours; every text colour has a contrast of at least 4.5 on its page."""

    text: str
    muted: str
    grid: str
    merge: str
    ghost: str
    conflict: str
    models: tuple[str, ...]
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]

    def model(self, index: int) -> str:
        """The colour of one model, the same in every figure."""
        return self.models[index % len(self.models)]


LIGHT = Palette(
    text="#334155",
    muted="#64748b",
    grid="#e2e8f0",
    merge="#4f46e5",
    ghost="#1e293b",
    conflict="#fb923c",
    models=("#0d9488", "#d97706", "#db2777", "#0284c7", "#65a30d", "#9333ea", "#b45309", "#475569"),
    sequential=("#f1f5f9", "#c7d2fe", "#818cf8", "#4f46e5", "#312e81", "#1e1b4b"),
    diverging=("#b45309", "#fdba74", "#f8fafc", "#a5b4fc", "#3730a3"),
)
DARK = Palette(
    text="#cbd5e1",
    muted="#94a3b8",
    grid="#334155",
    merge="#818cf8",
    ghost="#f1f5f9",
    conflict="#fb923c",
    models=("#2dd4bf", "#fbbf24", "#f472b6", "#38bdf8", "#a3e635", "#c084fc", "#fdba74", "#cbd5e1"),
    sequential=("#1e293b", "#312e81", "#4338ca", "#6366f1", "#a5b4fc", "#eef2ff"),
    diverging=("#c2410c", "#7c2d12", "#1e293b", "#3730a3", "#4f46e5"),
)


def scale(colours: tuple[str, ...]) -> list[list[Any]]:
    """Evenly spaced colours in the form that Plotly's colour scales have."""
    return [[index / (len(colours) - 1), colour] for index, colour in enumerate(colours)]


def template(palette: Palette) -> dict[str, Any]:
    """What all figures of one theme share, in the form of a Plotly template."""
    axis = {
        "gridcolor": palette.grid,
        "linecolor": palette.grid,
        "zeroline": False,
        "fixedrange": True,
        "automargin": True,
        "title": {"font": {"size": 12, "color": palette.muted}, "standoff": 8},
        "tickfont": {"size": 11, "color": palette.muted},
    }
    bar = {"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 11, "color": palette.muted}}
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": palette.text},
            "colorway": list(palette.models),
            "colorscale": {"sequential": scale(palette.sequential), "diverging": scale(palette.diverging)},
            "xaxis": axis,
            "yaxis": axis,
            "margin": {"l": 44, "r": 12, "t": 8, "b": 40},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
            "hoverlabel": {"font": {"family": "Inter, system-ui, sans-serif", "size": 13}, "align": "left"},
            "bargap": 0.25,
            "dragmode": False,
        },
        "data": {"heatmap": [{"colorbar": bar, "hoverongaps": False}]},
    }
