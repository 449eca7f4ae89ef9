"""Which files of a folder hold the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from merger.checkpoints.header import unique_names
from merger.checkpoints.sidefiles import read_limited
from merger.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_FILE = f"model{INDEX_SUFFIX}"

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
_LISTED = 8


def find_shards(folder: Path) -> tuple[list[Path], Mapping[str, str] | None]:
    """The weight files of a folder, and the index's tensor-to-file table where an index is used.

    ``model.safetensors`` stands for itself unless the index lists it, as in transformers.
    Without an index a complete numbered set will do, or a single file of any name.

    Raises:
        CheckpointError: there are none, some are missing, or it is unclear which ones count.
    """
    names = _visible(folder)
    shards = weight_files(folder)
    index = _choose_index([name for name in names if name.endswith(INDEX_SUFFIX)], folder)
    if index is not None:
        table = read_index(folder / index)
        listed = sorted(set(table.values()))
        if SINGLE_FILE not in shards or SINGLE_FILE in listed:
            _require_present(listed, folder, index)
            return [folder / name for name in listed], table
    return [folder / name for name in _without_index(shards, names, folder)], None


def weight_files(folder: Path) -> list[str]:
    """Names of all safetensors files directly in a folder."""
    return [name for name in _visible(folder) if name.endswith(".safetensors")]


def read_index(path: Path) -> dict[str, str]:
    """The table of an index file, from tensor name to file name.

    Raises:
        CheckpointError: it is damaged or names files outside its folder.
    """
    data = read_limited(path)
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise _damaged_index(path, f"is not valid JSON ({error})") from error
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise _damaged_index(path, "has no 'weight_map' that gives each tensor's file")
    for tensor, file in table.items():
        if not isinstance(file, str) or not is_plain_name(file) or not file.endswith(".safetensors"):
            raise _damaged_index(
                path, f"puts tensor '{tensor}' into {file!a}; only safetensors files beside the index are allowed"
            )
    return table


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file in the same folder and nothing else, on every system."""
    return name not in ("", ".", "..") and not re.search(r'[\x00-\x1f/\\:*?"<>|]', name)


def check_complete(name: str, where: Path) -> None:
    """Refuse one shard of several where a whole model is expected.

    Raises:
        CheckpointError: the name says that there are more shards.
    """
    match = _NUMBERED.fullmatch(name)
    if match and int(match["count"]) > 1:
        raise CheckpointError(
            f"this is one of {int(match['count'])} files of a model.",
            where=str(where),
            hint=f"Give the folder {where.parent} instead.",
        )


def listing(names: Sequence[str]) -> str:
    """Names as a short enumeration."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


def _choose_index(names: list[str], folder: Path) -> str | None:
    if INDEX_FILE in names or len(names) <= 1:
        return INDEX_FILE if INDEX_FILE in names else next(iter(names), None)
    raise CheckpointError(
        f"there are several indexes: {listing(names)}.",
        where=str(folder),
        hint=f"Keep the one that counts, or name it {INDEX_FILE}.",
    )


def _require_present(listed: list[str], folder: Path, index: str) -> None:
    missing = [name for name in listed if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of the {len(listed)} files that {index} lists are missing: {listing(missing)}.",
            where=str(folder),
            hint="Download the missing files.",
        )


def _without_index(shards: list[str], names: list[str], folder: Path) -> list[str]:
    if SINGLE_FILE in shards:
        return [SINGLE_FILE]
    if not shards:
        raise _no_weights(names, folder)
    matches = [match for name in shards if (match := _NUMBERED.fullmatch(name))]
    if len(matches) == len(shards) and len({(match["stem"], int(match["count"])) for match in matches}) == 1:
        _require_all_numbers(matches, folder)
        return shards
    if len(shards) == 1:
        return shards
    raise CheckpointError(
        f"it is unclear which of these files are the model: {listing(shards)}.",
        where=str(folder),
        hint=f"Give one of the files instead of the folder, or add the model's {INDEX_FILE}.",
    )


def _require_all_numbers(matches: list[re.Match[str]], folder: Path) -> None:
    count = int(matches[0]["count"])
    missing = count - len({int(match["number"]) for match in matches} & set(range(1, count + 1)))
    if missing or len(matches) != count:
        present = listing([match.string for match in matches])
        raise CheckpointError(
            f"{missing} of {count} files are missing; here are only {present}.",
            where=str(folder),
            hint="Download the missing files.",
        )


def _no_weights(names: list[str], folder: Path) -> CheckpointError:
    kinds = {
        (".bin", ".pt", ".pth", ".ckpt"): "PyTorch files; convert them to safetensors first",
        (".gguf",): "GGUF files; merging needs the safetensors files they were made from",
        (".h5", ".msgpack", ".onnx"): "files of another framework; get the safetensors files",
    }
    for suffixes, advice in kinds.items():
        found = [name for name in names if name.endswith(suffixes)]
        if found:
            return CheckpointError(
                f"no safetensors file is in this folder, only {listing(found)}.",
                where=str(folder),
                hint=f"These are {advice}.",
            )
    inner = sorted({path.parent.name for path in folder.glob("*/*.safetensors")})
    if inner:
        return CheckpointError(
            "no safetensors file is in this folder itself.",
            where=str(folder),
            hint=f"Did you mean its subfolder {listing(inner)}?",
        )
    content = f"it holds {listing(names)}" if names else "it is empty"
    return CheckpointError(
        f"no safetensors file is in this folder; {content}.", where=str(folder), hint="Give a model's folder."
    )


def _damaged_index(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"the index {what}.", where=str(path), hint="Download the index again.")
