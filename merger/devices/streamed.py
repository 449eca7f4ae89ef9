"""Devices that copy and compute beside the processor: the next block travels while this one is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from merger.devices.base import Deliver, Stored, Transport
from merger.ops.convert import rounded, torch_dtype, with_one_nan

DEPTH = 2
"""Blocks that are on their way in each direction."""

COUNT_BYTES = 8


class Lane(Enum):
    """Where a device works in order; lanes run beside each other."""

    UP = "up"
    COMPUTE = "compute"
    DOWN = "down"


Mark = Any
"""A moment in a lane."""


class Lanes(ABC):
    """One thread's lanes on a device, and the memory that copies go between.

    torch operations of the thread go to `Lane.COMPUTE`.

    Attributes:
        device: torch's name of the device.
    """

    device: str

    @abstractmethod
    def host(self, nbytes: int) -> Tensor:
        """Bytes in the processor's memory that the device can reach by itself."""

    @abstractmethod
    def memory(self, nbytes: int) -> Tensor:
        """Bytes on the device; whatever `Lane.COMPUTE` was given before may still use them."""

    @abstractmethod
    def upload(self, source: Tensor, target: Tensor) -> None:
        """Copy from the processor's memory, in `Lane.UP`."""

    @abstractmethod
    def download(self, source: Tensor, target: Tensor) -> None:
        """Copy to the processor's memory, in `Lane.DOWN`."""

    @abstractmethod
    def mark(self, lane: Lane) -> Mark:
        """The moment when everything that a lane was given so far is done."""

    @abstractmethod
    def wait(self, lane: Lane, mark: Mark) -> None:
        """What a lane is given from now on begins after ``mark``."""

    @abstractmethod
    def synchronize(self, mark: Mark) -> None:
        """The processor waits for ``mark``."""


@dataclass
class _Arrival:
    """Room for one block on its way to the device.

    Attributes:
        host, memory: a buffer per input on either side.
        uploaded: when the copies of the last block are done.
        used: when nothing on the device reads ``memory`` any more.
    """

    host: list[Tensor] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    uploaded: Mark | None = None
    used: Mark | None = None


@dataclass
class _Return:
    """Room for one result on its way back.

    Attributes:
        host: the buffer; the count of infinities and NaN follows the elements.
        on_device: keeps the result's memory while it is copied.
        downloaded: when the copies are done, None when nothing is under way.
        nbytes: size of the result.
        deliver: who waits for it.
    """

    host: Tensor
    on_device: tuple[Tensor, ...] = ()
    downloaded: Mark | None = None
    nbytes: int = 0
    deliver: Deliver | None = None


