"""The values of a method's parameters for one output tensor, from every level of the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from merger.errors import RecipeError
from merger.matching import Match, Source
from merger.methods.base import MergeMethod, Parameters
from merger.outputs import Findings
from merger.recipe import Recipe, Setting
from merger.settings import MISSING, value_of
from merger.types import ConfigParameterDef, ImmutableMap, ModelReference


@dataclass(frozen=True)
class Resolved:
    """What a method is given for one tensor.

    Attributes:
        shared: one value for all models, by parameter.
        per_model: values by parameter, by model.
    """

    shared: Parameters
    per_model: ImmutableMap[ModelReference, Parameters]


def resolve_parameters(
    recipe: Recipe, match: Match, method: MergeMethod, inputs: Sequence[Source], findings: Findings
) -> Resolved | None:
    """All parameters of one tensor, or None when a value is missing or wrong, which ``findings`` then tells."""
    levels = [match.slice_parameters, recipe.parameters]
    shared = _values(method, method.parameters(), levels, match.name, match.relative_depth, findings, "the recipe")
    per_model: dict[ModelReference, Parameters | None] = {}
    for source in inputs:
        own = [source.entry.parameters, *levels] if source.entry else levels
        name = source.spec.name if source.spec else match.name
        definitions, owner = method.tensor_parameters(), str(source.model)
        per_model[source.model] = _values(method, definitions, own, name, match.relative_depth, findings, owner)
    complete = {model: values for model, values in per_model.items() if values is not None}
    return Resolved(shared, ImmutableMap(complete)) if shared is not None and len(complete) == len(per_model) else None


def _values(
    method: MergeMethod,
    definitions: Sequence[ConfigParameterDef],
    levels: Sequence[Mapping[str, Setting]],
    tensor: str,
    depth: float,
    findings: Findings,
    owner: str,
) -> Parameters | None:
    values: dict[str, Any] = {}
    for definition in definitions:
        try:
            value = value_of(definition, levels, tensor, depth)
        except RecipeError as error:
            findings.tensor("error", tensor, f"{owner}: {error.problems[0].message}", error.problems[0].hint)
            return None
        if value is MISSING:
            findings.tensor(
                "error",
                tensor,
                f"{owner} gives no value for '{definition.name}' that applies",
                f"Add '{definition.name}' to its parameters; {method.name()} needs it.",
            )
            return None
        values[definition.name] = value
    return ImmutableMap(values)
