"""The table of jobs in SQLite: one connection, one lock, a versioned schema."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from merger.errors import OutputError, Problem
from merger.jobs.outputs import OutputFile
from merger.jobs.records import Job, Progress, State

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, owner_hash TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
        created REAL NOT NULL, started REAL, finished REAL,
        recipe TEXT NOT NULL, output TEXT NOT NULL, options TEXT NOT NULL,
        plan TEXT, result TEXT, event TEXT, progress TEXT NOT NULL, problems TEXT NOT NULL, size INTEGER
    );
    CREATE INDEX jobs_by_owner ON jobs (owner_hash, created);
    CREATE INDEX jobs_by_state ON jobs (state, created);
    CREATE TABLE files (
        job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, name TEXT NOT NULL,
        size INTEGER NOT NULL, crc32 INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, PRIMARY KEY (job, name)
    );
    """,
)
"""Script number n brings a database from version n to version n + 1; add, never edit."""

_JSON_COLUMNS = ("options", "plan", "result", "event", "progress", "problems")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database to the current version, one whole step at a time.

    Raises:
        OutputError: a newer version of the program has written it.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise OutputError(
            "The list of merges was written by a newer version of Mixdesk.",
            hint="Update Mixdesk or choose another folder for merges.",
        )
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(f"BEGIN; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")


class JobTable:
    """Reads and writes jobs.  Every method is safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        try:
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            migrate(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens together or not at all, and alone."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def insert(self, job: Job, owner_hash: str) -> None:
        columns = {**_columns(_fields(job)), "owner_hash": owner_hash}
        marks = ", ".join(f":{name}" for name in columns)
        self._execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", columns)

    def get(self, job_id: str) -> Job | None:
        return next(self._jobs("id = ?", job_id), None)

    def owned(self, job_id: str, owner_hash: str) -> Job | None:
        return next(self._jobs("id = ? AND owner_hash = ?", job_id, owner_hash), None)

    def of_owner(self, owner_hash: str) -> list[Job]:
        """Newest first."""
        return list(self._jobs("owner_hash = ? ORDER BY created DESC, rowid DESC", owner_hash))

    def in_states(self, states: Sequence[State]) -> list[Job]:
        """Oldest first."""
        return list(self._jobs(f"state IN ({_marks(states)}) ORDER BY created, rowid", *states))

    def claim(self, now: float) -> Job | None:
        """Take the job that has waited longest and mark it running."""
        with self.transaction():
            job = next(self._jobs("state = 'queued' ORDER BY created, rowid LIMIT 1"), None)
            if job is None:
                return None
            self.move(job.id, ("queued",), state="running", started=now)
            return self.get(job.id)

    def move(self, job_id: str, states: Sequence[State], **changes: Any) -> bool:
        """Change columns of a job if it is in one of ``states``; whether it was."""
        columns = _columns(changes)
        assignments = ", ".join(f"{name} = ?" for name in columns)
        command = f"UPDATE jobs SET {assignments} WHERE id = ? AND state IN ({_marks(states)})"
        return self._execute(command, (*columns.values(), job_id, *states)).rowcount == 1

    def delete(self, job_id: str) -> None:
        self._execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def files(self, job_id: str) -> tuple[OutputFile, ...]:
        rows = self._rows("SELECT name, size, crc32, mtime_ns FROM files WHERE job = ? ORDER BY name", job_id)
        return tuple(OutputFile(**dict(row)) for row in rows)

    def replace_files(self, job_id: str, files: Sequence[OutputFile]) -> None:
        self._execute("DELETE FROM files WHERE job = ?", (job_id,))
        for file in files:
            self._execute(
                "INSERT INTO files (job, name, size, crc32, mtime_ns) VALUES (?, ?, ?, ?, ?)",
                (job_id, file.name, file.size, file.crc32, file.mtime_ns),
            )

    def _jobs(self, condition: str, *values: Any) -> Iterator[Job]:
        return map(_job, self._rows(f"SELECT * FROM jobs WHERE {condition}", *values))

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _execute(self, command: str, values: Sequence[Any] | Mapping[str, Any]) -> sqlite3.Cursor:
        with self._lock:
            return self._connection.execute(command, values)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _fields(job: Job) -> dict[str, Any]:
    return {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(value, default=dataclasses.asdict) if name in _JSON_COLUMNS and value is not None else value
        for name, value in values.items()
    }


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    del values["owner_hash"]
    for name in _JSON_COLUMNS:
        if values[name] is not None:
            values[name] = json.loads(values[name])
    values["progress"] = Progress(**values["progress"])
    values["problems"] = tuple(Problem(**problem) for problem in values["problems"])
    return Job(**values)
