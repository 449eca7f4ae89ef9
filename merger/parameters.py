"""The values of a method's parameters for one output tensor, from every level of the recipe."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from merger.errors import RecipeError
from merger.matching import Match, Source
from merger.methods.base import MergeMethod, Parameters
from merger.outputs import Findings
from merger.recipe import Recipe, Setting, has_filters, is_gradient
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


@dataclass
class _Outcome:
    """What tensors alike are given: the values, or why there are none (message and hint)."""

    resolved: Resolved | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)


class ParameterResolver:
    """Resolves parameters tensor by tensor; tensors that the recipe does not tell apart share one result.

    A recipe tells tensors apart by the filters that their names match, by their depth where it
    has gradients, by the slice, and by the models that have them.  So a model of experts has as many
    different results as layers and filters, not as tensors.

    Args:
        recipe: what to merge.
        findings: told of missing and wrong values.
    """

    def __init__(self, recipe: Recipe, findings: Findings) -> None:
        self._recipe, self._findings = recipe, findings
        levels = [recipe.parameters, *(part.parameters for part in recipe.slices)]
        levels += [entry.parameters for entry in recipe.entries()]
        settings = [setting for level in levels for setting in level.values()]
        lines = [line for setting in settings if has_filters(setting) for line in setting]
        self._filters = tuple(dict.fromkeys(line.filter for line in lines if line.filter and not line.is_fallback))
        self._has_gradients = any(map(is_gradient, [*settings, *(line.value for line in lines)]))
        self._outcomes: dict[Hashable, _Outcome] = {}
        self._maps: dict[Hashable, Parameters] = {}

    def resolve(self, match: Match, method: MergeMethod, inputs: Sequence[Source]) -> Resolved | None:
        """All parameters of one tensor; None when a value is missing or wrong, which the findings then tell."""
        key = self._key(match, method, inputs)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._outcome(match, method, inputs)
        for message, hint in outcome.problems:
            self._findings.tensor("error", match.name, message, hint)
        return outcome.resolved

    def _key(self, match: Match, method: MergeMethod, inputs: Sequence[Source]) -> Hashable:
        """Equal for tensors that the recipe does not tell apart.  Entries and slices live as long as the recipe."""
        matched = self._matched(match.name)
        sources = [
            (id(source.entry), source.model)
            if source.spec is None or source.spec.name == match.name
            else (id(source.entry), source.model, self._matched(source.filter_name(match.name)))
            for source in inputs
        ]
        place = id(match.slice_parameters) if match.slice_parameters else 0
        depth = match.relative_depth if self._has_gradients else 0.0
        return method.name(), place, depth, matched, tuple(sources)

    def _matched(self, name: str) -> tuple[str, ...]:
        return tuple([text for text in self._filters if text in name])

    def _outcome(self, match: Match, method: MergeMethod, inputs: Sequence[Source]) -> _Outcome:
        levels = [match.slice_parameters, self._recipe.parameters]
        depth, outcome = match.relative_depth, _Outcome()
        shared = self._values(method, method.parameters(), levels, match.name, depth, outcome, "the recipe")
        definitions = method.tensor_parameters()
        per_model: dict[ModelReference, Parameters] = {}
        for source in inputs:
            own = [source.entry.parameters, *levels] if source.entry else levels
            name = source.filter_name(match.name)
            is_needed = method.needs_base_values or source.position is not None
            chosen = definitions if is_needed else _optional(definitions)
            per_model[source.model] = self._values(method, chosen, own, name, depth, outcome, str(source.model))
        if not outcome.problems:
            outcome.resolved = Resolved(shared, ImmutableMap(per_model))
        return outcome

    def _values(
        self,
        method: MergeMethod,
        definitions: Sequence[ConfigParameterDef],
        levels: Sequence[Mapping[str, Setting]],
        tensor: str,
        depth: float,
        outcome: _Outcome,
        owner: str,
    ) -> Parameters:
        values: dict[str, Any] = {}
        for definition in definitions:
            try:
                value = value_of(definition, levels, tensor, depth)
            except RecipeError as error:
                outcome.problems.append((f"{owner}: {error.problems[0].message}", error.problems[0].hint))
                break
            if value is MISSING:
                hint = f"Add '{definition.name}' to its parameters; {method.name()} needs it."
                outcome.problems.append((f"{owner} gives no value for '{definition.name}' that applies", hint))
                break
            values[definition.name] = value
        # Equal maps become one, so that everything behind can compare and remember them by identity.
        found: Parameters = ImmutableMap(values)
        return self._maps.setdefault((found, *map(type, values.values())), found)


def _optional(definitions: Sequence[ConfigParameterDef]) -> list[ConfigParameterDef]:
    return [replace(definition, required=False) for definition in definitions]
