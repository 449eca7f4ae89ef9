"""What happens when the page is opened: the last draft, step and merge come back."""

from __future__ import annotations

from typing import Any

import gradio as gr

from components import text
from components.demo_skills import family
from components.desk import QUIET, Desk
from components.draft import Draft
from components.merge_panel import MergePanel, Merges
from components.shell import Shell

STEP_NAMES = tuple(name for name, _ in text.STEPS)


def wire_start(page: gr.Blocks, desk: Desk, frame: Shell, problem: gr.HTML, panel: MergePanel, merges: Merges) -> None:
    """Restore what the browser remembers; a link to a merge leads to it, and ``problem`` tells what failed."""
    memory = desk.memory

    def restore(saved: Any, step: Any, request: gr.Request) -> list[Any]:
        linked = request.query_params.get("job")
        draft = Draft.from_json(saved)
        if draft is None or draft.method not in merges.what_if.methods:
            draft = family()
        here = "merge" if linked else step if step in STEP_NAMES else STEP_NAMES[0]
        updates, alert = desk.restored(draft)
        return [alert, *updates, here, linked]

    def step(event: gr.EventData) -> str:
        return str(event.step)

    def forecast(*values: Any) -> str:
        return merges.forecast(desk.current(values))

    shown = [problem, *desk.outputs, frame.steps, memory.watched]
    opened = page.load(restore, [memory.saved, memory.step], shown, **QUIET)
    desk.redraw(opened)
    found = opened.then(merges.watch, merges.inputs(memory), panel.job_outputs, **QUIET)
    found.then(forecast, desk.sources, panel.summary, **QUIET)
    frame.steps.step(step, None, memory.step, **QUIET)
