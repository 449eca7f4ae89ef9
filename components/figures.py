"""The figures: numbers in, Plotly specifications and arrays out.  Knows nothing of Gradio.

A figure has a specification, sent when models or method change, and arrays, sent on every
move.  Both are plain values; each figure is one entry of `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from components import text
from components.labels import labels, places, rounded
from components.numbers import Numbers, Shape
from components.palette import DARK, LIGHT, Palette, scale, template

MERGED = "merged"
"""What the map of changes shows when no model is chosen."""

Spec = dict[str, Any]
Arrays = list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """One card of the board.

    Attributes:
        name: its place in messages and in the page, such as ``change``.
        title: words above it.
        spec: traces without their arrays, and layout, for one theme.
        arrays: one mapping per trace with the values that move.
        sentence: what the numbers mean, in words.
        shown: whether these models have this figure at all.
        wide: whether it takes a whole row.
    """

    name: str
    title: str
    spec: Callable[[Shape, Palette], Spec]
    arrays: Callable[[Shape, Numbers], Arrays]
    sentence: Callable[[Shape, Numbers], str]
    shown: Callable[[Shape], bool] = lambda shape: True
    wide: bool = False


def structure(shape: Shape) -> dict[str, Any]:
    """Everything that stays while sliders move: one list of cards for each theme."""
    shown = [figure for figure in FIGURES if figure.shown(shape)]
    return {
        name: {
            "template": template(palette),
            "cards": [
                {"name": figure.name, "title": figure.title, "wide": figure.wide, **figure.spec(shape, palette)}
                for figure in shown
            ],
        }
        for name, palette in (("light", LIGHT), ("dark", DARK))
    }


def arrays(shape: Shape, numbers: Numbers) -> dict[str, Any]:
    """What one move of a slider changes: arrays and the sentence under each figure."""
    return {
        figure.name: {"data": figure.arrays(shape, numbers), "sentence": figure.sentence(shape, numbers)}
        for figure in FIGURES
        if figure.shown(shape)
    }


def _layer_axis(shape: Shape) -> dict[str, Any]:
    step = 1 + len(shape.layers) // 24
    return {
        "type": "category",
        "title": {"text": text.LAYER},
        "tickvals": labels(shape.layers)[::step],
        "range": [-0.5, len(shape.layers) - 0.5],
        "showgrid": False,
    }


def _share_axis(title: str = "") -> dict[str, Any]:
    return {"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.25, "title": {"text": title}}


# How far each part of the model moves ------------------------------------------------------


def _change_spec(shape: Shape, palette: Palette) -> Spec:
    roles = labels(shape.roles)
    digits = sum(shape.change_limit < limit for limit in (0.08, 0.008))
    trace = {
        "type": "heatmap",
        "x": labels(shape.layers),
        "y": roles,
        "customdata": [places(shape)] * len(roles),
        "zmin": 0,
        "zmax": shape.change_limit,
        "colorscale": scale(palette.sequential),
        "colorbar": {"tickformat": f".{digits}%"},
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": text.HOVER_CHANGE,
    }
    height = max(220, 26 * len(roles) + 70)
    layout = {"xaxis": _layer_axis(shape), "yaxis": {"autorange": "reversed", "showgrid": False}}
    options = [(MERGED, text.MERGED), *((str(place), name) for place, name in enumerate(shape.models))]
    choices = {"label": text.MAP_SHOWS, "options": options}
    return {"height": min(height, 520), "data": [trace], "layout": layout, "choices": choices}


def _change_arrays(shape: Shape, numbers: Numbers) -> Arrays:
    return [{"z": rounded(numbers.change)}]


# Where the models pull in the same direction -----------------------------------------------


def _agreement_spec(shape: Shape, palette: Palette) -> Spec:
    names = labels(shape.layers)
    bars = [
        {
            "type": "bar",
            "name": text.AGREE,
            "x": names,
            "customdata": places(shape),
            "marker": {"color": palette.merge},
            "hovertemplate": text.HOVER_AGREE,
        },
        {
            "type": "bar",
            "name": text.CONFLICT,
            "x": names,
            "customdata": places(shape),
            "marker": {"color": palette.conflict},
            "hovertemplate": text.HOVER_CONFLICT,
        },
    ]
    survivors = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text.SURVIVES,
        "x": names,
        "customdata": places(shape),
        "line": {"color": palette.ghost, "width": 2},
        "marker": {"size": 6},
        "hovertemplate": text.HOVER_SURVIVES,
    }
    half = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.5, "y1": 0.5}
    layout = {
        "barmode": "stack",
        "xaxis": _layer_axis(shape),
        "yaxis": _share_axis(),
        "shapes": [half | {"line": {"color": palette.ghost, "width": 1, "dash": "dot"}}],
    }
    return {"height": 300, "data": [*bars, survivors], "layout": layout}


def _agreement_arrays(shape: Shape, numbers: Numbers) -> Arrays:
    elects = bool(np.nanmin(numbers.surviving, initial=1.0) < 1)
    agree, conflict, survive = (
        {"y": rounded(values)} for values in (numbers.agreement, 1 - numbers.agreement, numbers.surviving)
    )
    return [agree, conflict, survive | {"visible": elects}]


# How alike the changes are -----------------------------------------------------------------


def _cosine_spec(shape: Shape, palette: Palette) -> Spec:
    names = labels(shape.models, 16)
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "zmin": -1,
        "zmax": 1,
        "zmid": 0,
        "colorscale": scale(palette.diverging),
        "texttemplate": "%{z:.2f}",
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": text.HOVER_COSINE,
    }
    layout = {"xaxis": {"showgrid": False}, "yaxis": {"autorange": "reversed", "showgrid": False}}
    return {"height": 300, "data": [trace], "layout": layout}


def _cosine_arrays(shape: Shape, numbers: Numbers) -> Arrays:
    return [{"z": rounded(numbers.cosine, 3)}]


# How much of each change is kept -----------------------------------------------------------


def _kept_spec(shape: Shape, palette: Palette) -> Spec:
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": labels(shape.layers),
            "customdata": places(shape),
            "line": {"color": palette.model(index), "width": 2},
            "marker": {"size": 7},
            "hovertemplate": text.HOVER_KEPT,
        }
        for index, name in enumerate(labels(shape.models))
    ]
    layout = {"xaxis": _layer_axis(shape), "yaxis": _share_axis()}
    return {"height": 300, "data": traces, "layout": layout}


def _kept_arrays(shape: Shape, numbers: Numbers) -> Arrays:
    return [{"y": rounded(row)} for row in numbers.kept]


# What the demo's models can do -------------------------------------------------------------


def _skill_spec(shape: Shape, palette: Palette) -> Spec:
    views = list(shape.skills.views)
    hover = text.HOVER_SKILL
    parents = [
        {
            "type": "bar",
            "name": name,
            "x": views,
            "y": rounded(accuracy),
            "marker": {"color": palette.muted if index == 0 else palette.model(index - 1), "opacity": 0.45},
            "hovertemplate": hover,
        }
        for index, (name, accuracy) in enumerate(zip(labels(shape.skills.models), shape.skills.accuracy, strict=True))
    ]
    merge = {"type": "bar", "name": text.MERGE, "x": views, "marker": {"color": palette.merge}, "hovertemplate": hover}
    ghost = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text.BEST_SETTING,
        "x": views,
        "line": {"color": palette.ghost, "width": 1.5, "dash": "dot"},
        "marker": {"symbol": "line-ew-open", "size": 22, "line": {"width": 2}},
        "hovertemplate": hover,
    }
    layout = {
        "barmode": "group",
        "bargroupgap": 0.08,
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": _share_axis(text.RIGHT_ANSWERS),
    }
    return {"height": 320, "data": [*parents, merge, ghost], "layout": layout}


def _skill_arrays(shape: Shape, numbers: Numbers) -> Arrays:
    unknown = [None] * len(shape.skills.views)
    moving = [unknown if values is None else rounded(values) for values in (numbers.accuracy, numbers.best)]
    return [{} for _ in shape.skills.models] + [{"y": values} for values in moving]


def _any(shape: Shape) -> bool:
    return bool(shape.models)


def _several(shape: Shape) -> bool:
    return len(shape.models) > 1


FIGURES = (
    Figure(
        "skill",
        text.FIGURE_SKILL,
        _skill_spec,
        _skill_arrays,
        text.skill_sentence,
        shown=lambda shape: bool(shape.skills.views),
        wide=True,
    ),
    Figure("change", text.FIGURE_CHANGE, _change_spec, _change_arrays, text.change_sentence, wide=True),
    Figure(
        "agreement", text.FIGURE_AGREEMENT, _agreement_spec, _agreement_arrays, text.agreement_sentence, shown=_several
    ),
    Figure("cosine", text.FIGURE_COSINE, _cosine_spec, _cosine_arrays, text.cosine_sentence, shown=_several),
    Figure("kept", text.FIGURE_KEPT, _kept_spec, _kept_arrays, text.kept_sentence, _any, wide=True),
)
