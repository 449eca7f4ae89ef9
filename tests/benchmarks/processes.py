"""Runs a command and measures it from outside: wall time, CPU time, peak anonymous memory (Linux)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Usage:
    """What one run took.

    Attributes:
        wall: seconds from start to exit.
        cpu: user and system seconds of the process and its children.
        memory: highest sum of anonymous resident bytes over the process and its children.
    """

    wall: float
    cpu: float
    memory: int


def measure(command: Sequence[str], *, cwd: Path, log: Path, environment: dict[str, str] | None = None) -> Usage:
    """Run ``command`` to its end.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=output, env=os.environ | (environment or {}))
        peak = _Peak(process.pid)
        _, status, resources = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    memory = peak.stop()
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}:\n{tail}")
    return Usage(wall, resources.ru_utime + resources.ru_stime, memory)


class _Peak:
    """Watches the anonymous memory of a process and its descendants in a thread."""

    def __init__(self, pid: int) -> None:
        self.pid, self.highest = pid, 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(SAMPLE_SECONDS):
            self.highest = max(self.highest, sum(map(_anonymous_bytes, _family(self.pid))))

    def stop(self) -> int:
        self.ended.set()
        self.thread.join()
        return self.highest


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in found:
            yield from _family(int(child))


def _anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # the process has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, so that the next read comes from disk."""
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: Sequence[Path]) -> None:
    """Read files once, so that the next read comes from the page cache."""
    os.sync()
    buffer = bytearray(1 << 23)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
