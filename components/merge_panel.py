"""Step 3: start the merge, watch it, take the result home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import numpy as np

import merger
from components import access, job_card, problems, text
from components.desk import QUIET, Desk, Memory
from components.draft import Draft
from components.live import WhatIf
from components.numbers import Skills
from components.recipes import draft_of, recipe_of
from merger import Job, JobStore, MergerError, UserError, new_owner

POLL_SECONDS = 0.5
LINK_SECONDS = 1500
"""Download links are renewed long before they end."""

REMEMBER_JOB = """(job) => {
  const address = new URL(location.href);
  job ? address.searchParams.set('job', job) : address.searchParams.delete('job');
  history.replaceState(null, '', address);
}"""


FOCUS_PROGRESS = """() => setTimeout(() => {
  const progress = document.getElementById('progress');
  if (!progress.querySelector('.job-card') || document.querySelector('#step-merge .alert')) return;
  progress.tabIndex = -1;
  progress.focus();
}, 50)"""
"""The start button is switched off now, and a switched-off button cannot keep the focus."""


@dataclass(frozen=True)
class MergePanel:
    """The components of step 3."""

    summary: gr.HTML
    name: gr.Textbox
    dtype: gr.Dropdown
    start: gr.Button
    problem: gr.HTML
    progress: gr.HTML
    cancel: gr.Button
    resume: gr.Button
    result: gr.HTML
    texts: gr.Column
    card: gr.Code
    recipe: gr.Code
    timer: gr.Timer
    renew: gr.Timer

    @property
    def job_outputs(self) -> list[Any]:
        """What `Merges.watch` updates."""
        return [
            self.progress,
            self.cancel,
            self.resume,
            self.result,
            self.texts,
            self.card,
            self.recipe,
            self.start,
            self.timer,
        ]


def build() -> MergePanel:
    """What will be made, the button that makes it, and room for progress and result."""
    gr.HTML(f"<h2>{text.MERGE_TITLE}</h2><p class='lead'>{text.MERGE_LEAD}</p>", elem_classes=["section-head"])
    summary = gr.HTML(elem_id="merge-summary", apply_default_css=False)
    with gr.Row(elem_classes=["form-row"], equal_height=False):
        name = gr.Textbox(label=text.NAME, value=text.NAME_DEFAULT, elem_id="merge-name", max_lines=1, max_length=80)
        dtype = gr.Dropdown(text.DTYPES, value="", label=text.DTYPE, info=None, elem_id="merge-dtype", filterable=False)
        start = gr.Button(text.START, variant="primary", elem_id="start", scale=0, min_width=180)
    problem = gr.HTML(elem_id="merge-problem")
    progress = gr.HTML(elem_id="progress", apply_default_css=False)
    with gr.Row(elem_classes=["actions"]):
        resume = gr.Button(text.RESUME, visible=False, elem_id="resume", scale=0, min_width=140)
        cancel = gr.Button(text.CANCEL, variant="stop", visible=False, elem_id="cancel", scale=0, min_width=140)
    result = gr.HTML(elem_id="result", apply_default_css=False)
    with gr.Column(visible=False, elem_id="texts") as texts:
        with gr.Accordion(text.CARD_TITLE, open=False):
            card = gr.Code(language="markdown", label=text.CARD_LABEL, interactive=False, elem_id="card", max_lines=24)
        with gr.Accordion(text.RECIPE_TITLE, open=False):
            recipe = gr.Code(
                language="yaml", label=text.RECIPE_LABEL, interactive=False, elem_id="recipe", max_lines=24
            )
    return MergePanel(
        summary,
        name,
        dtype,
        start,
        problem,
        progress,
        cancel,
        resume,
        result,
        texts,
        card,
        recipe,
        gr.Timer(POLL_SECONDS, active=False),
        gr.Timer(LINK_SECONDS),
    )


@dataclass(frozen=True)
class Merges:
    """The handlers of step 3.

    Attributes:
        store: keeps merges that run in the background.
        what_if: knows the recipe of a draft.
    """

    store: JobStore
    what_if: WhatIf

    def forecast(self, draft: Draft) -> str:
        """What will be made: sizes, and everything that stands in the way."""
        if not draft.models:
            return f"<p class='empty'>{text.NO_MODELS_YET}</p>"
        try:
            plan = merger.make_plan(self.what_if.recipe(draft), out=self.store.data_dir, policy=access.policy())
        except Exception as error:
            return problems.alert(problems.explain(error, text.CANNOT_MERGE))
        try:
            return job_card.forecast(plan, self.what_if.methods[draft.method])
        finally:
            plan.close()

    def start(self, draft: Draft, name: str, owner: str | None) -> tuple[str, str]:
        """Queue the merge of a draft.

        Returns:
            The job's id and the owner's secret, a new one for a browser that had none.

        Raises:
            MergerError: the recipe or its models do not fit.
        """
        if not draft.models:
            raise UserError("There is nothing to merge yet.", hint="Choose models in step 1.")
        owner = owner or new_owner()
        recipe = self.what_if.recipe(draft)
        plan = merger.make_plan(recipe, out=self.store.data_dir, policy=access.policy())
        try:
            plan.require()
        finally:
            plan.close()
        return self.store.submit(recipe, owner, name or text.NAME_DEFAULT).id, owner

    @staticmethod
    def inputs(memory: Memory) -> list[Any]:
        """What `watch` reads."""
        return [memory.watched, memory.job, memory.owner]

    def watch(self, watched: str | None, last: str | None, owner: str | None) -> list[Any]:
        """Updates for `MergePanel.job_outputs`: the merge that a link led to, else this browser's last one."""
        job_id = watched or last
        job = self.store.get(str(job_id)) if job_id else None
        if job is None:
            hidden, shut = gr.Button(visible=False), gr.Column(visible=False)
            told = f"<p class='empty'>{text.NO_SUCH_JOB}</p>" if watched else ""
            return [told, hidden, hidden, "", shut, "", "", gr.Button(interactive=True), gr.Timer(active=False)]
        is_mine = self.store.owns(job.id, str(owner or ""))
        try:
            result, card, recipe = self._outcome(job, str(owner) if is_mine else None)
        except Exception as error:
            result, card, recipe = problems.alert(problems.explain(error, text.RESULT_GONE)), "", ""
        is_done = bool(card or recipe)
        return [
            job_card.progress(job, self.store.ahead(job.id)),
            gr.Button(visible=is_mine and job.state in ("queued", "running")),
            gr.Button(visible=is_mine and job.is_resumable),
            result,
            gr.Column(visible=is_done),
            card,
            recipe,
            gr.Button(interactive=not job.is_active),
            gr.Timer(active=job.is_active),
        ]

    def _outcome(self, job: Job, owner: str | None) -> tuple[str, str, str]:
        """Result, model card and recipe of a finished job; nothing of others."""
        if job.state != "verified":
            return "", "", ""
        card, recipe = job_card.texts(self.store, job)
        return job_card.result(self.store, job, owner, self._skills_of(job)), card, recipe

    def _skills_of(self, job: Job) -> Skills | None:
        """Skills of a merge of the demo's models, beside theirs; None for other merges."""
        recipe = recipe_of(job.recipe)
        if recipe.slices:
            return None
        draft = draft_of(job.recipe, self.what_if.methods)
        known = self.what_if.skills.known(draft)
        if known is None:
            return None
        merged = self.what_if.skills.of_folder(self.store.output_path(job.id))
        return replace(known, models=(*known.models, text.MERGE), accuracy=np.vstack([known.accuracy, merged]))


