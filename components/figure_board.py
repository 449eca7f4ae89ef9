"""The figures' place in the page: one gr.HTML, a short script and plotly.js from its package.

The specification travels as the prop ``structure`` when models or method change; ``value``
carries what one move changes.  Both are JSON.  After a pause in moving, the script sends
``settle`` so that the exact figures can be computed.
"""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from components import figures, text
from components.numbers import Numbers, Shape

SCRIPT = Path(__file__).parent.parent / "assets" / "figures.js"
PLOTLY_ROUTE = "/mixdesk/plotly.min.js"
TEMPLATE = """<div class="board"><div class="notice" role="status" hidden></div><dl class="strip"></dl>
<div class="cards"></div><p class="live sr-only" aria-live="polite"></p></div>"""


def build() -> gr.HTML:
    """An empty board; fill it with `structure_message` and `move_message`."""
    return gr.HTML(
        value="",
        structure="",
        plotly=PLOTLY_ROUTE,
        html_template=TEMPLATE,
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="board",
    )


def routes() -> list[Route]:
    """Serves the one plotly.js that the installed plotly package brings; nothing is fetched from elsewhere."""
    package = importlib.util.find_spec("plotly")
    assert package is not None and package.origin is not None
    script = Path(package.origin).parent / "package_data" / "plotly.min.js"

    async def plotly(request: Request) -> FileResponse:
        return FileResponse(script, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    return [Route(PLOTLY_ROUTE, plotly)]


def structure_message(shape: Shape, key: str) -> str:
    """What the page needs once for a set of models."""
    strip = [{"name": name, "label": text.STRIP[name], "hint": text.STRIP_HINTS[name]} for name in _strip(shape)]
    return json.dumps({"key": key, "strip": strip, **figures.structure(shape)}, separators=(",", ":"))


def move_message(
    shape: Shape, numbers: Numbers, key: str, stamp: int, *, final: bool, chosen: str = figures.MERGED
) -> str:
    """What one move changes, and whose change the map shows; under 10 KB for a hundred layers."""
    drawn = figures.arrays(shape, numbers)
    message: dict[str, Any] = {
        "key": key,
        "stamp": stamp,
        "final": final,
        "chosen": chosen,
        "strip": {name: _strip_value(name, numbers) for name in _strip(shape)},
        "figures": drawn,
    }
    if final:
        message["say"] = next(iter(drawn.values()))["sentence"]
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def problem_message(lines: list[str], stamp: int, *, final: bool) -> str:
    """Keeps the old figures, paled, and says why they do not move."""
    return json.dumps({"stamp": stamp, "final": final, "problem": lines, "say": " ".join(lines)})


def stamp() -> int:
    """Moment at which a request began; the page ignores answers to older requests."""
    return time.time_ns() // 1000


def _strip(shape: Shape) -> tuple[str, ...]:
    return ("change", "agreement", "kept", "skill" if shape.skills.views else "surviving")


def _strip_value(name: str, numbers: Numbers) -> str:
    if name == "change":
        return text.change_percent(numbers.total_change)
    if name == "skill":
        return "–" if numbers.accuracy is None else text.percent(float(numbers.accuracy.mean()))
    totals = {
        "agreement": numbers.total_agreement,
        "kept": numbers.total_kept,
        "surviving": numbers.total_surviving,
    }
    return text.percent(totals[name])
