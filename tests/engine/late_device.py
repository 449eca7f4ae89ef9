"""A device that computes on the processor but copies as late as it may, and objects to what would race on a GPU."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from merger.devices.base import Device
from merger.devices.streamed import Lane, Lanes, StreamedTransport

GARBAGE = 0xA7
"""Fills memory whose contents are not defined yet."""


class Race(AssertionError):
    """Memory was used before it was safe."""


@dataclass
class Copy:
    """A copy that was asked for.

    Attributes:
        number: its place among the copies of its lane.
        source: gives the bytes; None when nobody kept them.
        target: where they go.
    """

    number: int
    source: Callable[[], Tensor | None]
    target: Tensor

    def run(self) -> None:
        source = self.source()
        if source is None:
            raise Race("memory was given back before it was copied")
        self.target.copy_(source)


@dataclass(frozen=True)
class Moment:
    """A mark: how much of a lane comes before it."""

    lane: Lane
    number: int


@dataclass
class LateDevice(Device):
    """One such device.

    Attributes:
        name: what it is called.
        log: what its threads asked for, in order: ``upload``, ``compute``, ``download``, ``deliver``.
        threads: how many threads have worked on it.
    """

    name: str = "late:0"
    lanes: type[LateLanes] | None = None
    log: list[str] = field(default_factory=list)
    threads: int = 0

    def transport(self) -> StreamedTransport:
        self.threads += 1
        return StreamedTransport((self.lanes or LateLanes)(self.log))


def address(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return getattr(tensor, "near", tensor).data_ptr()


class LateLanes(Lanes):
    """Lanes whose copies happen only when somebody waits for them."""

    device = "cpu:0"

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.numbers = {Lane.UP: count(1), Lane.DOWN: count(1)}
        self.asked = dict.fromkeys(Lane, 0)
        self.pending: dict[Lane, deque[Copy]] = {Lane.UP: deque(), Lane.DOWN: deque()}
        self.seen: dict[tuple[Lane | None, Lane], int] = {}
        self.last_copy: dict[tuple[Lane, int], int] = {}
        self.read_in: dict[int, int] = {}

    def host(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), GARBAGE, dtype=torch.uint8)

    def memory(self, nbytes: int) -> Tensor:
        made = torch.full((nbytes,), GARBAGE, dtype=torch.uint8, device=self.device)
        self.read_in[address(made)] = self.asked[Lane.COMPUTE]
        return made

    def upload(self, source: Tensor, target: Tensor) -> None:
        if self.read_in.get(address(target), -1) >= self.seen.get((Lane.UP, Lane.COMPUTE), 0):
            raise Race("uploaded into memory that may still be read")
        if self.last_copy.get((Lane.UP, address(source)), 0) > self.seen.get((None, Lane.UP), 0):
            raise Race("a buffer was filled again before its upload was waited for")
        self._ask(Lane.UP, source, target, lambda: source)
        self.log.append("upload")

    def download(self, source: Tensor, target: Tensor) -> None:
        if self.seen.get((Lane.DOWN, Lane.COMPUTE), 0) < self.asked[Lane.COMPUTE]:
            raise Race("a result was downloaded before it was computed")
        self._ask(Lane.DOWN, target, target, weakref.ref(source))
        self.log.append("download")

    def _ask(self, lane: Lane, host: Tensor, target: Tensor, source: Callable[[], Tensor | None]) -> None:
        self.asked[lane] = self.last_copy[lane, address(host)] = next(self.numbers[lane])
        target.fill_(GARBAGE)
        self.pending[lane].append(Copy(self.asked[lane], source, target))

    def mark(self, lane: Lane) -> Moment:
        if lane is Lane.COMPUTE:
            self.asked[lane] += 1
        return Moment(lane, self.asked[lane])

    def wait(self, lane: Lane, mark: Moment) -> None:
        self._note(lane, mark)
        if lane is Lane.COMPUTE:
            self.log.append("compute")
            for copy in self._run(mark):
                self.read_in[address(copy.target)] = self.asked[Lane.COMPUTE]

    def synchronize(self, mark: Moment) -> None:
        self._note(None, mark)
        if mark.lane is not Lane.COMPUTE and self._run(mark) and mark.lane is Lane.DOWN:
            self.log.append("deliver")

    def _note(self, lane: Lane | None, mark: Moment) -> None:
        self.seen[lane, mark.lane] = max(mark.number, self.seen.get((lane, mark.lane), 0))

    def _run(self, mark: Moment) -> list[Copy]:
        done = []
        pending = self.pending[mark.lane]
        while pending and pending[0].number <= mark.number:
            pending[0].run()
            done.append(pending.popleft())
        return done
