"""Reading a recipe file, and finding the models that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from merger.api import load_recipe
from merger.cli.command import UsageError
from merger.cli.report import say
from merger.errors import nearest, printable
from merger.portable import rename_models
from merger.recipe import Recipe
from merger.series import load_recipes
from merger.sidefiles import RECIPE_FILE
from merger.types import ModelReference


def read_recipe(
    name: str, *, lenient: bool = False, quiet: bool = False, models_dir: str | None = None, find: bool = True
) -> Recipe:
    """The one recipe in a file; see `read_recipes`."""
    path = _recipe_file(Path(os.path.expanduser(name)))
    return _located([load_recipe(path, lenient=lenient)], path, quiet, models_dir, find)[0]


def read_recipes(
    name: str, *, lenient: bool = False, quiet: bool = False, models_dir: str | None = None, find: bool = True
) -> tuple[Recipe, ...]:
    """The recipes in a file, or in the folder of an earlier merge.

    A model written as ``./name`` that is not in the current folder is looked for in ``models_dir``,
    beside the recipe and one folder above it, where a merged model's parents usually lie.

    Args:
        name: the file or folder.
        lenient: whether unknown keys, methods and parameters are only warned of.
        quiet: whether to keep to oneself where models were found.
        models_dir: where models lie that are written as ``./name``.
        find: whether those models must be somewhere.

    Raises:
        UsageError: there is no such file, or a model written as ``./name`` is nowhere.
        RecipeError: with everything that is wrong in it.
    """
    path = _recipe_file(Path(os.path.expanduser(name)))
    return _located(load_recipes(path, lenient=lenient), path, quiet, models_dir, find)


def _located(
    recipes: Sequence[Recipe], path: Path, quiet: bool, models_dir: str | None, find: bool
) -> tuple[Recipe, ...]:
    """The recipes with every model written as ``./name`` replaced by its place."""
    folder = path.absolute().parent
    searched = [*([models_dir] if models_dir else []), os.fspath(folder), os.fspath(folder.parent)]
    places = {model: _place(model, searched) for recipe in recipes for model in recipe.all_models()}
    if find:
        _require_found(places, searched)
    for model, place in places.items():
        if place is not None and not quiet:
            say(f"note: {printable(str(model))} is {printable(str(place))}.")
    return tuple(
        rename_models(recipe, lambda model: replace(model, path=places.get(model) or model.path)) for recipe in recipes
    )


def _recipe_file(path: Path) -> Path:
    if path.is_dir():
        if (path / RECIPE_FILE).is_file():
            return path / RECIPE_FILE
        raise UsageError(f"{path} is a folder without a {RECIPE_FILE}.", hint="Name the recipe file.")
    if not path.exists():
        folder = path.absolute().parent
        close = nearest(path.name, [entry.name for entry in folder.iterdir()]) if folder.is_dir() else None
        hint = f"Did you mean '{path.with_name(close)}'?" if close else "Check the name."
        raise UsageError(f"there is no recipe {path}.", hint=hint)
    return path


def _place(model: ModelReference, folders: Sequence[str]) -> str | None:
    """Where a model written as ``./name`` is, when it is not in the current folder; empty when it is nowhere."""
    if not model.path.startswith("./") or os.path.exists(model.path):
        return None
    places = (os.path.normpath(os.path.join(folder, model.path)) for folder in folders)
    return next((place for place in places if os.path.exists(place)), "")


def _require_found(places: Mapping[ModelReference, str | None], searched: Sequence[str]) -> None:
    missing = [printable(str(model)) for model, place in places.items() if place == ""]
    if missing:
        looked = ", ".join(map(printable, searched))
        raise UsageError(
            f"{', '.join(missing)}: not in the current folder, nor in {looked}.",
            hint="Say where the models lie with --models-dir DIR.",
        )
