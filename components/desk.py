"""What the panels share: the draft, who owns the browser, and how one change reaches everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import Dependency

from components import problems, text
from components.draft import Draft

STORAGE_SECRET = "mixdesk"
"""Keeps the browser's storage readable after a restart.  It is no secret: the page's config shows it."""

QUIET: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "api_visibility": "private",
    "preprocess": False,
}
"""For all handlers: they belong to the page alone, and a reload may break off a request without a trace.

Values arrive as the page sends them: Gradio would refuse a move of any control while one number box holds too
large a number, or none; here the handlers read them with care.
"""


@dataclass(frozen=True)
class Memory:
    """What outlives a reload.

    Attributes:
        draft: the draft as a program last wrote it; while a visitor moves controls, they are the truth.  It
            lives in the page, so that a request always carries a draft and control values that belong together.
        saved: the draft as it last stood still, kept in the browser.
        step: where the visitor is.
        owner: secret of this browser, to which its merges belong.
        job: id of the merge that this browser started last.
        watched: id of the merge on the page, when another link led to it.
    """

    draft: gr.JSON
    saved: gr.BrowserState
    step: gr.BrowserState
    owner: gr.BrowserState
    job: gr.BrowserState
    watched: gr.State


def remember() -> Memory:
    """The session's values, empty."""
    return Memory(
        draft=gr.JSON(visible=False),
        saved=_kept("draft"),
        step=_kept("step"),
        owner=_kept("owner"),
        job=_kept("job"),
        watched=gr.State(None),
    )


def _kept(name: str) -> gr.BrowserState:
    return gr.BrowserState(None, storage_key=f"mixdesk-{name}", secret=STORAGE_SECRET)


@dataclass(frozen=True)
class View:
    """Part of a panel that follows the draft.

    Attributes:
        outputs: components that are updated.
        shown: the updates for a draft, in their order.
    """

    outputs: Sequence[Any]
    shown: Callable[[Draft], Sequence[Any]]


@dataclass(frozen=True)
class Desk:
    """The one way to change the draft from outside the controls.

    Attributes:
        memory: the session's values.
        views: everything that follows the draft.
        controls: what a visitor moves.
        read: the draft as the controls say it, from a draft and their values.
        redraw: adds the drawing of the figures after an event.
    """

    memory: Memory
    views: Sequence[View]
    controls: Sequence[Any]
    read: Callable[[Draft, Sequence[Any]], Draft]
    redraw: Callable[[Dependency], Dependency]

    @property
    def outputs(self) -> list[Any]:
        """Draft and everything that follows it, in the order of `updates`."""
        return [self.memory.draft, *(output for view in self.views for output in view.outputs)]

    def updates(self, draft: Draft) -> list[Any]:
        """What `outputs` shows for a draft."""
        return [draft.to_json(), *(update for view in self.views for update in view.shown(draft))]

    def restored(self, draft: Draft) -> tuple[list[Any], str]:
        """What `outputs` shows for a draft, without the views that fail, and an alert that says why."""
        updates, alert = [draft.to_json()], ""
        for view in self.views:
            try:
                updates += view.shown(draft)
            except Exception as error:
                updates += [gr.skip()] * len(view.outputs)
                alert = alert or problems.alert(problems.explain(error, text.CANNOT_RESTORE))
        return updates, alert

    @property
    def sources(self) -> list[Any]:
        """What `current` reads."""
        return [self.memory.draft, *self.controls]

    def current(self, values: Sequence[Any]) -> Draft:
        """The draft as it stands, from the values of `sources`."""
        written, *moved = values
        return self.read(Draft.from_json(written) or Draft(), moved)

    def change(
        self,
        trigger: Callable[..., Dependency],
        handler: Callable[..., Draft],
        inputs: Sequence[Any],
        problem: gr.HTML,
        what: str,
        data: Callable[[Any], Any] | None = None,
        cleared: Sequence[Any] = (),
    ) -> Dependency:
        """Let an event change the draft.

        Args:
            trigger: such as ``button.click``.
            handler: takes the draft as it stands, then the values of ``inputs`` (and what ``data``
                finds in the event), and returns the next draft or raises.
            inputs: more components to read.
            problem: where a failure is explained.
            what: the failure in one sentence.
            data: takes the event's own data apart.
            cleared: fields that are emptied when it worked.
        """
        count = len(self.sources)

        def run(event: gr.EventData, *values: Any) -> list[Any]:
            found = [] if data is None else [data(event)]
            try:
                changed = handler(self.current(values[:count]), *values[count:], *found)
                return ["", *self.updates(changed), *[""] * len(cleared)]
            except Exception as error:
                return [problems.alert(problems.explain(error, what)), *[gr.skip()] * (len(outputs) - 1)]

        outputs = [problem, *self.outputs, *cleared]
        return self.redraw(trigger(run, [*self.sources, *inputs], outputs, **QUIET))
