"""Ways to run tasks: one loop, and executors that only supply ``submit``."""

from merger.executors.base import Executor, Finished
from merger.executors.inline import InlineExecutor
from merger.executors.threads import ThreadExecutor

__all__ = ["Executor", "Finished", "InlineExecutor", "ThreadExecutor", "make_executor"]


def make_executor(workers: int) -> Executor:
    """Threads, or everything in the calling thread when ``workers`` is 0 (for debugging)."""
    return ThreadExecutor(workers) if workers else InlineExecutor()
