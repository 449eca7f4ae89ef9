"""What a method's file says of it, read without running it: torch, which every method imports, takes seconds."""

from __future__ import annotations
import __future__

import ast
import inspect
import typing
from functools import cache
from pathlib import Path
from typing import Any

from merger.errors import MethodError
from merger.methods.base import MethodFacts
from merger.methods.signature import UNCHECKED, Between, TensorStandIn, each, read_signature, summary_of
from merger.types import ModelReference, Noise, WeightInfo

FACTS: dict[str, Any] = {
    "pretty_name": None,
    "reference_url": None,
    "aliases": (),
    "min_models": 1,
    "max_models": None,
    "preview": "exact",
    "base": None,
}
"""Keywords of `merge_method` that people need to know, with their defaults."""

_NAMES = {
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "List", "Literal", "Optional")},
    **{"Between": Between, "each": each, "Tensor": TensorStandIn},
    **{"ModelReference": ModelReference, "Noise": Noise, "WeightInfo": WeightInfo},
}


@cache
def outline(path: Path) -> MethodFacts | None:
    """The facts of the one decorated method of a file named after it; None where only running the file tells them."""
    try:
        found = _decorated(ast.parse(path.read_text("utf-8")))
        return _facts(*found[0], path) if len(found) == 1 else None
    except (MethodError, NameError, SyntaxError, TypeError, ValueError):
        # Something is not written out in the decorator or the signature; importing the file says what, if it is wrong.
        return None


def _decorated(tree: ast.Module) -> list[tuple[ast.FunctionDef, ast.Call]]:
    return [
        (node, call)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "merge_method"
    ]


def _facts(node: ast.FunctionDef, call: ast.Call, path: Path) -> MethodFacts | None:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if call.args or ast.literal_eval(given["name"] if "name" in given else ast.Constant(None)) != path.stem:
        return None
    facts = {word: ast.literal_eval(given[word]) if word in given else value for word, value in FACTS.items()}
    function = _without_body(node, path)
    signature = read_signature(function, path.stem)
    return MethodFacts(
        name=path.stem,
        pretty_name=facts["pretty_name"] or path.stem,
        aliases=facts["aliases"],
        summary=summary_of(inspect.getdoc(function) or ""),
        description=inspect.getdoc(function) or "",
        reference_url=facts["reference_url"],
        base=facts["base"] or signature.base,
        min_models=facts["min_models"],
        max_models=facts["max_models"],
        preview=facts["preview"],
        parameters=tuple(argument.definition for argument in signature.parameters),
        tensor_parameters=tuple(argument.definition for argument in signature.tensor_parameters),
    )


def _without_body(node: ast.FunctionDef, path: Path) -> Any:
    """A function of the same signature and documentation that does nothing."""
    for argument in (*node.args.args, *node.args.kwonlyargs):
        if argument.arg in UNCHECKED:
            argument.annotation = None
    stub = ast.FunctionDef(node.name, node.args, node.body[:1], [], node.returns)
    if ast.get_docstring(node) is None:
        stub.body = [ast.Pass()]
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(stub, node)], []))
    names = dict(_NAMES)
    exec(compile(module, str(path), "exec", __future__.annotations.compiler_flag, dont_inherit=True), names)
    return names[node.name]
