"""The door to background merges: `JobStore`."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from merger.errors import UserError
from merger.jobs.access import DownloadSigner, new_job_id, owner_hash
from merger.jobs.database import JobTable
from merger.jobs.folder import DATABASE, JobFolder, hold, prepare_data_dir
from merger.jobs.launch import Launcher, storable
from merger.jobs.outputs import OutputFile, open_beneath
from merger.jobs.records import ACTIVE, RESUMABLE, Job, JobNotFound, Progress, clean_name
from merger.jobs.runs import ENGINE_COMMAND
from merger.jobs.supervisor import Supervisor
from merger.jobs.upkeep import Housekeeper, recover
from merger.policy import Policy
from merger.recipe import Recipe, RunOptions

_MAX_RECIPE_BYTES = 256 * 1024


class JobStore:
    """Merges in the background, kept in SQLite beside their outputs.

    One process at a time may use a folder.  Every method may be called from any thread.  A
    job that does not exist and a job of someone else give the same `JobNotFound`.

    Args:
        data_dir: folder for the database and all outputs; made private to this user.
        command: program that merges; recipe, output and run options are appended.
        small_bytes: merges that read and write fewer bytes than this run in a thread of this
            process; 0 sends all of them to a child process.
        concurrency: merges that run at the same time.
        grace: seconds that a child has between being asked to stop and being killed; the journal
            survives either.
        keep_hours: how long an ended job keeps its files; None keeps them until deleted.
        max_unfinished: jobs that may wait and run at the same time.
        policy: what may be merged; everything when left out.

    Raises:
        OutputError: the folder cannot be used, or another process uses it.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        small_bytes: int = 200_000_000,
        concurrency: int = 1,
        grace: float = 0.8,
        keep_hours: float | None = None,
        max_unfinished: int = 32,
        policy: Policy | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).expanduser().resolve()
        self._keep_seconds = None if keep_hours is None else keep_hours * 3600
        self._max_unfinished = max_unfinished
        self._signer = DownloadSigner()
        launcher = Launcher(tuple(command), small_bytes, grace, policy or Policy())
        prepare_data_dir(self.data_dir)
        with contextlib.ExitStack() as stack:
            stack.callback(hold(self.data_dir).close)
            self._table = JobTable(self.data_dir / DATABASE)
            stack.callback(self._table.close)
            recover(self._table, self.data_dir)
            self._supervisor = Supervisor(self._table, self._folder, launcher, concurrency)
            stack.callback(self._supervisor.shutdown, grace + 3)
            if self._keep_seconds is not None:
                stack.callback(Housekeeper(self._table, self.data_dir, self._keep_seconds).close)
            self._resources = stack.pop_all()
        atexit.register(self.shutdown)

    def submit(self, recipe: Recipe | str, owner: str, name: str = "merge", options: RunOptions | None = None) -> Job:
        """Queue a merge.

        Args:
            recipe: the recipe or its YAML; the text is checked when its turn comes.
            owner: the secret from `new_owner`, or the name that a sign-in vouches for.
            name: what its owner calls it.
            options: how to run: device, workers, shard size and strictness; the rest is decided here.

        Raises:
            UserError: the owner is empty, the recipe is huge, or too many jobs wait.
        """
        text = _storable_text(recipe if isinstance(recipe, str) else recipe.to_yaml())
        if len(text.encode()) > _MAX_RECIPE_BYTES:
            raise UserError("The recipe is larger than 256 KB.", hint="Use fewer filters.")
        job_id = new_job_id()
        job = Job(
            id=job_id,
            name=clean_name(name),
            state="queued",
            created=time.time(),
            recipe=text,
            output=self._folder(job_id).relative_output,
            options=storable(options or RunOptions()),
        )
        with self._table.transaction():
            if len(self._table.in_states(ACTIVE)) >= self._max_unfinished:
                raise UserError("Too many merges are waiting.", hint="Try again when some are done.")
            self._table.insert(job, owner_hash(owner))
        self._supervisor.wake()
        return job

    def get(self, job_id: str) -> Job | None:
        """The job as it stands; its id alone is enough to read its status."""
        return self._table.get(_storable_text(job_id))

    def list(self, owner: str) -> Sequence[Job]:
        """All jobs of an owner, newest first."""
        return self._table.of_owner(owner_hash(owner)) if owner else []

    def owns(self, job_id: str, owner: str) -> bool:
        """Whether the job exists and belongs to this owner."""
        return bool(owner) and self._table.owned(_storable_text(job_id), owner_hash(owner)) is not None

    def ahead(self, job_id: str) -> int:
        """How many unfinished jobs come before this one."""
        waiting = [job.id for job in self._table.in_states(ACTIVE)]
        return waiting.index(job_id) if job_id in waiting else 0

    def cancel(self, job_id: str, owner: str) -> Job:
        """Stop a job; what it has written is kept for `resume`.  Ended jobs stay as they are."""
        self._require(job_id, owner)
        if not self._table.move(job_id, ("queued",), state="cancelled", finished=time.time()):
            self._table.move(job_id, ("running",), state="cancelling")
            self._supervisor.stop(job_id)
        return self._require(job_id, owner)

    def resume(self, job_id: str, owner: str) -> Job:
        """Queue a cancelled, interrupted, failed or expired job again; others stay as they are."""
        self._require(job_id, owner)
        fresh: dict[str, Any] = {"progress": Progress(), "problems": (), "event": None, "result": None}
        self._table.move(job_id, RESUMABLE, state="queued", started=None, finished=None, **fresh)
        self._supervisor.wake()
        return self._require(job_id, owner)

    def delete(self, job_id: str, owner: str) -> None:
        """Forget a job and delete its files.

        Raises:
            UserError: the job still runs.
        """
        job = self._require(job_id, owner)
        with self._table.transaction():
            if not self._table.move(job_id, ("queued", "verified", *RESUMABLE), state="expired"):
                raise UserError(f"'{job.name}' is still running.", hint="Cancel it first.")
            trash = self._folder(job_id).discard()
            self._table.delete(job_id)
        if trash is not None:
            shutil.rmtree(trash)

    def kept_until(self, job: Job) -> float | None:
        """When the files of an ended job will be deleted, in seconds since 1970."""
        if self._keep_seconds is None or job.finished is None or job.state == "expired":
            return None
        return job.finished + self._keep_seconds

    def output_path(self, job_id: str) -> Path:
        """The folder of a finished output.

        Raises:
            JobNotFound: the job is missing or not finished.
        """
        job = self.get(job_id)
        if job is None or job.state != "verified":
            raise JobNotFound
        return self._folder(job_id).output

    def files(self, job_id: str) -> Sequence[tuple[str, int]]:
        """Relative name and size of every file of a finished output; empty before."""
        return [(file.name, file.size) for file in self._table.files(job_id)]

    def sign_download(self, job_id: str, owner: str, file: str | None, seconds: float = 3600) -> tuple[int, str]:
        """A time (seconds since 1970) and a token that open one file, or all of them for None, until then.

        Raises:
            JobNotFound: also when the job is someone else's.
        """
        self._require(job_id, owner)
        expires = int(time.time() + seconds)
        return expires, self._signer.sign(job_id, file, expires)

    def check_download(self, job_id: str, file: str | None, expires: int, token: str) -> Sequence[OutputFile]:
        """The files that a signed link opens.

        Raises:
            JobNotFound: the link is wrong or too old, or the job or file is missing.
        """
        if not self._signer.check(job_id, file, expires, token):
            raise JobNotFound
        self.output_path(job_id)
        files = [entry for entry in self._table.files(job_id) if file in (None, entry.name)]
        if not files:
            raise JobNotFound
        return files

    def open_file(self, job_id: str, file: OutputFile) -> io.FileIO:
        """Open a file of a finished output for reading.

        Raises:
            JobNotFound: it is gone, or no longer what was verified.
        """
        try:
            opened = open_beneath(self.output_path(job_id), file.name)
        except OSError as error:
            raise JobNotFound from error
        status = os.fstat(opened.fileno())
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            opened.close()
            raise JobNotFound
        return opened

    def shutdown(self) -> None:
        """Stop what runs (it becomes ``interrupted``) and let go of the folder."""
        atexit.unregister(self.shutdown)
        self._resources.close()

    def _require(self, job_id: str, owner: str) -> Job:
        job = self._table.owned(_storable_text(job_id), owner_hash(owner)) if owner else None
        if job is None:
            raise JobNotFound
        return job

    def _folder(self, job_id: str) -> JobFolder:
        return JobFolder(self.data_dir, job_id)


def _storable_text(text: str) -> str:
    """The text without half characters, which requests can carry and databases refuse."""
    return text.encode("utf-8", "replace").decode("utf-8")
