"""What a job is, as everyone outside the store sees it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from merger.errors import Problem, UserError

State = Literal["queued", "running", "cancelling", "cancelled", "interrupted", "failed", "verified", "expired"]

ACTIVE: tuple[State, ...] = ("queued", "running", "cancelling")
"""States that end by themselves."""

RESUMABLE: tuple[State, ...] = ("cancelled", "interrupted", "failed", "expired")
"""States from which `JobStore.resume` starts again, with whatever the journal has kept."""

_PROGRESS_FIELDS: Mapping[str, Mapping[str, str]] = {
    "Planned": {"tensors": "total", "bytes_done": "bytes_done", "bytes_out": "bytes_out"},
    "TensorMerged": {"name": "tensor", "layer": "layer", "role": "role", "done": "done", "total": "total"},
    "Working": {name: name for name in ("tensor", "bytes_done", "bytes_out", "bytes_per_second", "seconds_left")},
}
_PHASES: Mapping[str, Literal["merging", "packing"]] = {
    "Planned": "merging",
    "TensorMerged": "merging",
    "Working": "merging",
    "Verified": "packing",
    "Merged": "packing",
}


class JobNotFound(UserError):
    """There is no such job, or it belongs to someone else; both look the same."""

    def __init__(self) -> None:
        super().__init__("There is no such merge.", hint="It may have been deleted, or it was started elsewhere.")


@dataclass(frozen=True)
class Progress:
    """How far a merge has come.

    Attributes:
        phase: ``starting`` until the plan stands, ``merging``, then ``packing`` while the
            finished files are read once for the checksums of the download.
        tensor, layer, role: what was last worked on.
        done, total: output tensors written and in all.
        bytes_done, bytes_out: output bytes written and in all.
        bytes_per_second: output rate of this run.
        seconds_left: estimate, or None while there is none.
    """

    phase: Literal["starting", "merging", "packing"] = "starting"
    tensor: str = ""
    layer: int | None = None
    role: str = ""
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_out: int = 0
    bytes_per_second: float = 0.0
    seconds_left: float | None = None

    @property
    def fraction(self) -> float:
        """Share of the output that is written, from 0 to 1."""
        done, total = (self.bytes_done, self.bytes_out) if self.bytes_out else (self.done, self.total)
        return min(1.0, done / total) if total else 0.0

    def after(self, event: Mapping[str, Any]) -> Progress:
        """The progress once ``event`` (the plain values of an event) has happened."""
        kind = event.get("event", "")
        fields = _PROGRESS_FIELDS.get(kind, {})
        known: dict[str, Any] = {ours: event[theirs] for theirs, ours in fields.items() if theirs in event}
        if kind == "Verified":
            known = {"bytes_done": self.bytes_out, "done": self.total, "seconds_left": None}
        return replace(self, phase=_PHASES.get(kind, self.phase), **known)


@dataclass(frozen=True)
class Job:
    """One merge in the background, as it stood when it was asked for.

    Attributes:
        id: 128 random bits, safe in an address; whoever has it may read the status.
        name: what its owner called it, one clean line.
        created, started, finished: seconds since 1970.
        recipe: the recipe as YAML.
        options: run options by name.
        plan: the ``Planned`` event as plain values.
        result: what was verified, with ``seconds`` and ``bytes_read``.
        event: the last event as plain values.
        problems: why it failed or was interrupted; no path of this machine and no token in it.
        output: the output folder, relative to the store's folder.
        size: bytes of the finished output.
    """

    id: str
    name: str
    state: State
    created: float
    recipe: str
    output: str
    started: float | None = None
    finished: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    progress: Progress = field(default_factory=Progress)
    problems: tuple[Problem, ...] = ()
    size: int | None = None

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    @property
    def is_resumable(self) -> bool:
        return self.state in RESUMABLE

    @property
    def error(self) -> str | None:
        """Why there is no result, one line per problem."""
        return "\n".join(map(str, self.problems)) or None

    @property
    def file_name(self) -> str:
        """A name for the downloaded folder or zip: plain ASCII, never hidden, never empty."""
        plain = unicodedata.normalize("NFKD", self.name).encode("ascii", "ignore").decode()
        return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:60].rstrip("-._") or "merge"


def clean_name(text: str) -> str:
    """What a person typed as one printable line of at most 80 characters."""
    printable = "".join(" " if unicodedata.category(letter)[0] in "CZ" else letter for letter in text)
    return " ".join(printable.split())[:80].strip() or "merge"
