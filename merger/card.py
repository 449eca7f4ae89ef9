"""The model card: what was merged, how, and how to use the result.

Nothing in it depends on time, machine or the name of the output folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from merger.checkpoints.base import Checkpoint
from merger.errors import printable
from merger.portable import hub_id, portable_names, portable_recipe
from merger.recipe import Recipe, has_filters
from merger.types import ModelReference

THIS_FOLDER = "path/to/this/folder"
AUTO_CLASSES = {
    "ForCausalLM": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForImageClassification": "AutoModelForImageClassification",
    "LMHeadModel": "AutoModelForCausalLM",
}
LICENCE_LINE = re.compile(r"^license:[ \t]*[\"']?([\w.+-]+)", re.MULTILINE)
LICENCE_TITLES = {
    "apache-2.0": r"Apache License,?\s+Version 2\.0",
    "mit": r"\bMIT License\b|Permission is hereby granted, free of charge, to any person",
    "gpl-3.0": r"GNU GENERAL PUBLIC LICENSE\s+Version 3",
    "bsd-3-clause": r"BSD 3-Clause|Neither the name of",
}


def model_card(
    recipe: Recipe,
    checkpoints: Mapping[ModelReference, Checkpoint],
    *,
    config: Mapping[str, Any] | None,
    files: Collection[str],
    method_name: str,
    method_url: str | None = None,
) -> str:
    """The text of the output's ``README.md``.

    Args:
        recipe: what is merged.
        checkpoints: the opened models by reference.
        config: the output's ``config.json``, if it has one.
        files: names of the files beside the weights.
        method_name: the method's name for people.
        method_url: where the method is described.
    """
    names = {reference: _short(name) for reference, name in portable_names(checkpoints).items()}
    method = f"[{_escaped(method_name)}]({method_url})" if method_url else _escaped(method_name)
    parts = [
        f"# {_title(recipe, checkpoints)}",
        f"These models were merged with Mixdesk by {method} (`{recipe.merge_method}`).",
        _parents(recipe, checkpoints, names),
        _slices(recipe, names),
        _settings(recipe),
        _licences(checkpoints, names),
        _left_out(checkpoints, config),
        "## How to use it",
        _fenced("\n".join(usage(config, files, THIS_FOLDER)), "python"),
        "## Recipe",
        "`python -m merger run recipe.yaml OUT` makes the same files again where the models lie beside each other.",
        _fenced(portable_recipe(recipe, checkpoints).rstrip("\n"), "yaml"),
    ]
    return _front_matter(checkpoints, config, files) + "\n" + "\n\n".join(part for part in parts if part) + "\n"


def library_name(config: Mapping[str, Any] | None, files: Collection[str]) -> str | None:
    """The library that loads a folder with this config and these side files."""
    if config is None or not config.get("model_type") or _architecture(config) is None:
        return None
    return "sentence-transformers" if "modules.json" in files else "transformers"


def usage_of_folder(folder: Path) -> tuple[str, str, str]:
    """Three lines of Python that load the model in an output folder."""
    place = folder / "config.json"
    config = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
    return usage(config, [entry.name for entry in folder.iterdir()], str(folder))


def usage(config: Mapping[str, Any] | None, files: Collection[str], folder: str) -> tuple[str, str, str]:
    """Three lines of Python that load the model."""
    library = library_name(config, files)
    if library == "sentence-transformers":
        return (
            "from sentence_transformers import SentenceTransformer",
            f"model = SentenceTransformer({folder!r})",
            'embeddings = model.encode(["a first text", "a second text"])',
        )
    if library == "transformers":
        auto = _auto_class(config or {})
        has_tokenizer = any(name.startswith(("tokenizer", "vocab", "spiece")) for name in files)
        other = "AutoTokenizer" if has_tokenizer else "AutoConfig"
        return (
            f"from transformers import {auto}, {other}",
            f"model = {auto}.from_pretrained({folder!r})",
            f"{other[4:].lower()} = {other}.from_pretrained({folder!r})",
        )
    return (
        "from pathlib import Path; from safetensors.torch import load_file",
        f'files = sorted(Path({folder!r}).glob("*.safetensors"))',
        "tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}",
    )


def _architecture(config: Mapping[str, Any]) -> str | None:
    """The class that the config names first; None where it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def _auto_class(config: Mapping[str, Any]) -> str:
    architecture = _architecture(config) or ""
    if architecture.endswith("ForConditionalGeneration"):
        return "AutoModelForImageTextToText" if "vision_config" in config else "AutoModelForSeq2SeqLM"
    return next((auto for ending, auto in AUTO_CLASSES.items() if architecture.endswith(ending)), "AutoModel")


