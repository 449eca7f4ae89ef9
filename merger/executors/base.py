"""The one loop that runs tasks.  An executor supplies `submit` and the number of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from merger.graph import Task, ordered

Work = Callable[[], Any]
Program = Generator[Sequence[Work], list[Any], None]
"""A task cut into work: yields batches and receives their results in the same order."""

HEARTBEAT_SECONDS = 0.05
AHEAD = 3
"""Tasks per worker that may be under way: enough to overlap, few enough to bound memory."""


@dataclass(frozen=True)
class Finished:
    """One task is complete."""

    task: Task[Any]


class Executor(ABC):
    """Runs tasks in order, several at a time.

    Attributes:
        workers: how many calls run at once.
    """

    workers: int = 1

    @abstractmethod
    def submit(self, work: Work) -> Future[Any]:
        """Run ``work`` now or soon."""

    def close(self) -> None:
        """Wait for running work and release the workers."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        roots: Sequence[Task[Any]],
        *,
        expand: Callable[[Task[Any]], Program | None],
        call: Callable[[Task[Any], dict[str, Any]], Any],
        stop: Event,
    ) -> Iterator[Finished | None]:
        """Run ``roots`` and what they need.

        Args:
            roots: the tasks that must be complete; their values are dropped.
            expand: the program of a task that is cut into work, None for any other task.
            call: executes a task with its arguments' values on the right device.
            stop: set when the run ends, also by an error or by closing the iterator; work in
                progress looks at it between blocks.

        Yields:
            `Finished` for each root, None at least every `HEARTBEAT_SECONDS` while waiting.

        Raises:
            Exception: the first error of any task, after running work has stopped.
        """
        run = _Run(self, roots, expand, call)
        try:
            yield from run.steps()
        finally:
            stop.set()
            run.drop_queued()


@dataclass
class _Running:
    """A task that has begun: its program, the batch under way and the results so far."""

    task: Task[Any]
    program: Program
    results: list[Any] = field(default_factory=list)
    missing: int = 0


class _Run:
    """The state of one `Executor.run`."""

    def __init__(
        self,
        executor: Executor,
        roots: Sequence[Task[Any]],
        expand: Callable[[Task[Any]], Program | None],
        call: Callable[[Task[Any], dict[str, Any]], Any],
    ) -> None:
        self.executor, self.expand, self.call = executor, expand, call
        self.roots = set(roots)
        self.pending = deque(ordered(roots))
        self.uses = Counter(argument for task in self.pending for argument in task.arguments().values())
        self.values: dict[Task[Any], Any] = {}
        self.active: set[Task[Any]] = set()
        self.queue: deque[tuple[_Running, int, Work]] = deque()
        self.futures: dict[Future[Any], tuple[_Running, int]] = {}

    def steps(self) -> Iterator[Finished | None]:
        while True:
            yield from map(Finished, self.start_tasks())
            self.submit_work()
            if not self.futures:
                assert not self.pending, "tasks are left that nothing can start"
                return
            done, _ = wait(self.futures, timeout=HEARTBEAT_SECONDS, return_when=FIRST_COMPLETED)
            yield None
            for future in done:
                running, index = self.futures.pop(future)
                running.results[index] = future.result()
                running.missing -= 1
                if not running.missing and self.advance(running):
                    yield Finished(running.task)

    def start_tasks(self) -> list[Task[Any]]:
        """Begin tasks whose arguments are there; returns roots that are complete at once."""
        complete = []
        while self.pending and len(self.active) < AHEAD * self.executor.workers:
            task = self.pending[0]
            if any(argument not in self.values for argument in task.arguments().values()):
                break
            self.pending.popleft()
            self.active.add(task)
            running = _Running(task, self.expand(task) or self.whole(task))
            if self.advance(running, first=True):
                complete.append(task)
        return complete

    def whole(self, task: Task[Any]) -> Program:
        """A program of one call, for a task that is not cut."""
        values = {name: self.values[argument] for name, argument in task.arguments().items()}
        (value,) = yield [lambda: self.call(task, values)]
        values.clear()
        if self.uses[task]:
            self.values[task] = value

    def advance(self, running: _Running, *, first: bool = False) -> bool:
        """Take the next batch of a program; True when a root is complete."""
        batch: Sequence[Work] = ()
        while not batch:
            try:
                batch = next(running.program) if first else running.program.send(running.results)
            except StopIteration:
                return self.complete(running.task)
            first, running.results = False, [None] * len(batch)
        running.missing = len(batch)
        self.queue.extend((running, index, work) for index, work in enumerate(batch))
        return False

    def complete(self, task: Task[Any]) -> bool:
        self.active.discard(task)
        for argument in task.arguments().values():
            self.uses[argument] -= 1
            if not self.uses[argument]:
                self.values.pop(argument, None)
        return task in self.roots

    def submit_work(self) -> None:
        while self.queue and len(self.futures) < 2 * self.executor.workers:
            running, index, work = self.queue.popleft()
            self.futures[self.executor.submit(work)] = (running, index)

    def drop_queued(self) -> None:
        """Nothing new starts; what runs is waited for, so that no thread outlives the run."""
        self.queue.clear()
        for future in self.futures:
            future.cancel()
        wait(self.futures)
