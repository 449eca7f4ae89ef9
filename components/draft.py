"""What a visitor is about to merge, as one frozen value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from components import text
from merger import ModelReference, Recipe, UserError

if TYPE_CHECKING:
    from merger import ConfigParameterDef, MethodFacts

Value = bool | int | float
MAX_MODELS = 8
START_DENSITY = 0.5
START_DISTANCE = 0.001
"""Values of models differ by about this much: where a distance between them starts that has no bounds."""
_TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
"""Characters that turn the direction of writing, also of the words after a name."""


@dataclass(frozen=True)
class Draft:
    """Models, method and settings; what the page shows and what is kept in the browser.

    Attributes:
        models: as the visitor named them, the base included.
        base: place of the base among them, or None.
        method: canonical name.
        per_model: parameter name to one value per model, aligned with ``models``.
        parameters: global parameters by name; those of other methods are kept for later.
        dtype: number format of the result, None for the base's.
        pinned: a recipe in YAML that says more than the controls can show; it is used as it is.
    """

    models: tuple[str, ...] = ()
    base: int | None = None
    method: str = "task_arithmetic"
    per_model: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Value] = field(default_factory=dict)
    dtype: str | None = None
    pinned: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What to call each model: its folder, with the folder above where two are alike."""
        short = [ModelReference.parse(model).short_name.translate(_TURNING) for model in self.models]
        return tuple(
            name if short.count(name) == 1 else "/".join(model.translate(_TURNING).rstrip("/").split("/")[-2:])
            for name, model in zip(short, self.models, strict=True)
        )

    @property
    def experts(self) -> tuple[int, ...]:
        """Places of the models that are not the base."""
        return tuple(place for place in range(len(self.models)) if place != self.base)

    @property
    def compared(self) -> tuple[int, ...]:
        """Places of the models whose changes are measured: all but the base, or but the first where there is none."""
        return self.experts if self.base is not None else self.experts[1:]

    def colour(self, place: int) -> int:
        """Number of a model's colour, the same in cards, sliders and figures; 0 is grey."""
        return self.compared.index(place) + 1 if place in self.compared else 0

    def with_model(self, model: str) -> Draft:
        """One model more; the first one starts with the method's own defaults.

        Raises:
            UserError: it is there already, or there are too many.
        """
        if model in self.models:
            raise UserError(f"'{model}' is already in the list.", hint="Add another model.")
        if len(self.models) >= MAX_MODELS:
            raise UserError(f"The page holds {MAX_MODELS} models.", hint="Remove one first, or use the command line.")
        if not self.models:
            return Draft((model,), method=self.method, dtype=self.dtype)
        per_model = {name: (*values, values[-1]) for name, values in self.per_model.items() if values}
        return replace(self, models=(*self.models, model), per_model=per_model, pinned=None)

    def without_model(self, place: int) -> Draft:
        """One model less; the others keep their settings."""
        models = tuple(model for index, model in enumerate(self.models) if index != place)
        per_model = {
            name: tuple(value for index, value in enumerate(values) if index != place)
            for name, values in self.per_model.items()
        }
        base = None if self.base in (None, place) else self.models[self.base or 0]
        return replace(
            self, models=models, base=None if base is None else models.index(base), per_model=per_model, pinned=None
        )

    def with_base(self, place: int | None) -> Draft:
        """Another base, or none."""
        return replace(self, base=place if place is not None and place < len(self.models) else None, pinned=None)

    def settings(self, facts: MethodFacts) -> Draft:
        """The same with a value for every parameter of the method."""
        count = len(self.models)
        per_model = {
            parameter.name: _padded(self.per_model.get(parameter.name, ()), count, start(parameter))
            for parameter in facts.tensor_parameters
        }
        parameters = {
            parameter.name: self.parameters.get(parameter.name, start(parameter)) for parameter in facts.parameters
        }
        return replace(self, per_model={**self.per_model, **per_model}, parameters={**self.parameters, **parameters})

    def without_defaults(self, facts: MethodFacts) -> Draft:
        """The same without the values that a method starts with on the page."""
        alone = {p.name for p in facts.tensor_parameters if set(self.per_model.get(p.name, ())) == {start(p)}}
        common = {p.name for p in facts.parameters if self.parameters.get(p.name) == start(p)}
        return replace(
            self,
            per_model={name: values for name, values in self.per_model.items() if name not in alone},
            parameters={name: value for name, value in self.parameters.items() if name not in common},
        )

    def mixed(self, facts: MethodFacts) -> tuple[int, ...]:
        """Places of the models that the method mixes."""
        return tuple(range(len(self.models))) if facts.base == "reads_first" else self.experts

    def fits(self, facts: MethodFacts) -> bool:
        """Whether the method takes that many models."""
        return facts.min_models <= len(self.mixed(facts)) <= (facts.max_models or MAX_MODELS)

    def to_recipe(self, facts: MethodFacts) -> Recipe:
        """The recipe this draft means.

        Raises:
            RecipeError: settings that contradict each other; all of them together.
            UserError: there is nothing but a base.
        """
        if self.models and not self.experts:
            raise UserError(text.ONLY_BASE, hint=text.ONLY_BASE_HINT)
        if self.models and not self.fits(facts) and (facts.base != "required" or self.base is not None):
            told, remedy = text.wrong_count(facts, len(self.mixed(facts)), self.base is not None)
            raise UserError(told, hint=remedy)
        full = self.settings(facts)
        base = None if self.base is None else self.models[self.base]
        models = [
            (self.models[place], _said((p, full.per_model[p.name][place]) for p in facts.tensor_parameters))
            for place in self.mixed(facts)
        ]
        parameters = _said((p, full.parameters[p.name]) for p in facts.parameters)
        return Recipe.build(self.method, models, base=base, parameters=parameters, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the browser's storage."""
        return {
            "version": 1,
            "models": list(self.models),
            "base": self.base,
            "method": self.method,
            "per_model": {name: list(values) for name, values in self.per_model.items()},
            "parameters": dict(self.parameters),
            "dtype": self.dtype,
            "pinned": self.pinned,
        }

    @classmethod
    def from_json(cls, data: Any) -> Draft | None:
        """A draft from the browser's storage; None when it is not one of ours."""
        if not isinstance(data, dict) or data.get("version") != 1:
            return None
        try:
            models = tuple(str(model) for model in data["models"])[:MAX_MODELS]
            base = data["base"] if isinstance(data["base"], int) and 0 <= data["base"] < len(models) else None
            per_model = {
                str(name): tuple(value for value in values if isinstance(value, (bool, int, float)))[: len(models)]
                for name, values in data["per_model"].items()
            }
            parameters = {
                str(name): value for name, value in data["parameters"].items() if isinstance(value, (bool, int, float))
            }
            dtype = data["dtype"] if isinstance(data["dtype"], str) else None
            pinned = data["pinned"] if isinstance(data["pinned"], str) else None
            return cls(models, base, str(data["method"]), per_model, parameters, dtype, pinned)
        except (KeyError, TypeError, AttributeError):
            return None


def start(parameter: ConfigParameterDef) -> Value:
    """Where a control starts: methods that can drop changes do so, or they would look like plain task arithmetic."""
    return START_DENSITY if parameter.name == "density" and parameter.default_value == 1 else default(parameter)


def default(parameter: ConfigParameterDef) -> Value:
    """What a recipe means that does not set it: the method's default, the middle of closed bounds, or one.

    A ``t`` without an end is a distance between values, where one would be everything.
    """
    if parameter.default_value is not None:
        value: Value = parameter.default_value
        return value
    if parameter.type is bool:
        return False
    if parameter.minimum is not None and parameter.maximum is not None:
        return (parameter.minimum + parameter.maximum) / 2
    return START_DISTANCE if parameter.name == "t" else 1


def _said(settings: Iterable[tuple[ConfigParameterDef, Value]]) -> dict[str, Value]:
    """What a recipe has to say: required values, and those that are not the default."""
    return {p.name: value for p, value in settings if p.required or value != p.default_value}


def portable_path(path: str | os.PathLike[str]) -> str:
    """A path as short as it can be said: relative when it lies below the current folder."""
    absolute, here = os.path.abspath(path), os.getcwd()
    return os.path.relpath(absolute, here) if absolute.startswith(here + os.sep) else absolute


def _padded(values: Sequence[Value], count: int, filler: Value) -> tuple[Value, ...]:
    return (*values[:count], *[filler] * (count - len(values)))
