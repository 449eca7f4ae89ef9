"""The threads that take jobs from the queue, run them and write down what happens."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from merger.errors import Cancelled, MergerError, Problem
from merger.jobs.database import JobTable
from merger.jobs.folder import JobFolder
from merger.jobs.outputs import describe
from merger.jobs.records import Job, Progress
from merger.jobs.runs import Killed, Run
from merger.jobs.scrub import Scrubber

WRITE_INTERVAL = 0.25
"""Seconds between two writes of a job's progress."""

RETRY_SECONDS = 1.0
"""Pause before the queue is looked at again after the database failed."""

INTERRUPTED = Problem(
    "The merge was stopped before it was done.", hint="Resume goes on from where it stopped.", level="warning"
)

_log = logging.getLogger(__name__)


class Attempt:
    """What cancelling and shutdown hold of a job that runs, even before its run exists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._stopped = False

    def stopped(self) -> bool:
        return self._stopped

    def begin(self, run: Run) -> Run:
        with self._lock:
            self._run = run
            if self._stopped:
                run.stop()
        return run

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._run is not None:
                self._run.stop()


class Supervisor:
    """Runs queued jobs, at most ``concurrency`` at a time.

    Args:
        table: where jobs are read and written.
        folder_of: the folder of a job.
        launch: makes the run for a job; may take seconds and may raise `MergerError`.
    """

    def __init__(
        self,
        table: JobTable,
        folder_of: Callable[[str], JobFolder],
        launch: Callable[[Job, JobFolder], Run],
        concurrency: int,
    ) -> None:
        self._table = table
        self._folder_of = folder_of
        self._launch = launch
        self._attempts: dict[str, Attempt] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"merge-{number}", daemon=True) for number in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Say that a job may be waiting."""
        with self._changed:
            self._changed.notify()

    def stop(self, job_id: str) -> None:
        """End the run of a job, if it has one."""
        with self._changed:
            attempt = self._attempts.get(job_id)
        if attempt is not None:
            attempt.stop()

    def shutdown(self, timeout: float) -> None:
        """End all runs and threads; the jobs become ``interrupted``."""
        with self._changed:
            self._closing = True
            attempts = list(self._attempts.values())
            self._changed.notify_all()
        for attempt in attempts:
            attempt.stop()
        for thread in self._threads:
            thread.join(timeout)

    def _work(self) -> None:
        while not self._closing:
            try:
                claimed = self._next()
                if claimed is not None:
                    self._run(*claimed)
            except Exception:
                # The database or the disk failed; a job that this hits is called interrupted at the next start.
                _log.exception("The list of merges could not be read or written.")
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)

    def _next(self) -> tuple[Job, Attempt] | None:
        with self._changed:
            while not self._closing:
                job = self._table.claim(time.time())
                if job is not None:
                    self._attempts[job.id] = attempt = Attempt()
                    return job, attempt
                self._changed.wait()
        return None

    def _run(self, job: Job, attempt: Attempt) -> None:
        folder = self._folder_of(job.id)
        scrub = Scrubber.for_recipe(job.recipe, folder.output, folder.path)
        try:
            self._merge(job, attempt, scrub)
        except Killed as error:
            self._settle(job.id, "interrupted", error.problems, scrub)
        except Cancelled:
            self._settle(job.id, "interrupted", (INTERRUPTED,), scrub)
        except MergerError as error:
            self._settle(job.id, "failed", error.problems, scrub)
        except Exception as error:
            _log.exception("The merge %s failed.", job.id)
            reason = f"The merge stopped because of an internal error ({type(error).__name__}: {error})."
            self._settle(job.id, "failed", (Problem(reason, hint="Resume tries again."),), scrub)
        finally:
            with self._changed:
                del self._attempts[job.id]

    def _merge(self, job: Job, attempt: Attempt, scrub: Scrubber) -> None:
        folder = self._folder_of(job.id)
        folder.create(job.recipe)
        recorder = _Recorder(self._table, job, scrub)
        # The output appears by one rename, so where it stands only its checksums can be missing.
        if not folder.output.exists():
            run = attempt.begin(self._launch(job, folder))
            try:
                with contextlib.closing(run.events()) as events:
                    for event in events:
                        recorder.record(event)
            finally:
                recorder.write()
        files = describe(folder.output, attempt.stopped)
        with self._table.transaction():
            self._table.replace_files(job.id, files)
            size = sum(file.size for file in files)
            self._table.move(job.id, ("running", "cancelling"), state="verified", finished=time.time(), size=size)

    def _settle(self, job_id: str, state: str, problems: tuple[Problem, ...], scrub: Scrubber) -> None:
        """Write how a run ended; a run that was being cancelled is cancelled, however it ended."""
        now = time.time()
        if self._table.move(job_id, ("cancelling",), state="cancelled", finished=now, problems=()):
            return
        told = tuple(Problem(scrub(p.message), scrub(p.where), scrub(p.hint), p.level) for p in problems)
        self._table.move(job_id, ("running",), state=state, finished=now, problems=told)


class _Recorder:
    """Stores the events of one run, at most four times a second."""

    def __init__(self, table: JobTable, job: Job, scrub: Scrubber) -> None:
        self._table = table
        self._id = job.id
        self._scrub = scrub
        self._progress = Progress()
        self._event: dict[str, Any] | None = None
        self._result: dict[str, Any] = {}
        self._written = 0.0

    def record(self, event: dict[str, Any]) -> None:
        self._progress = self._progress.after(event)
        self._event = event
        if event["event"] == "Planned":
            self.write(plan=self._scrub.values(event))
        elif event["event"] in ("Verified", "Merged"):
            self._result.update({name: event[name] for name in event if name not in ("event", "path", "bytes_out")})
            self.write(result=self._scrub.values(self._result))
        elif time.monotonic() - self._written >= WRITE_INTERVAL:
            self.write()

    def write(self, **more: Any) -> None:
        """Store where the run stands now."""
        self._written = time.monotonic()
        event = self._scrub.values(self._event)
        self._table.move(self._id, ("running", "cancelling"), event=event, progress=self._progress, **more)