def wire(panel: MergePanel, merges: Merges, desk: Desk, steps: gr.HTML) -> None:
    """Start, watch, cancel and resume; nothing of a merge lives in the page but its id."""
    memory = desk.memory
    watching = {"fn": merges.watch, "inputs": merges.inputs(memory), "outputs": panel.job_outputs, **QUIET}

    def start(name: str, owner: str | None, *values: Any) -> list[Any]:
        try:
            job, owner = merges.start(desk.current(values), name, owner)
        except Exception as error:
            alert, told = problems.alert(problems.explain(error, text.CANNOT_MERGE)), forecast(*values)
            return ["" if stands_in_the_way(told) else alert, *[gr.skip()] * 3, told]
        return ["", job, owner, job, gr.skip()]

    def forecast(*values: Any) -> str:
        return merges.forecast(desk.current(values))

    started = panel.start.click(
        start,
        [panel.name, memory.owner, *desk.sources],
        [panel.problem, memory.job, memory.owner, memory.watched, panel.summary],
        **QUIET,
    )
    remembered = started.then(None, [memory.job], None, js=REMEMBER_JOB, api_visibility="private")
    remembered.then(**watching).then(None, None, None, js=FOCUS_PROGRESS, api_visibility="private")
    for button, act in ((panel.cancel, merges.store.cancel), (panel.resume, merges.store.resume)):
        button.click(_acting(act), merges.inputs(memory), [panel.problem], **QUIET).then(**watching)
    panel.timer.tick(**watching)
    panel.renew.tick(**watching)
    for trigger in (steps.step, panel.dtype.input):
        trigger(forecast, desk.sources, panel.summary, **QUIET)


def stands_in_the_way(forecast: str) -> bool:
    """Whether a forecast says why there can be no merge, so that nobody has to say it again."""
    return "<dl" not in forecast


def _acting(act: Callable[[str, str], Job]) -> Callable[[str | None, str | None, str | None], str]:
    """A handler that cancels or resumes, and explains why it could not."""

    def run(watched: str | None, last: str | None, owner: str | None) -> str:
        try:
            act(watched or last or "", owner or "")
        except MergerError as error:
            return problems.alert(problems.explain(error, text.CANNOT_DO))
        return ""

    return run


def shown(draft: Draft) -> list[Any]:
    """The number format of a draft; a pinned recipe sets it itself."""
    known = [value for _, value in text.DTYPES]
    return [gr.Dropdown(text.DTYPES, value=draft.dtype if draft.dtype in known else "", visible=draft.pinned is None)]
