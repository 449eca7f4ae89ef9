"""What can be said of a recipe before its models are opened: base, number of models, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from merger.errors import Problem, RecipeError
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.plan import recipe_problems
from merger.recipe import ModelEntry, Recipe, Setting, has_filters
from merger.settings import MISSING, coerce, value_of
from merger.types import ConfigParameterDef, ImmutableMap, TensorContext, WeightInfo

Levels = Sequence[Mapping[str, Setting]]

DEPTHS = (0.0, 0.5, 1.0)
"""Where values are looked at together; every single value is checked everywhere."""


@dataclass(frozen=True)
class Group:
    """Models that are merged with each other: those of the recipe, or of one slice.

    Attributes:
        entries: the models without the base.
        shared: settings for all of them, the most specific first.
    """

    entries: Sequence[ModelEntry]
    shared: Levels

    def depends_on_names(self) -> bool:
        """Whether some value depends on a tensor's name."""
        levels = [*self.shared, *(entry.parameters for entry in self.entries)]
        return any(has_filters(value) for level in levels for value in level.values())


def problems_without_models(recipe: Recipe) -> list[Problem]:
    """Everything that is wrong with a recipe as far as its text tells."""
    method = registry.get(recipe.merge_method)
    found = [*recipe_problems(recipe, method)]
    settings = [*_wrong_values(recipe, method), *_missing_values(recipe, method)]
    if not settings and not any(problem.level == "error" for problem in found):
        settings = [problem for group in _groups(recipe, method) for problem in _method_problems(method, group)]
    return list(dict.fromkeys([*found, *settings]))


def _groups(recipe: Recipe, method: MergeMethod) -> Iterator[Group]:
    parts: list[tuple[Sequence[ModelEntry], Levels]] = [
        (part.sources, (part.parameters, recipe.parameters)) for part in recipe.slices
    ]
    for entries, shared in parts or [(recipe.models, (recipe.parameters,))]:
        is_merged = method.base in ("none", "reads_first")
        yield Group([entry for entry in entries if is_merged or entry.model != recipe.base_model], shared)


def _wrong_values(recipe: Recipe, method: MergeMethod) -> Iterator[Problem]:
    """Values of another type or out of bounds."""
    own = method.tensor_parameters()
    levels = [(level, [*own, *method.parameters()], "parameters") for level in _shared_levels(recipe)]
    levels += [(entry.parameters, own, str(entry.model)) for entry in recipe.entries()]
    for level, definitions, where in levels:
        for definition in definitions:
            for value in _scalars(level[definition.name]) if definition.name in level else ():
                try:
                    coerce(value, definition)
                except RecipeError as error:
                    yield from (Problem(problem.message, where, problem.hint) for problem in error.problems)


def _shared_levels(recipe: Recipe) -> Levels:
    return [recipe.parameters, *(part.parameters for part in recipe.slices)]


def _scalars(setting: Setting) -> Iterator[bool | int | float | str]:
    """Every single value in a setting: of a gradient all, of lines with filters each line's."""
    if not isinstance(setting, tuple):
        yield setting
        return
    for part in setting:
        yield from (part,) if isinstance(part, (int, float)) else _scalars(part.value)


def _missing_values(recipe: Recipe, method: MergeMethod) -> Iterator[Problem]:
    """Required parameters that no level gives."""
    hint = f"Add '{{}}' to its parameters; {method.name()} needs it."
    for group in _groups(recipe, method):
        for definition in method.parameters():
            if _lacks(group.shared, definition):
                message = f"the recipe gives no value for '{definition.name}'"
                yield Problem(message, hint=hint.format(definition.name))
        for definition in method.tensor_parameters():
            for entry in group.entries:
                if _lacks([entry.parameters, *group.shared], definition):
                    message = f"{entry.model} gives no value for '{definition.name}'"
                    yield Problem(message, hint=hint.format(definition.name))


def _lacks(levels: Levels, definition: ConfigParameterDef) -> bool:
    return definition.required and not any(definition.name in level for level in levels)


def _method_problems(method: MergeMethod, group: Group) -> Iterator[Problem]:
    """What the method itself says of values that belong together, such as weights whose sum is zero."""
    if group.depends_on_names():
        return
    for depth in DEPTHS:
        values = [
            _values(method.tensor_parameters(), [entry.parameters, *group.shared], depth) for entry in group.entries
        ]
        context = TensorContext(
            output_weight=WeightInfo(""),
            shape=(1,),
            parameters=_values(method.parameters(), group.shared, depth),
            tensor_parameters=tuple(values),
            models=tuple(entry.model for entry in group.entries),
        )
        yield from method.check(context)


def _values(definitions: Sequence[ConfigParameterDef], levels: Levels, depth: float) -> ImmutableMap[str, object]:
    found = {definition.name: value_of(definition, levels, "", depth) for definition in definitions}
    return ImmutableMap({name: value for name, value in found.items() if value is not MISSING})
