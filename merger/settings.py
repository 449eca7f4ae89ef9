"""From the settings of a recipe to the value of one parameter for one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal

from merger.errors import RecipeError
from merger.methods.base import coerced, value_problem
from merger.recipe import Setting, has_filters, is_gradient
from merger.types import ConfigParameterDef

Scalar = bool | int | float | str


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "no value"


MISSING: Final = Missing.MISSING
"""No level gives a value that applies."""


def relative_depth(layer: int | None, layers: int) -> float:
    """Where a layer stands in a gradient, in [0, 1].

    Args:
        layer: index inside the model or the slice; None outside of all layers, which counts as 0.
        layers: how many layers there are; the only one stands at 1.
    """
    if layer is None:
        return 0.0
    return layer / (layers - 1) if layers > 1 else 1.0


def interpolate(gradient: Sequence[float], position: float) -> float:
    """The value of a gradient whose numbers are spread evenly over [0, 1]."""
    place = position * (len(gradient) - 1)
    left = min(max(int(place), 0), len(gradient) - 1)
    right = min(left + 1, len(gradient) - 1)
    share = place - left
    return (1 - share) * gradient[left] + share * gradient[right]


def resolve(
    levels: Sequence[Mapping[str, Setting]], name: str, tensor_name: str, position: float
) -> Scalar | Literal[Missing.MISSING]:
    """The value of a parameter for one tensor.

    Args:
        levels: settings, the most specific first: model or source of a slice, slice, whole recipe.
        name: the parameter.
        tensor_name: what filters are matched with.
        position: relative depth for gradients, as `relative_depth` gives it.

    Returns:
        The first value that applies: a level whose filters do not match is passed over.
        `MISSING` when there is none.
    """
    for level in levels:
        setting = level.get(name, MISSING)
        found = _of_setting(setting, tensor_name, position) if setting is not MISSING else MISSING
        if found is not MISSING:
            return found
    return MISSING


def _of_setting(setting: Setting, tensor_name: str, position: float) -> Scalar | Literal[Missing.MISSING]:
    if has_filters(setting):
        line = next((line for line in setting if line.matches(tensor_name)), None)
        return MISSING if line is None else _of_setting(line.value, tensor_name, position)
    if is_gradient(setting):
        return interpolate(setting, position)
    assert not isinstance(setting, tuple)
    return setting


def value_of(
    definition: ConfigParameterDef, levels: Sequence[Mapping[str, Setting]], tensor_name: str, position: float
) -> Any:
    """The checked value of a parameter: what `resolve` finds, else the default.

    Returns:
        A value of the parameter's type inside its bounds; `MISSING` for a required parameter
        that no level gives.

    Raises:
        RecipeError: the recipe's value is of another type or out of bounds.
    """
    found = resolve(levels, definition.name, tensor_name, position)
    if found is not MISSING:
        return coerce(found, definition)
    return MISSING if definition.required else definition.default_value


def coerce(value: Scalar, definition: ConfigParameterDef) -> Scalar:
    """A recipe's value as the type that the method declares.

    Whole floats pass as integers, 0 and 1 as false and true, quoted numbers as numbers; nothing else changes type.

    Raises:
        RecipeError: the value is of another type, not finite, or out of bounds.
    """
    if definition.type is str:
        return str(value)
    value = _unquoted(value)
    problem = value_problem(definition, value, definition.name)
    if problem is not None:
        raise RecipeError(f"{problem}.", hint=definition.help)
    found: Scalar = coerced(value, definition.type)
    return found


def _unquoted(value: Scalar) -> Scalar:
    """The number that a text holds, or the value as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
