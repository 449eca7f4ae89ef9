"""Everything that stands beside the weights: config, tokenizer and other side files, card, recipe.

Nothing here depends on time, machine or place, so the same merge writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any, Protocol

from merger.architecture import config_for_layers, is_head, language_part, says_tied
from merger.card import model_card
from merger.checkpoints.base import Checkpoint, SideFile
from merger.portable import portable_recipe
from merger.recipe import Recipe
from merger.slicing import layer_origins
from merger.types import DTYPES, ModelReference, WeightInfo

RECIPE_FILE = "recipe.yaml"
PLACELESS = re.compile(r"[\w.-]*(/[\w.-]+)?")
"""Names of models that say nothing of a machine: Hub ids and bare names."""

DTYPE_KEYS = ("torch_dtype", "dtype")
CODE_KEYS = ("auto_map", "_attn_implementation_internal", "model_file")
"""Keys that make a loader run code from somewhere; the code itself is never copied."""


class Output(Protocol):
    """One tensor that is written."""

    @property
    def weight(self) -> WeightInfo: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def donor(recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]) -> Checkpoint:
    """The model that gives config and tokenizer: the base, else the first; one that has them if those do not."""
    primary = checkpoints[recipe.primary]
    others = (checkpoints[reference] for reference in recipe.all_models())
    return next((model for model in (primary, *others) if model.config is not None), primary)


def side_files(
    recipe: Recipe,
    checkpoints: Mapping[ModelReference, Checkpoint],
    outputs: Sequence[Output],
    *,
    method_name: str,
    method_url: str | None = None,
    copy_files: bool = True,
    write_readme: bool = True,
) -> list[tuple[str, bytes]]:
    """All files of the output except the weights and their index, as (relative name, bytes).

    Args:
        recipe: what is merged.
        checkpoints: the opened models by reference.
        outputs: the tensors that are written.
        method_name: the method's name for people.
        method_url: where the method is described.
        copy_files: whether tokenizer and other side files are copied.
        write_readme: whether a model card is written.
    """
    source = donor(recipe, checkpoints)
    files = {name: file.read() for name, file in copied_files(source).items()} if copy_files else {}
    config = None if source.config is None else output_config(recipe, checkpoints, outputs)
    if config is not None:
        files["config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(
            "utf-8", "backslashreplace"
        )
    if write_readme:
        card = model_card(
            recipe, checkpoints, config=config, files=files, method_name=method_name, method_url=method_url
        )
        files["README.md"] = card.encode("utf-8", "backslashreplace")
    files[RECIPE_FILE] = portable_recipe(recipe, checkpoints).encode("utf-8", "backslashreplace")
    return sorted(files.items())


def copied_files(source: Checkpoint) -> dict[str, SideFile]:
    """The files of the donor that go into the output as they are."""
    return {name: file for name, file in source.files.items() if _is_copied(name)}


def _is_copied(name: str) -> bool:
    return name not in ("config.json", "README.md", RECIPE_FILE) and not name.endswith(".py")


def output_config(
    recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint], outputs: Sequence[Output]
) -> dict[str, Any]:
    """The donor's ``config.json`` with what the merge changed put right; the order of keys stays."""
    source = donor(recipe, checkpoints)
    config = _without_places(source.config or {})
    _set_dtype(config, outputs)
    _set_tied(config, outputs, [checkpoint.config or {} for checkpoint in checkpoints.values()])
    _set_vocabulary(config, outputs, source)
    return _with_sliced_layers(config, recipe, checkpoints) if recipe.slices else config


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy without local paths and without keys that fetch code."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        is_place = key == "_name_or_path" and not PLACELESS.fullmatch(str(value))
        if key not in CODE_KEYS and not is_place:
            kept[key] = _without_places(value) if isinstance(value, dict) else deepcopy(value)
    return kept


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config itself and, in a multimodal one, the part that describes the language model."""
    inner = language_part(config)
    return [config] if inner is config or not isinstance(inner, dict) else [config, inner]


def _set_dtype(config: dict[str, Any], outputs: Sequence[Output]) -> None:
    name = main_dtype(outputs)
    if name is None:
        return
    inner = [value for key, value in config.items() if key.endswith("_config") and key != "quantization_config"]
    for part in [config, *(part for part in inner if isinstance(part, dict))]:
        for key in DTYPE_KEYS:
            if isinstance(part.get(key), str):
                part[key] = name
    if name != "float32" and not any(key in config for key in DTYPE_KEYS):
        config["torch_dtype"] = name


def main_dtype(outputs: Sequence[Output]) -> str | None:
    """The floating-point dtype that most elements are written in, by its recipe name."""
    elements: Counter[str] = Counter()
    for output in outputs:
        if DTYPES[output.dtype].is_float:
            elements[DTYPES[output.dtype].name] += prod(output.shape)
    return max(sorted(elements), key=lambda name: elements[name]) if elements else None


def _set_tied(config: dict[str, Any], outputs: Sequence[Output], configs: Sequence[Mapping[str, Any]]) -> None:
    """Heads that are written are not tied; a missing head is, when a model that was merged ties it."""
    key = "tie_word_embeddings"
    if any(is_head(output.weight.name) and output.weight.name.endswith(".weight") for output in outputs):
        for part in _parts(config):
            part[key] = False
    elif says_tied(config) is False and any(says_tied(other) for other in configs):
        for part in _parts(config):
            if key in part:
                part[key] = True


def _set_vocabulary(config: dict[str, Any], outputs: Sequence[Output], source: Checkpoint) -> None:
    """``vocab_size`` follows the embedding when the merge gave it another number of rows."""
    for output in outputs:
        before = source.tensors.get(output.weight.name)
        if output.weight.is_embed and before is not None and before.shape[:1] != output.shape[:1]:
            for part in _parts(config):
                if part.get("vocab_size") == before.shape[0]:
                    part["vocab_size"] = output.shape[0]


def _with_sliced_layers(
    config: dict[str, Any], recipe: Recipe, checkpoints: Mapping[ModelReference, Checkpoint]
) -> dict[str, Any]:
    """The number of layers, and lists with one entry per layer, as the slices put them together."""
    return config_for_layers(config, *layer_origins(recipe, checkpoints))
