"""Several recipes in one text, later ones of which use the results of earlier ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from merger.errors import Problem, RecipeError, did_you_mean, nearest
from merger.policy import Policy
from merger.recipe.document import Node, load_documents, read_text
from merger.recipe.grammar import RecipeReader
from merger.recipe.recipe import Recipe
from merger.types import ModelReference, Vocabulary

FOLDER_NAME = re.compile(r"\w[\w .-]{0,99}(?<! )")
"""What a result can be called, since it is also the name of a folder."""


def load_series(
    source: str | os.PathLike[str],
    vocabulary: Vocabulary | None = None,
    *,
    lenient: bool = False,
    policy: Policy | None = None,
) -> tuple[Recipe, ...]:
    """Read recipes that are separated by ``---``; see `Recipe.load` for the arguments.

    Raises:
        RecipeError: with all problems of all documents, those of their names included.
    """
    is_text = isinstance(source, str) and "\n" in source
    text = str(source) if is_text else read_text(os.fspath(source))
    title = "recipe" if is_text else os.path.basename(source)
    nodes, problems = load_documents(text, title)
    nodes = [node for node in nodes if node.value is not None] or [Node(None)]
    labels = [f"{title}, {_label(node, number)}" for number, node in enumerate(nodes, 1)] if nodes[1:] else [title]
    found: list[Problem] = [*problems]
    recipes: list[Recipe] = []
    for node, label in zip(nodes, labels, strict=True):
        try:
            recipes.append(Recipe.from_node(node, [], RecipeReader(vocabulary, lenient, label), policy))
        except RecipeError as error:
            found += error.problems
    if nodes[1:]:
        found += _unnamed(nodes, labels)
        found += series_problems(recipes, [_name(node) for node in nodes]) if len(recipes) == len(nodes) else []
    errors = [problem for problem in found if problem.level == "error"]
    if errors:
        raise RecipeError(errors + [problem for problem in found if problem not in errors])
    last = recipes[-1]
    return (*recipes[:-1], last.replace(problems=(*found, *last.problems)))


def series_problems(recipes: Sequence[Recipe], names: Sequence[str | None]) -> Iterator[Problem]:
    """Names that are taken twice, cannot be those of folders, or are used before they are made."""
    for number, name in enumerate(names):
        where = document_title(name, number + 1)
        others = [other.casefold() for other in names[:number] if other is not None]
        if name is not None and name.casefold() in others:
            yield Problem("an earlier document has the same name", where, "Give each result a name of its own.")
        if name is not None and number < len(names) - 1 and not FOLDER_NAME.fullmatch(name):
            hint = "Use letters, digits, . _ - and spaces; it begins with a letter or digit."
            yield Problem(f"'{name}' cannot be the name of a folder", where, hint)
    for number, recipe in enumerate(recipes):
        yield from _reference_problems(recipe, number, names)
    used = {model.path for recipe in recipes for model in recipe.mentioned_models()}
    for number, name in enumerate(names[:-1]):
        if name is not None and name not in used:
            where = document_title(name, number + 1)
            yield Problem("no later document uses its result", where, "It is made and kept all the same.", "warning")


def _reference_problems(recipe: Recipe, number: int, names: Sequence[str | None]) -> Iterator[Problem]:
    where = document_title(names[number], number + 1)
    earlier = {name for name in names[:number] if name}
    later = {name for name in names[number + 1 :] if name}
    for model in recipe.mentioned_models():
        if model.path == names[number] and model.path not in earlier and len(names) - 1 > number:
            yield Problem(f"'{model}' is this document's own result", where, _folder_hint(model))
        elif model.path in later - earlier:
            hint = f"Put the document '{model.path}' above it. {_folder_hint(model)}"
            yield Problem(f"'{model}' is made by a later document", where, hint)
        elif model.path in earlier and model.revision:
            yield Problem(f"'{model}': the result of an earlier document has no revision", where, "Leave it out.")
        elif model.path in earlier and os.path.exists(model.path):
            message = f"'{model}' is read as the result of the document of that name"
            yield Problem(message, where, _folder_hint(model), "warning")
        elif model.path not in earlier and nearest(model.path, earlier) and not os.path.exists(model.path):
            hint = did_you_mean(model.path, earlier)
            yield Problem(f"'{model}' is neither the result of an earlier document nor a folder", where, hint)


def _folder_hint(model: ModelReference) -> str:
    return f"Write './{model.path}' for a folder of that name."


def document_title(name: str | None, number: int) -> str:
    """What a document is called in sentences."""
    return f"document {number}" if name is None else f"document '{name}'"


def _label(node: Node, number: int) -> str:
    return document_title(_name(node), number)


def _name(node: Node) -> str | None:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name.text if isinstance(name, Node) and name.text.strip() else None


def _unnamed(nodes: Sequence[Node], labels: Sequence[str]) -> Iterator[Problem]:
    for node, label in zip(nodes[:-1], labels[:-1], strict=True):
        if _name(node) is None:
            hint = "Add 'name: ...', by which later documents can use it."
            yield Problem("every document but the last needs a name", f"{label}, line {node.line}", hint)
