"""The processor itself: blocks are where they are needed, so nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from merger.devices.base import Deliver, Device, Stored, Transport
from merger.ops.convert import stored_result, view_bytes
from merger.ops.scratch import held_bytes


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


def widened(stored: Stored, slot: int, dtype: torch.dtype) -> Tensor:
    """The elements, flat, widened to ``dtype``.

    The result lives in the thread's buffer number ``slot`` and is valid until that is used again.
    """
    narrow = as_stored(stored, slot)
    if narrow.dtype == dtype:
        return narrow
    memory = held_bytes(f"wide {slot}", narrow.numel() * dtype.itemsize)
    return torch.from_numpy(memory).view(dtype).copy_(narrow)


def as_stored(stored: Stored, slot: int) -> Tensor:
    """The elements, flat, in their own type, in the thread's buffer number ``slot``."""
    raw = held_bytes(f"stored {slot}", stored.nbytes).data
    stored.fill(raw)
    return view_bytes(raw, stored.code)