class StreamedTransport(Transport):
    """A ring of buffers in each direction.

    Args:
        lanes: the thread's own.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.device = lanes.device
        self._lanes = lanes
        self._arrivals = [_Arrival() for _ in range(DEPTH)]
        self._returns = [_Return(lanes.host(COUNT_BYTES)) for _ in range(DEPTH)]
        self._wide: dict[tuple[int, torch.dtype], Tensor] = {}
        self._sent = 0

    def inputs(self, blocks: Iterable[Sequence[Stored]], dtype: torch.dtype) -> Iterator[list[Tensor]]:
        waiting: deque[tuple[Sequence[Stored], _Arrival]] = deque()
        for number, block in enumerate(blocks):
            arrival = self._arrivals[number % DEPTH]
            self._upload(block, arrival)
            waiting.append((block, arrival))
            if len(waiting) == DEPTH:
                yield self._widened(*waiting.popleft(), dtype)
        while waiting:
            yield self._widened(*waiting.popleft(), dtype)

    def _upload(self, block: Sequence[Stored], arrival: _Arrival) -> None:
        if arrival.uploaded is not None:
            self._lanes.synchronize(arrival.uploaded)
        self._make_room(block, arrival)
        for stored, host in zip(block, arrival.host, strict=False):
            stored.fill(host.numpy().data[: stored.nbytes])
        self._lanes.wait(Lane.UP, arrival.used)
        for stored, host, memory in zip(block, arrival.host, arrival.memory, strict=False):
            self._lanes.upload(host[: stored.nbytes], memory[: stored.nbytes])
        arrival.uploaded = self._lanes.mark(Lane.UP)

    def _make_room(self, block: Sequence[Stored], arrival: _Arrival) -> None:
        sizes = [len(host) for host in arrival.host]
        if len(sizes) >= len(block) and all(size >= stored.nbytes for size, stored in zip(sizes, block, strict=False)):
            return
        if arrival.used is not None:
            self._lanes.synchronize(arrival.used)
        arrival.host, arrival.memory = [], []
        arrival.host = [self._lanes.host(stored.nbytes) for stored in block]
        arrival.memory = [self._lanes.memory(stored.nbytes) for stored in block]
        arrival.used = self._lanes.mark(Lane.COMPUTE)

    def _widened(self, block: Sequence[Stored], arrival: _Arrival, dtype: torch.dtype) -> list[Tensor]:
        """The block's inputs on the device; its arrival buffers are free as soon as they are widened."""
        self._lanes.wait(Lane.COMPUTE, arrival.uploaded)
        wide = []
        for slot, (stored, memory) in enumerate(zip(block, arrival.memory, strict=False)):
            narrow = memory[: stored.nbytes].view(torch_dtype(stored.code))
            wide.append(self._wide_buffer(slot, narrow, dtype).copy_(narrow))
        arrival.used = self._lanes.mark(Lane.COMPUTE)
        return wide

    def _wide_buffer(self, slot: int, narrow: Tensor, dtype: torch.dtype) -> Tensor:
        buffer = self._wide.get((slot, dtype))
        if buffer is None or buffer.numel() < narrow.numel():
            buffer = self._wide[slot, dtype] = torch.empty_like(narrow, dtype=dtype)
        return buffer[: narrow.numel()]

    def output(self, merged: Tensor, code: str, deliver: Deliver) -> None:
        flat = merged.detach().reshape(-1).to(self.device)
        result = rounded(flat, torch_dtype(code))
        if result is flat:
            result = flat.clone()  # the method's memory is computed in again while this is downloaded
        result = with_one_nan(result)
        count = torch.isfinite(result).logical_not_().sum().reshape(1)
        data, number = result.view(torch.uint8), count.view(torch.uint8)
        back = self._returns[self._sent % DEPTH]
        self._sent += 1
        self._complete(back)
        if len(back.host) < len(data) + COUNT_BYTES:
            back.host = self._lanes.host(len(data) + COUNT_BYTES)
        self._lanes.wait(Lane.DOWN, self._lanes.mark(Lane.COMPUTE))
        self._lanes.download(data, back.host[: len(data)])
        self._lanes.download(number, back.host[len(data) : len(data) + COUNT_BYTES])
        back.on_device, back.nbytes, back.deliver = (data, number), len(data), deliver
        back.downloaded = self._lanes.mark(Lane.DOWN)

    def _complete(self, back: _Return) -> None:
        """Wait for a result and deliver it, if one is on its way."""
        if back.downloaded is None or back.deliver is None:
            return
        self._lanes.synchronize(back.downloaded)
        deliver, back.deliver, back.downloaded, back.on_device = back.deliver, None, None, ()
        data = back.host.numpy().data
        number = int.from_bytes(data[back.nbytes : back.nbytes + COUNT_BYTES], "little")
        deliver(data[: back.nbytes], number)

    def finish(self) -> None:
        for number in range(self._sent, self._sent + DEPTH):
            self._complete(self._returns[number % DEPTH])

    def settle(self) -> None:
        for arrival in self._arrivals:
            if arrival.uploaded is not None:
                self._lanes.synchronize(arrival.uploaded)
        for back in self._returns:
            if back.downloaded is not None:
                self._lanes.synchronize(back.downloaded)
            back.deliver, back.downloaded, back.on_device = None, None, ()
