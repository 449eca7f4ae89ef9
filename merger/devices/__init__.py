"""Where blocks are computed, and how they get there and back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from merger.devices.base import Deliver, Device, Stored, Transport
from merger.devices.cuda import CudaDevice
from merger.devices.moving import moved
from merger.devices.processor import Processor, as_stored, widened
from merger.errors import UserError

__all__ = [
    "Deliver",
    "Device",
    "Processor",
    "Stored",
    "Transport",
    "as_stored",
    "bind",
    "find_devices",
    "moved",
    "transport",
    "widened",
]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.transport: Transport = Processor().transport()


_thread = _Thread()


def bind(device: Device) -> None:
    """Let the calling thread compute on a device from now on."""
    _thread.transport = device.transport()


def transport() -> Transport:
    """The calling thread's transport; the processor's where it was not bound to another device."""
    return _thread.transport


def find_devices(wanted: str) -> Sequence[Device]:
    """The devices that a run option names, at least one.

    Args:
        wanted: ``cpu``, ``cuda`` (the first GPU), ``cuda:N``, ``cuda:all``, or ``auto``: the first GPU,
            or the processor where there is none.

    Raises:
        UserError: there is no such GPU.
    """
    count = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return [Processor()]
    if not count:
        raise UserError("no CUDA device was found", where="device", hint="Use --device cpu, or auto.")
    if wanted == "cuda:all":
        return [CudaDevice(index) for index in range(count)]
    index = int(wanted.partition(":")[2] or 0)
    if index >= count:
        known = ", ".join(f"cuda:{number}" for number in range(count))
        raise UserError(f"there is no GPU number {index}", where="device", hint=f"Known: {known}.")
    return [CudaDevice(index)]
