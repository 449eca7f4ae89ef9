"""From the options of ``merge`` to a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from merger.cli.command import SETTINGS, UsageError
from merger.cli.report import counted
from merger.errors import RecipeError, did_you_mean
from merger.methods import registry
from merger.methods.base import MethodFacts
from merger.recipe import ModelEntry, Recipe, Setting
from merger.settings import coerce
from merger.types import ConfigParameterDef, ModelReference

Value = bool | int | float | str
DEFAULTS: Mapping[str, Mapping[str, Sequence[str]]] = {"slerp": {"t": ["0.5"]}}
"""What the command line takes where a method itself insists on a value."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        models: names of the models.
        base: name of the base model.
        settings: parameters as written: one value, or one per model.
        seed: seed of random methods.
        dtype, out_dtype: dtype of the result.
    """

    models: Sequence[str]
    base: str | None = None
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seed: int = 0
    dtype: str | None = None
    out_dtype: str | None = None


def build_recipe(method: MethodFacts, request: Request) -> Recipe:
    """The recipe of one merge.

    Weights are divided by their sum (equal when none are given), except those of methods whose own
    default says what a weight is. A method of two models takes the first as its base, so that
    ``t = 0`` is the first and ``t = 1`` the second.

    Raises:
        UsageError: an option does not fit the method or the number of models.
    """
    models = [ModelReference.parse(name) for name in request.models]
    base = _base(method, models, request.base)
    first = 1 if base is not None and request.base is None else 0
    count = len(models) - first
    _check_count(method, count, base)
    globals_, per_model = ({p.name: p for p in defs} for defs in (method.parameters, method.tensor_parameters))
    settings = {**DEFAULTS.get(method.name, {}), **request.settings}
    if "weight" in per_model and per_model["weight"].required:
        weights = _weights(per_model["weight"], settings.get("weight", ["1"]), count)
        settings["weight"] = [repr(weight) for weight in weights]
    _check_required(method, settings)
    values: dict[str, list[Value]] = {}
    for name, written in settings.items():
        if name in per_model:
            values[name] = _per_model(per_model[name], written, count)
        elif name not in globals_:
            raise _useless(_option(name), method, _methods_with(name))
    columns: list[dict[str, Setting]] = [{} for _ in range(first)]
    columns += [{name: column[index] for name, column in values.items()} for index in range(count)]
    return Recipe(
        merge_method=method.name,
        models=tuple(ModelEntry(model, column) for model, column in zip(models, columns, strict=True)),
        base_model=base,
        parameters={name: _single(globals_[name], settings[name]) for name in settings if name in globals_},
        dtype=request.dtype,
        out_dtype=request.out_dtype,
        seed=request.seed,
    )


def takes_first_as_base(method: MethodFacts) -> bool:
    """Whether the method mixes exactly two models, the first of which is its base."""
    return method.base == "required" and method.max_models == 1


def _base(method: MethodFacts, models: Sequence[ModelReference], given: str | None) -> ModelReference | None:
    if given is None:
        if takes_first_as_base(method):
            if len(models) != 2:
                raise UsageError(f"{method.name} merges exactly two models; {len(models)} given.")
            return models[0]
        if method.base == "required":
            raise UsageError(
                f"{method.name} needs --base, the model that the others were fine-tuned from.",
                hint="Without a base, linear and slerp can merge them.",
            )
        return None
    if method.base == "none":
        users = [other.name for other in registry.describe_all() if other.base != "none"]
        raise _useless("--base", method, users)
    return ModelReference.parse(given)


def _check_count(method: MethodFacts, count: int, base: ModelReference | None) -> None:
    least, most = method.min_models, method.max_models
    besides = " besides the base" if base is not None else ""
    if count < least:
        raise UsageError(f"{method.name} needs at least {counted(least, 'model')}{besides}; {count} given.")
    if most is not None and count > most:
        hint = "Without --base the first of two models takes its place." if takes_first_as_base(method) else ""
        raise UsageError(f"{method.name} takes at most {counted(most, 'model')}{besides}; {count} given.", hint=hint)


def _check_required(method: MethodFacts, settings: Mapping[str, Sequence[str]]) -> None:
    for definition in (*method.tensor_parameters, *method.parameters):
        if definition.required and definition.name not in settings:
            raise UsageError(f"{method.name} needs {_option(definition.name)}.", hint=definition.help)


def _option(name: str) -> str:
    """How a parameter is given on the command line."""
    return f"--{name}" if name in SETTINGS else f"--set {name}"


def _useless(option: str, method: MethodFacts, users: Sequence[str]) -> UsageError:
    if users:
        return UsageError(f"{method.name} has no use for {option}.", hint=f"Methods that have: {', '.join(users)}.")
    known = [p.name for p in (*method.parameters, *method.tensor_parameters)]
    name = option.rsplit(maxsplit=1)[-1].lstrip("-")
    return UsageError(f"No merge method has a parameter {name}.", hint=did_you_mean(name, known))


def _methods_with(name: str) -> list[str]:
    return [
        method.name
        for method in registry.describe_all()
        if name in {p.name for p in (*method.parameters, *method.tensor_parameters)}
    ]


def _weights(parameter: ConfigParameterDef, written: Sequence[str], count: int) -> list[float]:
    """Weights divided by their sum.

    Raises:
        UsageError: their number does not fit or their sum is zero.
    """
    weights = [float(weight) for weight in _per_model(parameter, written, count)]
    total = math.fsum(weights)
    if abs(total) <= 1e-8 * math.fsum(map(abs, weights)):
        raise UsageError(
            f"--weight: the weights {', '.join(f'{w:g}' for w in weights)} add up to zero.",
            hint="They are divided by their sum; give weights with another sum, or write a recipe for 'run'.",
        )
    return [weight / total for weight in weights]


def _broadcast(name: str, written: Sequence[str], count: int) -> Sequence[str]:
    if len(written) == 1:
        return list(written) * count
    if len(written) != count:
        raise UsageError(f"{_option(name)}: {len(written)} values for {count} models.", hint=f"Give one, or {count}.")
    return written


def _per_model(parameter: ConfigParameterDef, written: Sequence[str], count: int) -> list[Value]:
    return [_value(parameter, text) for text in _broadcast(parameter.name, written, count)]


def _single(parameter: ConfigParameterDef, written: Sequence[str]) -> Value:
    if len(written) != 1:
        raise UsageError(f"{_option(parameter.name)}: {len(written)} values given; it is one value for all models.")
    return _value(parameter, written[0])


def _value(parameter: ConfigParameterDef, text: str) -> Value:
    """A value as the parameter's type reads it, within its bounds."""
    try:
        return coerce({"true": True, "false": False}.get(text.lower(), text), parameter)
    except RecipeError as error:
        problem = error.problems[0]
        raise UsageError(problem.message, where=_option(parameter.name), hint=problem.hint) from None
