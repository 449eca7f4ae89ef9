"""Finding the child process that a crashed server left running."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from merger.jobs.folder import open_private


def remember_child(file: Path, pid: int) -> None:
    """Note who the child is, so that `end_orphan` can find it after a crash of this process."""
    with open(file, "w", encoding="ascii", opener=open_private) as handle:
        handle.write(f"{pid} {_start_time(pid)}")


def end_orphan(file: Path) -> None:
    """Kill the child that a crashed server left running, if it still is the same process."""
    if not file.exists():
        return
    pid, _, started = file.read_text(encoding="ascii").partition(" ")
    if started and started == _start_time(int(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)
    file.unlink()


def _start_time(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty when there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return status.rpartition(")")[2].split()[19]
