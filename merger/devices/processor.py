"""The processor itself: blocks are where they are needed, so nothing is copied."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from merger.devices.base import Deliver, Device, Stored, Transport
from merger.ops.convert import stored_result, view_bytes


class Processor(Device):
    """The processor and its memory."""

    name = "cpu"

    def transport(self) -> ProcessorTransport:
        return ProcessorTransport()


class ProcessorTransport(Transport):
    """Reads into the thread's buffers and hands results over at once."""

    device = "cpu"

    def inputs(self, blocks: Iterable[Sequence[Stored]], dtype: torch.dtype) -> Iterator[list[Tensor]]:
        for block in blocks:
            yield [widened(stored, slot, dtype) for slot, stored in enumerate(block)]

    def output(self, merged: Tensor, code: str, deliver: Deliver) -> None:
        deliver(*stored_result(merged, code))


class _Buffers(threading.local):
    """One thread's buffers, reused from block to block: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self.raw: dict[int, bytearray] = {}
        self.wide: dict[tuple[int, torch.dtype], Tensor] = {}

    def raw_buffer(self, slot: int, size: int) -> memoryview:
        if len(self.raw.get(slot, b"")) < size:
            self.raw[slot] = bytearray(size)
        return memoryview(self.raw[slot])[:size]

    def wide_buffer(self, slot: int, size: int, dtype: torch.dtype) -> Tensor:
        buffer = self.wide.get((slot, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self.wide[slot, dtype] = torch.empty(size, dtype=dtype)
        return buffer[:size]


_buffers = _Buffers()


def widened(stored: Stored, slot: int, dtype: torch.dtype) -> Tensor:
    """The elements, flat, widened to ``dtype``.

    The result lives in the thread's buffer number ``slot`` and is valid until that is used again.
    """
    raw = _buffers.raw_buffer(slot, stored.nbytes)
    stored.fill(raw)
    narrow = view_bytes(raw, stored.code)
    return narrow if narrow.dtype == dtype else _buffers.wide_buffer(slot, narrow.numel(), dtype).copy_(narrow)
