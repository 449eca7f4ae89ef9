"""Reading a merge function's signature: it is the method's specification."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union

from merger.errors import MethodError
from merger.types import ConfigParameterDef, ModelReference, WeightInfo

SPECIAL = ("tensors", "base_tensor", "output_weight", "base_model", "measured", "noise")
"""Arguments that are filled in by name and are no parameters."""

UNCHECKED = ("measured", "noise")
"""Those of them that may be annotated with anything."""


class TensorStandIn:
    """What annotations mean by ``Tensor`` where a signature is read without importing torch."""


def _is_tensor(hint: Any) -> bool:
    torch = sys.modules.get("torch")
    return hint is TensorStandIn or (torch is not None and hint is torch.Tensor)


UNDERSTOOD = "Parameters are bool, int or float, or List[float] or List[int] for one value per model."

SPECIAL_KINDS = {
    "tensors": "It must be List[Tensor].",
    "base_tensor": "It must be Tensor.",
    "output_weight": "It must be WeightInfo.",
    "base_model": "It must be ModelReference.",
}


@dataclass(frozen=True)
class Between:
    """Inclusive bounds of a parameter, written ``Annotated[float, Between(0, 1)]``.

    Attributes:
        minimum, maximum: the bounds; None for none.
    """

    minimum: float | None = None
    maximum: float | None = None


def each(default: float) -> Any:
    """The default of a per-model parameter: one number, which every model gets.

    The same as the number itself, which type checkers do not accept for a list.
    """
    return default


@dataclass(frozen=True)
class Argument:
    """One parameter as the function calls it and as recipes do.

    Attributes:
        name: the function's name for it; a trailing underscore is dropped in recipes.
        definition: what recipes, help and sliders show.
    """

    name: str
    definition: ConfigParameterDef


@dataclass(frozen=True)
class Signature:
    """What a merge function asks for.

    Attributes:
        base: ``required``, ``optional``, or ``reads_first`` for a function without ``base_tensor``.
        parameters: arguments with one value for all models.
        tensor_parameters: arguments that are lists with one value for each model.
        special: those of `SPECIAL` that it has.
    """

    base: typing.Literal["required", "optional", "reads_first"]
    parameters: tuple[Argument, ...]
    tensor_parameters: tuple[Argument, ...]
    special: frozenset[str]


def read_signature(function: Callable[..., Any], method: str) -> Signature:
    """Understand a merge function's arguments.

    Args:
        function: the decorated function.
        method: the method's name, for messages.

    Raises:
        MethodError: an argument that cannot be filled in, by its name.
    """
    reader = _Reader(function, method)
    arguments = inspect.signature(function).parameters
    if "tensors" not in arguments:
        raise reader.refusal("tensors", "is missing.", "The first argument is tensors: List[Tensor].")
    hints = {name: reader.annotation(argument) for name, argument in arguments.items()}
    special = frozenset(arguments) & frozenset(SPECIAL)
    for name in special:
        reader.check_special(name, hints[name])
    found = [reader.parameter(arguments[name], hints[name]) for name in arguments if name not in special]
    reader.check_names([argument for argument, _ in found])
    reader.check_result(inspect.signature(function).return_annotation)
    return Signature(
        base=_base_use(arguments.get("base_tensor"), hints.get("base_tensor")),
        parameters=tuple(argument for argument, per_model in found if not per_model),
        tensor_parameters=tuple(argument for argument, per_model in found if per_model),
        special=special,
    )


def _base_use(argument: inspect.Parameter | None, hint: Any) -> typing.Literal["required", "optional", "reads_first"]:
    if argument is None:
        return "reads_first"
    return "optional" if argument.default is None or _without_none(hint) is not hint else "required"


class _Reader:
    """Turns one function's arguments into parameters, or says why it cannot."""

    def __init__(self, function: Callable[..., Any], method: str) -> None:
        self.function, self.method = function, method
        self.help = argument_help(function)

    def refusal(self, argument: str, problem: str, hint: str = "") -> MethodError:
        return MethodError(f"the argument '{argument}' {problem}", where=f"merge method '{self.method}'", hint=hint)

    def annotation(self, argument: inspect.Parameter) -> Any:
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise self.refusal(argument.name, "cannot be given by name.", "Use neither '/', *args nor **kwargs.")
        if argument.annotation is argument.empty:
            if argument.name in UNCHECKED:
                return Any
            raise self.refusal(argument.name, "has no annotation.", SPECIAL_KINDS.get(argument.name, UNDERSTOOD))
        return self._meaning(argument.name, argument.annotation)

    def _meaning(self, name: str, annotation: Any) -> Any:
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        names = {**self.function.__globals__, **inspect.getclosurevars(self.function).nonlocals}
        try:
            return typing.get_type_hints(holder, globalns=names, include_extras=True)[name]
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise self.refusal(
                name, f"has an annotation that means nothing here: {error}.", "Import its names in the module."
            ) from error

    def check_result(self, annotation: Any) -> None:
        """Insist that a function says of its result, if anything, that it is a tensor."""
        if annotation is inspect.Signature.empty:
            return
        hint = self._meaning("return", annotation)
        if hint is not Any and not _is_tensor(hint):
            raise MethodError(
                f"the result is annotated {_shown(hint)}.",
                where=f"merge method '{self.method}'",
                hint="It must be Tensor.",
            )

    def check_special(self, name: str, hint: Any) -> None:
        plain = _without_none(hint)
        expected = {"output_weight": WeightInfo, "base_model": ModelReference}
        if name == "tensors" and not (_is_list(plain) and all(map(_is_tensor, typing.get_args(plain) or [None]))):
            raise self.refusal(name, f"is annotated {_shown(hint)}.", SPECIAL_KINDS[name])
        if name == "base_tensor" and not _is_tensor(plain):
            raise self.refusal(name, f"is annotated {_shown(hint)}.", SPECIAL_KINDS[name])
        if name in expected and plain is not expected[name]:
            raise self.refusal(name, f"is annotated {_shown(hint)}.", SPECIAL_KINDS[name])

    def parameter(self, argument: inspect.Parameter, hint: Any) -> tuple[Argument, bool]:
        """The parameter, and whether it has one value for each model."""
        plain, outer = _bounds_of(hint)
        per_model = _is_list(plain)
        kind, inner = _bounds_of(typing.get_args(plain)[0] if per_model and typing.get_args(plain) else plain)
        if kind not in ((float, int) if per_model else (float, int, bool)):
            raise self.refusal(argument.name, f"is annotated {_shown(hint)}, which is not understood.", UNDERSTOOD)
        bounds = outer or inner or Between()
        is_required = argument.default is argument.empty
        definition = ConfigParameterDef(
            name=argument.name.rstrip("_"),
            type=kind,
            required=is_required,
            default_value=None if is_required else self._default(argument, kind, bounds),
            minimum=bounds.minimum,
            maximum=bounds.maximum,
            help=self.help.get(argument.name, ""),
        )
        return Argument(argument.name, definition), per_model

    def _default(self, argument: inspect.Parameter, kind: type, bounds: Between) -> Any:
        default = argument.default
        allowed = {float: (int, float), int: (int,), bool: (bool,)}[kind]
        if not isinstance(default, allowed) or (isinstance(default, bool) and kind is not bool):
            wanted = "true or false" if kind is bool else "a single number, which every model gets"
            raise self.refusal(argument.name, f"has the default {default!r}.", f"Its default must be {wanted}.")
        low, high = bounds.minimum, bounds.maximum
        if (low is not None and default < low) or (high is not None and default > high):
            raise self.refusal(argument.name, f"has the default {default!r}, which is out of its own bounds.")
        return kind(default)

    def check_names(self, arguments: Sequence[Argument]) -> None:
        seen: set[str] = set()
        for argument in arguments:
            if argument.definition.name in seen or argument.definition.name in SPECIAL:
                raise self.refusal(argument.name, f"has the name '{argument.definition.name}' in recipes, as another.")
            seen.add(argument.definition.name)


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _without_none(hint: Any) -> Any:
    """The one type in ``Optional[...]``; other annotations as they are."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        others = [part for part in typing.get_args(hint) if part is not type(None)]
        return others[0] if len(others) == 1 else hint
    return hint


def _bounds_of(hint: Any) -> tuple[Any, Between | None]:
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    plain, *notes = typing.get_args(hint)
    return plain, next((note for note in notes if isinstance(note, Between)), None)


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def summary_of(text: str) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    match = re.match(r".*?[.!?](?=\s|$)", paragraph)
    return match.group() if match else paragraph


def argument_help(function: Callable[..., Any]) -> Mapping[str, str]:
    """What the docstring's ``Args`` section says of each argument."""
    found: dict[str, str] = {}
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", inspect.getdoc(function) or "", re.MULTILINE)
    if section is None:
        return found
    lines = inspect.cleandoc("\n" + section.group(1)).splitlines()
    name = ""
    for line in lines:
        match = re.match(r"(\w+)(?: \([^)]*\))?:\s*(.*)", line)
        if match:
            name = match.group(1)
            found[name] = match.group(2)
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
