"""``methods``: the merge methods and their parameters, as their signatures say."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from merger.cli.command import Command
from merger.cli.engine import add_plugin_option, load_plugins
from merger.cli.report import plain, print_json, table

if TYPE_CHECKING:
    from merger.methods.base import MethodFacts
    from merger.types import ConfigParameterDef

BASES = {
    "required": "needs a base model",
    "optional": "works with or without a base model",
    "reads_first": "a base model counts as the first model",
    "none": "no base model",
}
WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``methods``."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="one method (default: all)")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table of all methods")
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print what one or every method needs and accepts."""
    from merger.methods import registry

    load_plugins(args.plugin)
    chosen = [registry.facts(args.name)] if args.name else registry.describe_all()
    if args.json:
        print_json(plain(chosen[0] if args.name else chosen))
    elif args.markdown:
        print(markdown(chosen))
    elif args.name:
        print("\n".join(_page(chosen[0])))
    else:
        print(table([["method", "base", "models", "parameters", "what it does"], *map(_row, chosen)]))
        print("\n* one value for each model; 'methods NAME' explains a method and its parameters")
    return 0


def markdown(methods: Sequence[MethodFacts]) -> str:
    """The table of methods that the README shows."""
    rows = [_markdown_row(method) for method in methods]
    return "\n".join(["| method | what it does | models | parameters |", "|---|---|---|---|", *rows])


def _markdown_row(method: MethodFacts) -> str:
    name = f"`{method.name}`" + "".join(f", `{alias}`" for alias in method.aliases)
    if method.reference_url:
        name += f" ([paper]({method.reference_url}))" if "arxiv" in method.reference_url else ""
    base = {"required": "base + ", "optional": "base or not, "}.get(method.base, "")
    own = [f"`{definition.name}`*" for definition in method.tensor_parameters]
    shared = [f"`{definition.name}`" for definition in method.parameters]
    return f"| {name} | {method.summary} | {base}{_models(method)} | {', '.join([*own, *shared])} |"


def _row(method: MethodFacts) -> list[str]:
    own = [f"{definition.name}*" for definition in method.tensor_parameters]
    return [
        ", ".join([method.name, *method.aliases]),
        {"required": "yes", "none": "no", "optional": "may"}.get(method.base, "first"),
        _models(method),
        " ".join([*own, *(definition.name for definition in method.parameters)]),
        method.summary,
    ]


def _models(method: MethodFacts) -> str:
    """How many models a method takes besides its base."""
    low, high = method.min_models, method.max_models
    return str(low) if low == high else f"{low}+" if high is None else f"{low}-{high}"


def _page(method: MethodFacts) -> Iterator[str]:
    yield f"{method.pretty_name} ({', '.join([method.name, *method.aliases])})\n"
    yield method.description.partition("\nArgs:")[0].rstrip() or method.summary
    beside = " besides the base" if method.base == "required" else ""
    yield f"\nModels: {_models(method)}{beside}; {BASES[method.base]}."
    if method.reference_url:
        yield f"Reference: {method.reference_url}"
    for title, definitions in (("For each model", method.tensor_parameters), ("For all models", method.parameters)):
        if definitions:
            yield f"\n{title}:"
            width = max(12, *(len(definition.name) for definition in definitions))
            yield from (_parameter(definition, width) for definition in definitions)


def _parameter(definition: ConfigParameterDef, width: int) -> str:
    default = "required" if definition.required else f"default {_short(definition.default_value)}"
    low, high = (("" if bound is None else f"{bound:g}") for bound in (definition.minimum, definition.maximum))
    limits = f", {low or 'any'} to {high or 'any'}" if low or high else ""
    head = f"  {definition.name:{width}} {definition.type.__name__}, {default}{limits}"
    indent = " " * (width + 3)
    return "\n".join([head, *textwrap.wrap(definition.help, WIDTH, initial_indent=indent, subsequent_indent=indent)])


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


COMMAND = Command(
    name="methods",
    summary="List the merge methods, or say what one of them needs and accepts.",
    example="methods ties",
    add_arguments=add_arguments,
    run=run,
)
