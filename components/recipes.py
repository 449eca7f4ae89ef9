"""From a recipe in YAML to a draft: shown by the controls where they can, else kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import merger
from components.draft import MAX_MODELS, Draft, default
from merger import UserError

if TYPE_CHECKING:
    from merger import ConfigParameterDef, MethodFacts, Recipe


def recipe_of(yaml: str) -> Recipe:
    """The recipe of a text.

    Raises:
        RecipeError: with everything that is wrong with it.
    """
    return merger.load_recipe(f"{yaml.strip()}\n\n")  # with a line break it is text, never a file name


def draft_of(yaml: str, methods: Mapping[str, MethodFacts]) -> Draft:
    """The draft that shows a recipe; pinned when the recipe says more than the controls can.

    Raises:
        RecipeError: with everything that is wrong with the text.
        UserError: it names more models than the page holds.
    """
    recipe = recipe_of(yaml)
    references = recipe.all_models()
    if len(references) > MAX_MODELS:
        raise UserError(f"The recipe names {len(references)} models.", hint=f"The page holds {MAX_MODELS}.")
    models = tuple(map(str, references))
    base = references.index(recipe.base_model) if recipe.base_model is not None else None
    facts = methods[recipe.merge_method]
    if not _fits(recipe, facts):
        return Draft(models, base, recipe.merge_method, pinned=yaml.strip())
    entries = {str(entry.model): entry.parameters for entry in recipe.models}
    per_model = {
        p.name: tuple(_value(p, entries.get(model, {}), recipe.parameters) for model in models)
        for p in facts.tensor_parameters
    }
    parameters = {p.name: _value(p, recipe.parameters) for p in facts.parameters}
    return Draft(models, base, recipe.merge_method, per_model, parameters, recipe.dtype)


def _fits(recipe: Recipe, facts: MethodFacts) -> bool:
    """Whether the controls can say all of it: whole models, each once, and one number per setting."""
    listed = [entry.model for entry in recipe.models]
    settings = [recipe.parameters, *(entry.parameters for entry in recipe.models)]
    odd = (
        recipe.slices,
        recipe.out_dtype,
        recipe.seed,
        recipe.tokenizer,
        recipe.tokenizer_source,
        recipe.chat_template,
    )
    return (
        not any(odd)
        and len(set(listed)) == len(listed)
        and (recipe.base_model in listed) == (recipe.base_model is not None and facts.base == "reads_first")
        and all(isinstance(value, (bool, int, float)) for group in settings for value in group.values())
    )


def _value(parameter: ConfigParameterDef, *levels: Mapping[str, Any]) -> Any:
    return next((level[parameter.name] for level in levels if parameter.name in level), default(parameter))
