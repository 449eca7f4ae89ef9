"""How to run a merge.  Nothing here changes a value of the result."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from fractions import Fraction

from merger.errors import Problem, UserError

UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    UNITS.update({_letter: 1000**_power, f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power})


def parse_size(text: str | int) -> int:
    """Bytes that a person wrote: ``5GB`` (powers of 1000), ``2GiB`` (powers of 1024) or a plain number.

    Raises:
        UserError: the text is not a size of at least one byte.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)", str(text).strip())
    factor = UNITS.get(match[2].upper(), 0) if match else 0
    size = int(Fraction(match[1]) * factor) if match else 0
    if size < 1:
        raise UserError(f"'{text}' is not a size.", hint="Write it like 5GB, 500MB or 2GiB.")
    return size


@dataclass(frozen=True)
class RunOptions:
    """How to run: device, workers, output place.

    Attributes:
        device: ``auto`` (the first GPU, or the processor where there is none), ``cpu``, ``cuda`` (the first GPU),
            ``cuda:N``, or ``cuda:all`` (every GPU).
        workers: threads that compute; None takes one per processor.
        shard_size: greatest size of one output file in bytes.
        overwrite: whether an output folder that is not empty may be replaced.
        resume: whether to go on with an interrupted run.
        strict: whether NaN, infinities and integer tensors that differ stop the merge.
        copy_files: whether tokenizer and other side files are copied.
        write_readme: whether a model card is written.
        cancel: set it to stop the merge.

    Raises:
        UserError: with everything that is wrong, when constructed.
    """

    device: str = "auto"
    workers: int | None = None
    shard_size: int = 5_000_000_000
    overwrite: bool = False
    resume: bool = False
    strict: bool = False
    copy_files: bool = True
    write_readme: bool = True
    cancel: threading.Event | None = field(default=None, compare=False)

    @property
    def worker_count(self) -> int:
        """Threads that compute: as many as were asked for, else one per processor that this program may use."""
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def __post_init__(self) -> None:
        problems = []
        if not re.fullmatch(r"auto|cpu|cuda(:all|:[0-9]{1,3})?", self.device):
            hint = "Use auto, cpu, cuda, cuda:0 or cuda:all."
            problems.append(Problem(f"'{self.device}' is not a device.", "device", hint))
        if self.workers is not None and self.workers < 1:
            problems.append(Problem(f"{self.workers} workers cannot work.", "workers", "Use 1 or more."))
        if self.shard_size < 1:
            problems.append(Problem(f"A file of {self.shard_size} bytes is too small.", "shard_size", "Try 5GB."))
        if problems:
            raise UserError(problems)
