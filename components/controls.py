"""A fixed pool of sliders and switches, relabelled to fit whatever a method's signature asks for.

The controls are made once; a method or another set of models only changes labels, ranges and
visibility.  What does not fit into the pool is said and can be set in the recipe's YAML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from components import text
from components.draft import MAX_MODELS, Draft, Value, default

if TYPE_CHECKING:
    from merger import ConfigParameterDef, MethodFacts

WITHOUT_EFFECT = frozenset({"int8_mask"})
"""Parameters that are only accepted for recipes written elsewhere."""

PER_MODEL = 3
NUMBERS = 10
SWITCHES = 10


@dataclass(frozen=True)
class Pool:
    """The controls, in the order in which their values arrive.

    Attributes:
        cards: one group per model, shown when the model is mixed.
        sliders: per model, `PER_MODEL` sliders.
        together: group of the global controls.
        numbers, switches: global sliders and checkboxes.
        rest: says what could not be shown.
    """

    cards: tuple[gr.Column, ...]
    sliders: tuple[tuple[gr.Slider, ...], ...]
    together: gr.Column
    numbers: tuple[gr.Slider, ...]
    switches: tuple[gr.Checkbox, ...]
    rest: gr.Markdown

    @property
    def inputs(self) -> list[gr.Slider | gr.Checkbox]:
        """Everything a visitor can move."""
        return [*(slider for row in self.sliders for slider in row), *self.numbers, *self.switches]

    @property
    def outputs(self) -> list[Any]:
        """Everything that `shown` updates, in its order."""
        return [*self.cards, *self.inputs, self.together, self.rest]


def build() -> Pool:
    """The pool, all of it hidden."""
    cards, sliders = [], []
    for place in range(MAX_MODELS):
        with gr.Column(visible=False, elem_classes=["model-sliders"], elem_id=f"mix-{place}") as card:
            sliders.append(tuple(_slider(f"model-{place}-slider-{slot}") for slot in range(PER_MODEL)))
        cards.append(card)
    with gr.Column(visible=False, elem_classes=["together"], elem_id="together") as together:
        numbers = tuple(_slider(f"number-{slot}") for slot in range(NUMBERS))
        switches = tuple(
            gr.Checkbox(visible=False, interactive=True, elem_id=f"switch-{slot}") for slot in range(SWITCHES)
        )
        rest = gr.Markdown(visible=False)
    return Pool(tuple(cards), tuple(sliders), together, numbers, switches, rest)


def _slider(elem_id: str) -> gr.Slider:
    return gr.Slider(0, 1, 1, step=0.01, visible=False, interactive=True, elem_id=elem_id, buttons=[])


def read(draft: Draft, facts: MethodFacts, values: Sequence[Value]) -> Draft:
    """The draft as the controls say it, from the values of `Pool.inputs`.

    Args:
        draft: as a program last wrote it, so that it knows the ends of the sliders.
        facts: of its method.
        values: of the controls; those of hidden ones do not matter.
    """
    full = draft.settings(facts)
    per_model, numbers, switches = slots(facts)
    table = [values[place * PER_MODEL : (place + 1) * PER_MODEL] for place in range(MAX_MODELS)]
    globals_from = MAX_MODELS * PER_MODEL
    read_models = {
        parameter.name: tuple(
            _typed(parameter, table[place][slot], full.per_model[parameter.name][place])
            for place in range(len(draft.models))
        )
        for slot, parameter in enumerate(per_model)
    }
    read_globals = {
        parameter.name: _typed(parameter, value, full.parameters[parameter.name])
        for parameters, start in ((numbers, globals_from), (switches, globals_from + NUMBERS))
        for parameter, value in zip(parameters, values[start : start + len(parameters)], strict=True)
    }
    return replace(full, per_model={**full.per_model, **read_models}, parameters={**full.parameters, **read_globals})


def shown(draft: Draft, facts: MethodFacts) -> list[Any]:
    """Updates for `Pool.outputs`."""
    full, names = draft.settings(facts), draft.names
    per_model, numbers, switches = slots(facts)
    mixed = draft.mixed(facts)
    has_rows = bool(per_model)
    cards = [
        gr.Column(visible=True, elem_classes=["model-sliders", f"colour-{draft.colour(place)}"])
        if has_rows and place in mixed
        else gr.Column(visible=False)
        for place in range(MAX_MODELS)
    ]
    sliders = [
        _set_slider(per_model, slot, full.per_model, place, names, place == mixed[0])
        if place in mixed
        else gr.Slider(visible=False)
        for place in range(MAX_MODELS)
        for slot in range(PER_MODEL)
    ]
    number_updates = [
        _ranged(parameter, full.parameters[parameter.name], text.parameter_label(parameter.name), parameter.help)
        for parameter in numbers
    ] + [gr.Slider(visible=False)] * (NUMBERS - len(numbers))
    switch_updates = [
        gr.Checkbox(
            visible=True,
            value=bool(full.parameters[parameter.name]),
            label=text.parameter_label(parameter.name),
            info=parameter.help,
        )
        for parameter in switches
    ] + [gr.Checkbox(visible=False)] * (SWITCHES - len(switches))
    left = left_out(facts)
    together = gr.Column(visible=bool(numbers or switches or left))
    rest = gr.Markdown(visible=bool(left), value=text.not_shown(left))
    return [*cards, *sliders, *number_updates, *switch_updates, together, rest]


def slots(
    facts: MethodFacts,
) -> tuple[list[ConfigParameterDef], list[ConfigParameterDef], list[ConfigParameterDef]]:
    """The parameters that the pool shows: per model, global numbers, global switches."""
    numbers = [p for p in facts.parameters if p.type in (int, float)]
    switches = [p for p in facts.parameters if p.type is bool and p.name not in WITHOUT_EFFECT]
    per_model = [p for p in facts.tensor_parameters if p.type in (int, float)]
    return per_model[:PER_MODEL], numbers[:NUMBERS], switches[:SWITCHES]


def left_out(facts: MethodFacts) -> list[str]:
    """Names of parameters that only the YAML can set."""
    fitting = {parameter.name for group in slots(facts) for parameter in group}
    hidden = fitting | WITHOUT_EFFECT
    return [p.name for p in (*facts.tensor_parameters, *facts.parameters) if p.name not in hidden]


def span(parameter: ConfigParameterDef, value: Value) -> tuple[float, float]:
    """Ends of a slider: the parameter's bounds, sensible ones where it has none, and always the value."""
    low = parameter.minimum if parameter.minimum is not None else 0.0
    high = parameter.maximum
    if high is None:
        start = default(parameter)
        high = 100 * start if 0 < start < 0.01 else 2.0 if start <= 1 else 2.0 * start
    return min(low, float(value)), max(high, float(value))


