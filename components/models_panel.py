"""Step 1: which models, which of them is the base, and whether they fit together."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

import merger
from components import access, problems, shell, text
from components.demo_skills import is_family
from components.desk import Desk
from components.draft import Draft, portable_path
from merger import ModelReference, UserError

if TYPE_CHECKING:
    from merger import Report

CARDS_SCRIPT = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-remove]');
  if (button) trigger('remove', { place: Number(button.dataset.remove) });
});
element.addEventListener('change', (event) => {
  const input = event.target;
  if (input.type === 'radio') trigger('base', { place: Number(input.value) });
});
// What was clicked once no longer follows its attribute; the server's word counts.
watch('value', () => {
  for (const input of element.querySelectorAll('input')) input.checked = input.hasAttribute('checked');
});
"""


@dataclass(frozen=True)
class ModelsPanel:
    """The components of step 1."""

    path: gr.Textbox
    add: gr.Button
    demo: gr.Button
    problem: gr.HTML
    cards: gr.HTML
    report: gr.HTML
    next: gr.Button

    @property
    def outputs(self) -> list[gr.components.Component]:
        """What `shown` updates."""
        return [self.cards, self.report]


def build() -> ModelsPanel:
    """A field for a folder, the demo, the chosen models and what is to be said about them."""
    gr.HTML(f"<h2>{text.MODELS_TITLE}</h2><p class='lead'>{text.MODELS_LEAD}</p>", elem_classes=["section-head"])
    with gr.Row(elem_classes=["add-row"], equal_height=False):
        path = gr.Textbox(
            label=text.PATH_LABEL, placeholder=text.PATH_PLACEHOLDER, elem_id="model-path", scale=4, max_lines=1
        )
        add = gr.Button(text.ADD, elem_id="model-add", scale=0, min_width=110)
    with gr.Row(elem_classes=["demo-row"]):
        gr.HTML(f"<span>{text.DEMO_INTRO}</span>", elem_id="demo-intro")
        demo = gr.Button(text.DEMO_DIGITS, elem_id="demo-digits", size="sm", scale=0, min_width=200)
    problem = gr.HTML(elem_id="models-problem")
    cards = gr.HTML(elem_id="model-cards", js_on_load=CARDS_SCRIPT, apply_default_css=False)
    report = gr.HTML(elem_id="models-report", apply_default_css=False)
    with gr.Row(elem_classes=["actions"]):
        forward = gr.Button(text.TO_MIX, variant="primary", elem_id="to-mix", scale=0, min_width=180)
    return ModelsPanel(path, add, demo, problem, cards, report, forward)


def wire(panel: ModelsPanel, desk: Desk, demo: Draft) -> None:
    """Adding, removing and choosing the base change the draft; everything else follows from it."""

    def load_demo(draft: Draft) -> Draft:
        return demo

    for trigger in (panel.add.click, panel.path.submit):
        desk.change(
            trigger, leaving_demo(add_model), [panel.path], panel.problem, text.CANNOT_ADD, cleared=[panel.path]
        )
    desk.change(panel.demo.click, load_demo, [], panel.problem, text.CANNOT_ADD)
    for trigger, handler in ((panel.cards.remove, leaving_demo(Draft.without_model)), (panel.cards.base, choose_base)):
        desk.change(trigger, handler, [], panel.problem, text.CANNOT_CHANGE, lambda event: int(event.place))
    panel.next.click(None, None, None, js=shell.go("mix"), api_visibility="private")


def leaving_demo(handler: Callable[[Draft, Any], Draft]) -> Callable[[Draft, Any], Draft]:
    """The handler; once the models are no longer the demo's alone, its settings go, too."""

    def run(draft: Draft, value: Any) -> Draft:
        changed = handler(draft, value)
        left = is_family(draft) and not is_family(changed)
        return replace(changed, per_model={}, parameters={}) if left else changed

    return run


def add_model(draft: Draft, path: str) -> Draft:
    """The draft with one model more; the base is found where configs tell.

    Raises:
        UserError: nothing was typed, the folder holds no model, or there are too many.
    """
    path = unquoted(path or "")
    if not path:
        raise UserError("The field is empty.", hint="Type the path of a folder that holds a model.")
    grown = draft.with_model(portable_path(path))
    report = inspected(grown)
    if grown.base is None and report.base is not None:
        grown = grown.with_base(place_of(report.base, grown))
    return grown


def unquoted(path: str) -> str:
    """What was typed or pasted, without spaces and the quotes that file managers and shells put around a path."""
    path = path.strip()
    is_quoted = len(path) > 1 and path[0] == path[-1] and path[0] in "'\""
    return path[1:-1].strip() if is_quoted else path


def choose_base(draft: Draft, place: int) -> Draft:
    """The draft with another base; a negative place means none."""
    return draft.with_base(None if place < 0 else place)


def place_of(reference: object, draft: Draft) -> int | None:
    """Where a model of a report stands in the draft."""
    places = {str(ModelReference.parse(model)): place for place, model in enumerate(draft.models)}
    return places.get(str(reference))


def shown(draft: Draft) -> list[str]:
    """Cards and report of a draft."""
    if not draft.models:
        return [f"<p class='empty'>{text.NO_MODELS}</p>", ""]
    try:
        report = inspected(draft)
    except Exception as error:
        return [cards(draft, None), problems.alert(problems.explain(error, text.CANNOT_OPEN))]
    return [cards(draft, report), findings(report)]


def inspected(draft: Draft) -> Report:
    """The comparison of a draft's models.

    Raises:
        UserError: a model is missing, damaged, or may not be opened here.
    """
    return merger.inspect(*draft.models, policy=access.policy())


def cards(draft: Draft, report: Report | None) -> str:
    """One card per model: name, facts, role and a button to remove it."""
    facts = [""] * len(draft.models) if report is None else [text.facts(model) for model in report.models]
    items = "".join(_card(draft, place, facts[place]) for place in range(len(draft.models)))
    no_base = "checked" if draft.base is None else ""
    return (
        f"<fieldset class='model-list'><legend class='sr-only'>{text.BASE_LEGEND}</legend>{items}"
        f"<label class='no-base'><input type='radio' name='base' value='-1' {no_base}> {text.NO_BASE}</label>"
        "</fieldset>"
    )


def _card(draft: Draft, place: int, facts: str) -> str:
    name, model = html.escape(draft.names[place]), html.escape(draft.models[place])
    is_base = place == draft.base
    return (
        f"<div class='model-card colour-{draft.colour(place)} {'is-base' if is_base else ''}'>"
        f"<div class='model-text'><strong>{name}</strong><span class='model-facts'>{html.escape(facts)}</span>"
        f"<span class='model-path'>{model}</span></div>"
        f"<span class='role'>{text.ROLE_BASE if is_base else text.ROLE_EXPERT}</span>"
        f"<label class='base-choice'><input type='radio' name='base' value='{place}' {'checked' if is_base else ''}"
        f" aria-label='{text.USE_AS_BASE.format(name=name)}'> {text.BASE}</label>"
        f"<button type='button' class='icon-button' data-remove='{place}'"
        f" aria-label='{text.REMOVE.format(name=name)}'>×</button></div>"
    )


def findings(report: Report) -> str:
    """What the comparison of the models says, worst first."""
    order = ("error", "warning", "note")
    found = sorted(report.findings, key=lambda problem: order.index(problem.level))
    verdict = text.FITS if len(report.models) > 1 else text.ONE_MODEL
    fits = not any(problem.level == "error" for problem in found)
    return problems.listed(found, [verdict] if fits else [])
