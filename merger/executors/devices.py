"""Runs work in one set of threads per device; each thread stays on its device."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from merger.devices import Device, bind
from merger.executors.base import Executor, Work


class DeviceExecutor(Executor):
    """Threads that take turns in belonging to the devices, and take work when they are free.

    Args:
        devices: where work is computed, at least one.
        workers: number of threads; every device gets at least one.
    """

    def __init__(self, devices: Sequence[Device], workers: int) -> None:
        self.workers = max(workers, len(devices))
        self._turns = itertools.cycle(devices)
        self._bound = threading.local()
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="merge")

    def submit(self, work: Work) -> Future[Any]:
        return self._pool.submit(self._on_device, work)

    def _on_device(self, work: Work) -> Any:
        """Run work in a thread that chooses its device the first time."""
        if not hasattr(self._bound, "device"):
            device = next(self._turns)
            bind(device)
            self._bound.device = device
        return work()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
