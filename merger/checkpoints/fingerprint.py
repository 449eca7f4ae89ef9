"""What the bytes of an output depend on, and what of it differs from an earlier run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from merger.checkpoints.layout import ShardLayout
from merger.errors import OutputError

_VERSION = 1
_WORDS = {
    ("version",): "the version of this program",
    ("layout",): "the output's tensors or shard size",
    ("fingerprint", "recipe"): "the recipe",
}
_INPUTS = ("fingerprint", "inputs")


def journal_content(fingerprint: Mapping[str, Any], layouts: Sequence[ShardLayout]) -> dict[str, Any]:
    """The first line of a journal: the caller's fingerprint as plain JSON, and the layout."""
    digest = hashlib.sha256()
    for layout in layouts:
        digest.update(f"{layout.file}\0{layout.size}\0".encode())
        digest.update(layout.header)
    plain = json.loads(json.dumps(fingerprint))
    return {"version": _VERSION, "fingerprint": plain, "layout": digest.hexdigest()}


def require_same(stored: Mapping[str, Any], wanted: Mapping[str, Any], target: Path) -> None:
    """Refuse to go on with an output that was begun from something else.

    Raises:
        OutputError: naming what differs: the recipe, an input model, the layout.
    """
    paths = list(_differences(stored, wanted))
    # The recipe is in every header: a layout that differs with it says nothing of its own.
    if ("fingerprint", "recipe") in {path[:2] for path in paths}:
        paths = [path for path in paths if path != ("layout",)]
    if paths:
        parts = list(dict.fromkeys(map(_in_words, paths)))
        verb = "differs" if len(parts) == 1 else "differ"
        raise OutputError(
            f"the interrupted merge cannot be resumed: {' and '.join(parts)} {verb} from what it began with.",
            where=str(target),
            hint="Use the same again, or begin afresh without --resume.",
        )


def _differences(stored: Any, wanted: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*stored, *wanted}):
            yield from _differences(stored.get(key), wanted.get(key), (*path, key))
    elif stored != wanted:
        yield path


def _in_words(path: tuple[str, ...]) -> str:
    if path[:2] == _INPUTS and len(path) > 2:
        return f"the input model {path[2]}"
    for length in range(len(path), 0, -1):
        if path[:length] in _WORDS:
            return _WORDS[path[:length]]
    return " ".join(path[1:]) or "the journal"
