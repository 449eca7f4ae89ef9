"""What a merge reports while it runs.  Every front end consumes the same iterator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from merger.errors import Problem


@dataclass(frozen=True)
class Event:
    """Anything that a merge reports."""

    def to_json(self) -> dict[str, Any]:
        """The event as plain values, with its kind under ``event``."""
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class RecipeBegun(Event):
    """In a series of recipes: one of them begins, or is passed over because its result stands already.

    Attributes:
        name: what the recipe calls its result; empty for a last one without a name.
        number, total: its place in the series, counted from 1, and how many there are.
        path: where its result will be, or is.
        reused: whether the result of an earlier run is used again.
    """

    name: str
    number: int
    total: int
    path: str
    reused: bool


@dataclass(frozen=True)
class Planned(Event):
    """The plan is free of errors and work begins.

    Attributes:
        tensors: output tensors in all.
        bytes_in: bytes that will be read, several passes counted once.
        bytes_out: bytes that will be written.
        bytes_done: output bytes that a resumed merge already has.
        memory: upper bound of working memory in bytes, without torch itself.
        problems: warnings and notes of the plan.
    """

    tensors: int
    bytes_in: int
    bytes_out: int
    bytes_done: int
    memory: int
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class TensorMerged(Event):
    """One output tensor is written."""

    name: str
    layer: int | None
    role: str
    done: int
    total: int


@dataclass(frozen=True)
class ShardWritten(Event):
    """One output file is complete."""

    file: str
    bytes: int


@dataclass(frozen=True)
class Working(Event):
    """A sign of life, at least every quarter second.

    Attributes:
        tensor: what is being worked on.
        bytes_done, bytes_out: output bytes so far and in all.
        bytes_per_second: output rate since the start of this run.
        seconds_left: estimate, or None in the first moments.
    """

    tensor: str
    bytes_done: int
    bytes_out: int
    bytes_per_second: float
    seconds_left: float | None


@dataclass(frozen=True)
class Verified(Event):
    """The output was read back and is what was computed.

    Attributes:
        files, tensors, bytes: what was checked.
        non_finite: count of infinities and NaN by tensor; empty when there are none.
    """

    files: int
    tensors: int
    bytes: int
    non_finite: dict[str, int]


@dataclass(frozen=True)
class Merged(Event):
    """The result stands in its final place.

    Attributes:
        path: the output folder.
        seconds: time since the merge began.
        bytes_out: size of all weight files.
        bytes_read: bytes read from inputs in this run, every pass counted.
    """

    path: str
    seconds: float
    bytes_out: int
    bytes_read: int