def carries(methods: Mapping[str, MethodFacts], old: str, new: str, name: str) -> bool:
    """Whether what was set for a method means the same to another: some share a name, but neither meaning nor size."""
    usual = {
        method: span(parameter, default(parameter))
        for method, facts in methods.items()
        for parameter in (*facts.tensor_parameters, *facts.parameters)
        if parameter.name == name
    }
    alike = {usual[old], usual[new]} if {old, new} <= usual.keys() else set(usual.values())
    return len(alike) <= 1


def _set_slider(
    parameters: list[ConfigParameterDef], slot: int, values: Any, place: int, names: Sequence[str], is_first: bool
) -> gr.Slider:
    if slot >= len(parameters):
        return gr.Slider(visible=False)
    parameter = parameters[slot]
    info = parameter.help if is_first else ""
    label = f"{text.short(names[place], 40)} · {text.parameter_label(parameter.name)}"
    return _ranged(parameter, values[parameter.name][place], label, info)


def _ranged(parameter: ConfigParameterDef, value: Value, label: str, info: str | None) -> gr.Slider:
    low, high = span(parameter, value)
    step = 1 if parameter.type is int else 0.01 if high - low >= 1 else (high - low) / 100
    return gr.Slider(minimum=low, maximum=high, step=step, value=float(value), label=label, info=info, visible=True)


def _typed(parameter: ConfigParameterDef, value: Any, written: Value) -> Value:
    """A control's value in the parameter's type, inside the slider's ends, where an emptied number box goes to, too."""
    if parameter.type is bool:
        return bool(value)
    low, high = span(parameter, written)
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    result: Value = parameter.type(min(max(value, low), high) if is_number else low)
    return result
