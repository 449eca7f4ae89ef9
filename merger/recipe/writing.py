"""Recipes as plain values and as YAML text that every YAML reader understands alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from merger.recipe.document import NUMBER
from merger.recipe.entries import (
    Filtered,
    ModelEntry,
    Setting,
    Slice,
    TokenizerRule,
    TokenRule,
    has_filters,
    is_gradient,
)
from merger.types import ModelReference


def reference_data(model: ModelReference) -> str | dict[str, Any]:
    """Text where it can only be read in one way, else a mapping: a path may hold ``@`` and ``+``."""
    text = str(model)
    parts = (model, model.lora) if model.lora else (model,)
    names = [name for part in parts for name in (part.path, part.revision or "")]
    is_plain = text.strip() == text and not any(set("@+") & set(name) or name.startswith("model:") for name in names)
    if is_plain and ModelReference.parse(text) == model:
        return text
    data: dict[str, Any] = {"model": _path_data(model)}
    return data | ({"lora": reference_data(model.lora)} if model.lora else {})


def _path_data(model: ModelReference) -> dict[str, str]:
    return {"path": model.path} | ({"revision": model.revision} if model.revision else {})


def entry_data(entry: ModelEntry) -> dict[str, Any]:
    """One model with its settings."""
    data: dict[str, Any] = {"model": reference_data(entry.model)}
    if entry.layer_range is not None:
        data["layer_range"] = _Row(entry.layer_range)
    return data | settings_data(entry.parameters)


def slice_data(part: Slice) -> dict[str, Any]:
    """One slice with its sources."""
    data: dict[str, Any] = {"sources": [entry_data(entry) for entry in part.sources]}
    if part.base_model is not None:
        data["base_model"] = reference_data(part.base_model)
    return data | settings_data(part.parameters)


def settings_data(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """``{"parameters": ...}`` in alphabetical order, or nothing."""
    return {"parameters": {name: _setting_data(settings[name]) for name in sorted(settings)}} if settings else {}


def _setting_data(setting: Setting) -> Any:
    if has_filters(setting):
        return [_filtered_data(line) for line in setting]
    return _Row(setting) if is_gradient(setting) else setting


def _filtered_data(line: Filtered) -> dict[str, Any]:
    return ({} if line.filter is None else {"filter": line.filter}) | {"value": _setting_data(line.value)}


def tokenizer_data(rule: TokenizerRule) -> dict[str, Any]:
    """How the vocabulary is made."""
    data: dict[str, Any] = {}
    if rule.source is not None:
        data["source"] = source_data(rule.source)
    if rule.tokens:
        data["tokens"] = {token: _token_data(rule.tokens[token]) for token in sorted(rule.tokens)}
    return data | ({} if rule.pad_to_multiple_of is None else {"pad_to_multiple_of": rule.pad_to_multiple_of})


def source_data(source: ModelReference | str) -> str | dict[str, Any]:
    """``union``, ``base`` or a model; a model of such a name is written as a mapping."""
    if isinstance(source, str):
        return source
    text = reference_data(source)
    return {"path": source.path} if text in ("union", "base") else text


def _token_data(rule: TokenRule) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if rule.source == "zero":
        data["source"] = {"kind": "zero"}
    elif isinstance(rule.source, ModelReference):
        data["source"] = reference_data(rule.source)
        named = {"token": rule.token, "token_id": rule.token_id}
        given = {key: value for key, value in named.items() if value is not None}
        if given:
            data["source"] = {"kind": "model_token", "model": data["source"], **given}
    return data | ({"force": True} if rule.force else {})


class _Row(list[Any]):
    """A list that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Block style, no anchors, and quotes around text that looks like one of our numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))
_Dumper.add_representer(
    _Row, lambda dumper, row: dumper.represent_sequence("tag:yaml.org,2002:seq", row, flow_style=True)
)


def dump(data: Mapping[str, Any]) -> str:
    """YAML text of plain values; floats are read back exactly."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