def licence_of(checkpoint: Checkpoint) -> str | None:
    """A model's licence as the Hub names it, from its config, card or LICENSE file; None when none of them tells."""
    named = (checkpoint.config or {}).get("license")
    if isinstance(named, str) and named:
        return named.lower()
    for name, file in checkpoint.files.items():
        if name == "README.md":
            text = file.read().decode("utf-8", "replace")
            _, opening, rest = text.partition("---\n")
            found = LICENCE_LINE.search(rest.partition("\n---")[0]) if opening else None
            if found:
                return found[1].lower()
    for name, file in checkpoint.files.items():
        if name.upper().startswith(("LICENSE", "LICENCE")):
            text = file.read()[:4000].decode("utf-8", "replace")
            return next((name for name, title in LICENCE_TITLES.items() if re.search(title, text)), None)
    return None


def _front_matter(
    checkpoints: Mapping[ModelReference, Checkpoint], config: Mapping[str, Any] | None, files: Collection[str]
) -> str:
    parents = [name for reference in checkpoints if (name := hub_id(reference)) is not None]
    licences = {licence_of(checkpoint) for checkpoint in checkpoints.values()}
    data: dict[str, Any] = {
        "base_model": list(dict.fromkeys(parents)) or None,
        "base_model_relation": "merge",
        "library_name": library_name(config, files),
        "license": licences.pop() if len(licences) == 1 else None,
        "tags": ["merge", "mixdesk"],
    }
    text: str = yaml.safe_dump({key: value for key, value in data.items() if value is not None}, sort_keys=False)
    return f"---\n{text}---\n"


def _title(recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]) -> str:
    if recipe.name:
        return _escaped(recipe.name)
    names = [_escaped(reference.short_name) for reference in checkpoints if reference != recipe.base_model]
    names = list(dict.fromkeys(names)) or [_escaped(reference.short_name) for reference in checkpoints]
    return "Merge of " + (names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}")


def _parents(
    recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint], names: Mapping[ModelReference, str]
) -> str:
    """One row per model: its part in the merge, its parameters and the digest of its headers."""
    given = {entry.model: entry.parameters for entry in recipe.models}
    columns = list(dict.fromkeys(key for parameters in given.values() for key in parameters))
    rows = [["Model", "Role", *(_code(column) for column in columns), "Header digest (SHA-256)"]]
    for reference, checkpoint in checkpoints.items():
        role = "base" if reference == recipe.base_model else "merged"
        values = [_value(given.get(reference, {}).get(column)) for column in columns]
        rows.append([_code(names[reference]), role, *values, _code(checkpoint.digest[:16])])
    return _table(rows)


def _slices(recipe: Recipe, names: Mapping[ModelReference, str]) -> str:
    rows = [["Slice", "Model", "Layers"]]
    for number, part in enumerate(recipe.slices, 1):
        for entry in part.sources:
            layers = "all" if entry.layer_range is None else f"{entry.layer_range[0]} to {entry.layer_range[1] - 1}"
            rows.append([str(number), _code(names.get(entry.model, _short(entry.model))), layers])
    return _table(rows) if recipe.slices else ""


def _settings(recipe: Recipe) -> str:
    values = {**recipe.parameters, "dtype": recipe.dtype, "out_dtype": recipe.out_dtype, "seed": recipe.seed or None}
    lines = [f"- {_code(name)}: {_value(value)}" for name, value in values.items() if value is not None]
    return "\n".join(["Parameters for all models:", "", *lines]) if lines else ""


def _licences(checkpoints: Mapping[ModelReference, Checkpoint], names: Mapping[ModelReference, str]) -> str:
    """What is known of the parents' licences, when they are not all the same."""
    known = {names[reference]: licence_of(checkpoint) for reference, checkpoint in checkpoints.items()}
    if len(set(known.values())) == 1:
        return ""
    said = ", ".join(f"{_code(name)} {licence or 'not stated'}" for name, licence in known.items())
    return f"Licences of the parents: {said}. Check that they allow this merge before you share it."


def _left_out(checkpoints: Mapping[ModelReference, Checkpoint], config: Mapping[str, Any] | None) -> str:
    had_code = any("auto_map" in (checkpoint.config or {}) for checkpoint in checkpoints.values())
    if config is None or not had_code:
        return ""
    return "A parent's config pointed at custom code (`auto_map`); the entry and the code were left out."


def _value(setting: Any) -> str:
    """A parameter as it reads in a sentence: a number, a gradient, or one value per filter."""
    if setting is None:
        return ""
    if not isinstance(setting, tuple):
        return _code(str(setting).lower() if isinstance(setting, bool) else str(setting))
    if has_filters(setting):
        return ", ".join(f"{_escaped(item.filter or 'others')}: {_value(item.value)}" for item in setting)
    return _code(f"[{', '.join(map(str, setting))}]")


def _short(reference: ModelReference) -> str:
    """A folder by its bare name, unless that would read like a Hub id."""
    return str(reference).removeprefix("./") if str(reference).count("/") == 1 else str(reference)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _escaped(text: str) -> str:
    """Text in which Markdown and HTML mean nothing."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|&~$])", r"\\\1", printable(text))


def _code(text: str) -> str:
    """Text as inline code that also holds inside a table cell."""
    text = printable(text).replace("|", "\\|")
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"{ticks}{text}{ticks}"


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
