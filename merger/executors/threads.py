"""Runs work in threads.  Tensor operations release the interpreter lock, so threads suffice."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from merger.executors.base import Executor, Work


class ThreadExecutor(Executor):
    """A fixed set of worker threads.

    Args:
        workers: number of threads, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="merge")

    def submit(self, work: Work) -> Future[Any]:
        return self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
