"""The files that belong to a model beside its weights: configuration, tokenizer, licence."""

from __future__ import annotations

import functools
import json
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from merger.checkpoints.base import SideFile
from merger.errors import CheckpointError

CONFIG_FILE = "config.json"
MAX_SIDE_FILE_BYTES = 64 << 20

SIDE_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "[0-9]_*/config.json",
    "[0-9]_*/model.safetensors",
    "*processor_config.json",
    "README.md",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
    "USE_POLICY*",
)
"""Patterns of side files; a slash stands for one folder.  Program code is never among them."""

_NEVER = (".py", ".bin", ".pt", ".pth", ".pkl", ".safetensors", ".safetensors.index.json")


def read_config(folder: Path) -> dict[str, Any] | None:
    """The model's configuration, or None where it has none.

    Raises:
        CheckpointError: the file is not JSON, or not an object.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        return None
    data = read_limited(path)
    try:
        config = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad_config(path, f"is not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise _bad_config(path, "does not hold names and values")
    return config


def side_files(folder: Path) -> dict[str, SideFile]:
    """The side files of a folder, sorted by name."""
    found = {}
    for name in sorted(_candidates(folder)):
        path = folder / name
        if _belongs(name) and path.is_file():
            found[name] = SideFile(name, path.stat().st_size, functools.partial(read_limited, path))
    return found


def read_limited(path: Path) -> bytes:
    """A small file's bytes.

    Raises:
        CheckpointError: it is larger than 64 MiB, or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError("this is not a file.", where=str(path), hint="Remove it, or give another model.")
        with open(path, "rb") as file:
            data = file.read(MAX_SIDE_FILE_BYTES + 1)
    except OSError as error:
        raise CheckpointError(
            f"the file cannot be read ({error.strerror}).", where=str(path), hint="Check its permissions."
        ) from error
    if len(data) > MAX_SIDE_FILE_BYTES:
        raise CheckpointError(
            f"the file is larger than {MAX_SIDE_FILE_BYTES >> 20} MiB.",
            where=str(path),
            hint="A configuration or tokenizer is smaller; remove the file if it is not needed.",
        )
    return data


def _belongs(name: str) -> bool:
    if "/" not in name and name.endswith(_NEVER):
        return False
    return any(fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in SIDE_FILES)


def _candidates(folder: Path) -> Iterator[str]:
    for entry in folder.iterdir():
        yield entry.name
        if entry.is_dir() and any(fnmatchcase(entry.name, p.split("/")[0]) for p in SIDE_FILES if "/" in p):
            yield from (f"{entry.name}/{inner.name}" for inner in entry.iterdir())


def _bad_config(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"the configuration {what}.", where=str(path), hint="Download the file again.")
