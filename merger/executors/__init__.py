"""Ways to run tasks: one loop, and executors that only supply ``submit``."""

from __future__ import annotations

from collections.abc import Sequence

from merger.devices import Device, Processor
from merger.executors.base import Executor, Finished
from merger.executors.devices import DeviceExecutor
from merger.executors.inline import InlineExecutor
from merger.executors.threads import ThreadExecutor

__all__ = ["DeviceExecutor", "Executor", "Finished", "InlineExecutor", "ThreadExecutor", "make_executor"]

THREADS_PER_DEVICE = 4
"""More would wait for each other's turn on the device."""


def make_executor(workers: int, devices: Sequence[Device] = ()) -> Executor:
    """The executor of a run.

    Args:
        workers: number of threads; 0 runs everything in the calling thread, for small work and for debugging.
        devices: where the threads compute; the processor when left out.
    """
    if all(isinstance(device, Processor) for device in devices):
        return ThreadExecutor(workers) if workers else InlineExecutor()
    return DeviceExecutor(devices, min(workers, THREADS_PER_DEVICE * len(devices)))
