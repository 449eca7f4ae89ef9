"""Keeping the store tidy: after a crash, and when outputs have been kept long enough."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from pathlib import Path

from merger.jobs.database import JobTable
from merger.jobs.folder import JobFolder, empty_trash
from merger.jobs.orphans import end_orphan
from merger.jobs.records import Job
from merger.jobs.supervisor import INTERRUPTED

_LONGEST_PAUSE = 600.0

_log = logging.getLogger(__name__)


def recover(table: JobTable, data_dir: Path) -> None:
    """Put right what a crash of an earlier process left behind."""
    for job in table.in_states(("running", "cancelling")):
        end_orphan(JobFolder(data_dir, job.id).pid)
        now = time.time()
        if not table.move(job.id, ("cancelling",), state="cancelled", finished=now):
            table.move(job.id, ("running",), state="interrupted", finished=now, problems=(INTERRUPTED,))
    empty_trash(data_dir)


class Housekeeper:
    """Deletes the files of jobs that ended longer than ``keep_seconds`` ago; the entry stays as ``expired``."""

    def __init__(self, table: JobTable, data_dir: Path, keep_seconds: float) -> None:
        self._table = table
        self._data_dir = data_dir
        self._keep_seconds = keep_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="merge-housekeeping", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def tidy(self) -> None:
        """Look once for outputs that are too old."""
        oldest = time.time() - self._keep_seconds
        for job in self._table.in_states(("verified", "cancelled", "interrupted", "failed")):
            if job.finished is not None and job.finished < oldest:
                self._expire(job)

    def _expire(self, job: Job) -> None:
        with self._table.transaction():
            if not self._table.move(job.id, (job.state,), state="expired"):
                return
            self._table.replace_files(job.id, ())
            trash = JobFolder(self._data_dir, job.id).discard()
        if trash is not None:
            shutil.rmtree(trash)

    def _work(self) -> None:
        while not self._closing.wait(min(_LONGEST_PAUSE, max(0.2, self._keep_seconds / 10))):
            try:
                self.tidy()
            except (OSError, sqlite3.Error):
                _log.exception("Old outputs could not be deleted; the next round tries again.")
