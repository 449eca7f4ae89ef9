"""Runs everything in the calling thread: the simplest executor, and the reference."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from merger.executors.base import Executor, Work


class InlineExecutor(Executor):
    """Runs work at once, in order."""

    def submit(self, work: Work) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future
