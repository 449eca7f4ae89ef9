"""Where one job's files lie; every place is derived from the job's id."""

from __future__ import annotations

import fcntl
import io
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from merger.errors import OutputError

DATABASE = "jobs.sqlite3"


@dataclass(frozen=True)
class JobFolder:
    """The places of one job below the store's folder."""

    data_dir: Path
    id: str

    @property
    def path(self) -> Path:
        return self.data_dir / "jobs" / self.id

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def log(self) -> Path:
        """Whatever the child process says beside its events."""
        return self.path / "log.txt"

    @property
    def pid(self) -> Path:
        """Names the running child, so that a restarted server can end an orphan."""
        return self.path / "pid"

    @property
    def output(self) -> Path:
        return self.path / "model"

    @property
    def partial(self) -> Path:
        """Where the engine keeps an unfinished output and its journal."""
        return self.path / ".model.partial"

    @property
    def relative_output(self) -> str:
        return self.output.relative_to(self.data_dir).as_posix()

    def create(self, recipe: str) -> None:
        """Make the folder, for this user only, and put the recipe in it."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        with open(self.recipe, "w", encoding="utf-8", opener=open_private) as file:
            file.write(recipe)

    def discard(self) -> Path | None:
        """Move the folder aside in one step; what is returned can be deleted at leisure."""
        trash = self.data_dir / "trash" / f"{self.id}.{secrets.token_hex(4)}"
        try:
            self.path.rename(trash)
        except FileNotFoundError:
            return None
        return trash


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for files that only this user may read."""
    return os.open(path, flags, 0o600)


def prepare_data_dir(data_dir: Path) -> None:
    """Make the store's folder private and give it its subfolders.

    Raises:
        OutputError: it holds other things, or cannot be made.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(data_dir.iterdir()) and not (data_dir / DATABASE).exists():
            raise OutputError(
                "The folder for merges already holds other files.",
                where=str(data_dir),
                hint="Choose an empty folder or one that does not exist yet.",
            )
        data_dir.chmod(0o700)
        for name in ("jobs", "trash"):
            (data_dir / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"The folder for merges cannot be used ({error.strerror}).",
            where=str(data_dir),
            hint="Choose a folder that you may write to.",
        ) from error


def empty_trash(data_dir: Path) -> None:
    """Delete what an earlier run moved aside and did not finish deleting."""
    for folder in (data_dir / "trash").iterdir():
        shutil.rmtree(folder)


def hold(data_dir: Path) -> io.FileIO:
    """Keep the folder for this process; closing what is returned, or ending, lets go of it.

    Raises:
        OutputError: another process has it.
    """
    guard = io.FileIO(os.fspath(data_dir / "lock"), "w", opener=open_private)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        guard.close()
        raise OutputError(
            "Another Mixdesk already uses this folder for merges.",
            where=str(data_dir),
            hint="Stop it, or give this one another folder with --data DIR.",
        ) from error
    return guard
