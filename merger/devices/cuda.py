"""NVIDIA (and ROCm) GPUs: pinned memory, a stream for each direction, and one that computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from merger.devices.base import Device
from merger.devices.streamed import Lane, Lanes, Mark, StreamedTransport


class CudaDevice(Device):
    """One GPU.

    Args:
        index: its number, as torch counts.
    """

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"

    def transport(self) -> StreamedTransport:
        return StreamedTransport(CudaLanes(self.name))


class CudaLanes(Lanes):
    """Three streams of the calling thread, whose torch operations go to the one that computes."""

    def __init__(self, device: str) -> None:
        self.device = device
        torch.cuda.set_device(device)
        new_stream: Callable[[str], torch.cuda.Stream] = torch.cuda.Stream
        self._streams = {lane: new_stream(device) for lane in Lane}
        torch.cuda.set_stream(self._streams[Lane.COMPUTE])

    def host(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def upload(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._streams[Lane.UP]):
            target.copy_(source, non_blocking=True)

    def download(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._streams[Lane.DOWN]):
            target.copy_(source, non_blocking=True)

    def mark(self, lane: Lane) -> Mark:
        return self._streams[lane].record_event()

    def wait(self, lane: Lane, mark: Mark) -> None:
        self._streams[lane].wait_event(mark)

    def synchronize(self, mark: Mark) -> None:
        mark.synchronize()
