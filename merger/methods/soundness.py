"""Whether a merge method describes itself well enough to be used; asked when it is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from merger.errors import MethodError, foreign_code
from merger.methods.base import BaseUse, MergeMethod, PreviewKind, value_problem
from merger.types import ConfigParameterDef

KINDS = (float, int, bool, str)


def require_sound(method: MergeMethod) -> None:
    """Insist that a method's name, parameters and numbers of models make sense.

    Raises:
        MethodError: what does not, by the names of the method and the parameter.
    """
    with foreign_code(f"the merge method {type(method).__name__}"):
        name, shared, own = method.name(), method.parameters(), method.tensor_parameters()
    if not isinstance(name, str) or not name or name != name.strip():
        raise MethodError(f"'{name}' cannot be the name of a merge method.", where=type(method).__name__)
    for problem in [*_parameter_problems([*_listed(shared, name), *_listed(own, name)]), *_other_problems(method)]:
        raise MethodError(f"{problem}.", where=f"merge method '{name}'")


def _listed(definitions: Any, method: str) -> list[ConfigParameterDef]:
    is_list = isinstance(definitions, (list, tuple))
    if not is_list or not all(isinstance(definition, ConfigParameterDef) for definition in definitions):
        raise MethodError(f"the parameters of merge method '{method}' must be a list of ConfigParameterDef.")
    return list(definitions)


def _parameter_problems(definitions: list[ConfigParameterDef]) -> Iterator[str]:
    for definition in definitions:
        name = definition.name
        if not isinstance(name, str) or not name.isidentifier():
            yield f"{name!r} cannot be the name of a parameter; use letters, digits and underscores"
        elif definition.type not in KINDS:
            yield f"the parameter '{name}' is of the type {definition.type!r}; it must be float, int, bool or str"
        else:
            yield from _value_problems(definition)
    for name, count in Counter(definition.name for definition in definitions).items():
        if count > 1:
            yield f"the parameter '{name}' is defined twice"


def _value_problems(definition: ConfigParameterDef) -> Iterator[str]:
    name, low, high = definition.name, definition.minimum, definition.maximum
    bounds = [bound for bound in (low, high) if bound is not None]
    if not all(isinstance(bound, (int, float)) for bound in bounds) or (bounds and definition.type in (bool, str)):
        yield f"the parameter '{name}' has bounds that are no bounds of numbers"
    elif low is not None and high is not None and low > high:
        yield f"the parameter '{name}' has a minimum above its maximum"
    elif definition.default_value is not None and (
        problem := value_problem(definition, definition.default_value, f"the default of '{name}'")
    ):
        yield problem


def _other_problems(method: MergeMethod) -> Iterator[str]:
    for word, known in (("base", get_args(BaseUse)), ("preview", get_args(PreviewKind))):
        if getattr(method, word) not in known:
            yield f"'{word}' is {getattr(method, word)!r}; it must be one of {', '.join(known)}"
    if not isinstance(method.aliases, (tuple, list)) or not all(isinstance(alias, str) for alias in method.aliases):
        yield f"'aliases' is {method.aliases!r}; it must be a tuple of names"
    low, high = method.min_models, method.max_models
    if not _is_count(low) or (high is not None and (not _is_count(high) or high < low)):
        yield f"it takes from {low!r} to {high!r} models; both must be whole numbers from 1 up, in order"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
