"""Step 2: method and settings on the left, figures that follow the hand on the right."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.events import Dependency

import merger
from components import controls, figure_board, problems, shell, text
from components.demo_skills import is_whole_family
from components.desk import QUIET, Desk, Memory
from components.draft import Draft
from components.figures import MERGED
from components.live import WhatIf
from components.recipes import draft_of

if TYPE_CHECKING:
    from merger import MethodFacts


@dataclass(frozen=True)
class MixPanel:
    """The components of step 2."""

    method: gr.Dropdown
    about: gr.HTML
    pool: controls.Pool
    pinned: gr.HTML
    unpin: gr.Button
    problem: gr.HTML
    yaml: gr.Code
    apply: gr.Button
    chosen: gr.State
    lead: gr.HTML
    board: gr.HTML
    next: gr.Button

    @property
    def outputs(self) -> list[Any]:
        """What `shown` updates."""
        return [self.lead, self.method, self.about, *self.pool.outputs, self.pinned, self.unpin, self.yaml, self.chosen]


def build(methods: Mapping[str, MethodFacts]) -> MixPanel:
    """Controls left, figures right."""
    lead = gr.HTML(elem_id="mix-lead", elem_classes=["section-head"])
    with gr.Row(elem_id="mix-layout", equal_height=False):
        with gr.Column(elem_id="mix-controls", scale=0, min_width=300):
            choices = text.method_choices(methods)
            method = gr.Dropdown(choices, label=text.METHOD, elem_id="method", interactive=True, filterable=False)
            about = gr.HTML(elem_id="method-about", apply_default_css=False)
            pinned = gr.HTML(elem_id="pinned", visible=False)
            unpin = gr.Button(text.UNPIN, visible=False, size="sm", elem_id="unpin")
            pool = controls.build()
            with gr.Accordion(text.YAML_TITLE, open=False, elem_id="yaml-box"):
                yaml = gr.Code(
                    language="yaml", label=text.YAML_LABEL, show_label=False, elem_id="yaml", interactive=True, lines=8
                )
                problem = gr.HTML(elem_id="yaml-problem")
                apply = gr.Button(text.APPLY, size="sm", elem_id="yaml-apply")
        with gr.Column(elem_id="mix-figures", scale=1, min_width=300):
            board = figure_board.build()
    chosen = gr.State(MERGED)
    with gr.Row(elem_classes=["actions"]):
        forward = gr.Button(text.TO_MERGE, variant="primary", elem_id="to-merge", scale=0, min_width=180)
    return MixPanel(method, about, pool, pinned, unpin, problem, yaml, apply, chosen, lead, board, forward)


@dataclass(frozen=True)
class Mixer:
    """The handlers of step 2.

    Attributes:
        what_if: evaluates drafts.
    """

    what_if: WhatIf

    def read(self, draft: Draft, values: Sequence[Any]) -> Draft:
        """The draft as the controls say it; a pinned recipe stands above them.

        Args:
            draft: as a program last wrote it.
            values: of the pool's controls, then the number format of the result.
        """
        if draft.pinned is not None:
            return draft
        *moved, dtype = values
        return replace(controls.read(draft, self.what_if.methods[draft.method], moved), dtype=str(dtype or "") or None)

    def shown(self, draft: Draft) -> list[Any]:
        """Updates for `MixPanel.outputs`."""
        facts = self.what_if.methods[draft.method]
        pool = controls.shown(draft if draft.pinned is None else Draft(method=draft.method), facts)
        is_pinned = draft.pinned is not None
        return [
            f"<h2>{text.MIX_TITLE}</h2><p class='lead'>{self.lead(draft)}</p>",
            draft.method,
            about(draft, facts),
            *pool,
            gr.HTML(f"<div class='hint'>{text.PINNED}</div>", visible=is_pinned),
            gr.Button(visible=is_pinned),
            self.yaml(draft),
            MERGED,
        ]

    def lead(self, draft: Draft) -> str:
        """What to drag, in one sentence."""
        if not draft.models:
            return text.LEAD
        if draft.pinned is not None:
            return text.LEAD_STILL
        if draft.method == "task_arithmetic" and is_whole_family(draft):
            return text.LEAD_DEMO
        per_model, numbers, _ = controls.slots(self.what_if.methods[draft.method])
        return text.lead([text.parameter_label(parameter.name) for parameter in (*per_model, *numbers)])

    def yaml(self, draft: Draft) -> str:
        """The recipe as text; while settings contradict each other, says so as a comment."""
        if not draft.models:
            return ""
        try:
            return draft.pinned or self.what_if.recipe(draft).to_yaml()
        except merger.MergerError as error:
            return "".join(f"# {line}\n" for line in str(error).splitlines())

    def draw(self, draft: Draft) -> tuple[Any, Any]:
        """The board for another set of models or another method, and the draft to keep."""
        stamp = figure_board.stamp()
        if not draft.models:
            empty = figure_board.problem_message([text.NOTHING_TO_MIX], stamp, final=True)
            return gr.HTML(structure="", value=empty), None
        try:
            samples = self.what_if.samples(draft)
        except Exception as error:
            lines = problems.explain(error, text.CANNOT_DRAW)[0].lines
            message = figure_board.problem_message(lines, stamp, final=True)
            return gr.HTML(structure="", value=message), draft.to_json()
        structure = figure_board.structure_message(samples.shape, samples.key)
        return gr.HTML(structure=structure, value=self._message(draft, MERGED, final=True)), draft.to_json()

    def move(self, draft: Draft, chosen: str) -> str:
        """What one move of a slider, or another choice for the map, changes in the figures."""
        return self._message(draft, chosen, final=False)

    def settle(self, draft: Draft, chosen: str) -> tuple[str, dict[str, Any], str]:
        """The full figures once the hand rests; also the draft to keep and its text."""
        return self._message(draft, chosen, final=True), draft.to_json(), self.yaml(draft)

    def _message(self, draft: Draft, chosen: str, *, final: bool) -> str:
        stamp = figure_board.stamp()
        try:
            samples = self.what_if.samples(draft)
            place = None if chosen == MERGED else int(chosen)
            numbers = self.what_if.numbers(draft, samples, place, full=final)
        except Exception as error:
            lines = problems.explain(error, text.CANNOT_DRAW)[0].lines
            return figure_board.problem_message(lines, stamp, final=final)
        return figure_board.move_message(samples.shape, numbers, samples.key, stamp, final=final, chosen=chosen)

    def choose_method(self, draft: Draft, method: str) -> Draft:
        """Another method; settings that were changed stay under their name, others take its defaults."""
        methods, left = self.what_if.methods, draft.without_defaults(self.what_if.methods[draft.method])
        carries = partial(controls.carries, methods, draft.method, method)
        per_model = {name: values for name, values in left.per_model.items() if carries(name)}
        parameters = {name: value for name, value in left.parameters.items() if carries(name)}
        changed = replace(left, method=method, pinned=None, per_model=per_model, parameters=parameters)
        return changed.settings(methods[method])

    def apply(self, draft: Draft, yaml: str) -> Draft:
        """The draft that a recipe in YAML says.

        Raises:
            RecipeError: with everything that is wrong with it.
        """
        return draft_of(yaml or "", self.what_if.methods)


def wire(panel: MixPanel, mixer: Mixer, desk: Desk) -> None:
    """One event for all controls; method, YAML and models go through the desk."""

    def move(chosen: str, *values: Any) -> str:
        return mixer.move(desk.current(values), chosen)

    def choose(event: gr.EventData, *values: Any) -> tuple[str, str]:
        return event.chosen, mixer.move(desk.current(values), event.chosen)

    def settle(chosen: str, *values: Any) -> tuple[str, dict[str, Any], str]:
        return mixer.settle(desk.current(values), chosen)

    moved = [control.input for control in panel.pool.inputs]
    gr.on(moved, move, [panel.chosen, *desk.sources], panel.board, trigger_mode="always_last", **QUIET)
    panel.board.choose(choose, desk.sources, [panel.chosen, panel.board], **QUIET)
    panel.board.settle(settle, [panel.chosen, *desk.sources], [panel.board, desk.memory.saved, panel.yaml], **QUIET)
    desk.change(panel.method.input, mixer.choose_method, [panel.method], panel.problem, text.CANNOT_CHANGE)
    desk.change(panel.apply.click, mixer.apply, [panel.yaml], panel.problem, text.CANNOT_APPLY)
    desk.change(panel.unpin.click, lambda draft: replace(draft, pinned=None), [], panel.problem, text.CANNOT_CHANGE)
    panel.next.click(None, None, None, js=shell.go("merge"), api_visibility="private")


def redrawing(panel: MixPanel, mixer: Mixer, memory: Memory) -> Callable[[Dependency], Dependency]:
    """Adds the drawing of the figures after an event: cards and controls answer before samples are read."""

    def draw(written: Any) -> tuple[Any, Any]:
        return mixer.draw(Draft.from_json(written) or Draft())

    def after(event: Dependency) -> Dependency:
        return event.then(draw, [memory.draft], [panel.board, memory.saved], **QUIET)

    return after


def about(draft: Draft, facts: MethodFacts) -> str:
    """One sentence on the method, and what it makes of the base."""
    note = ""
    if facts.base == "required" and draft.base is None:
        note = text.BASE_NEEDED
    elif draft.models and not draft.fits(facts):
        note = " ".join(text.wrong_count(facts, len(draft.mixed(facts)), draft.base is not None))
    elif facts.base == "none" and draft.base is not None:
        note = text.BASE_UNUSED.format(name=draft.names[draft.base])
    extra = f"<p class='hint'>{html.escape(note)}</p>" if note else ""
    return f"<p class='about'>{html.escape(facts.summary)}</p>{extra}"
