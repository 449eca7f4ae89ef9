"""Runs a command and measures it from outside: time, processor time, memory, disk reads (Linux)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.02
PIECE = 1 << 23


@dataclass(frozen=True)
class Usage:
    """What one run took.

    Attributes:
        wall: seconds from start to exit.
        cpu: user and system seconds of the process and its children.
        memory: highest sum of anonymous resident bytes over the process and its children, sampled every 20 ms.
        resident: highest sum of the resident bytes that the kernel recorded (VmHWM), mapped files included.
        disk: bytes that came from disk and not from the page cache.
    """

    wall: float
    cpu: float
    memory: int
    resident: int
    disk: int


def measure(command: Sequence[str], *, cwd: Path, log: Path, environment: Mapping[str, str] | None = None) -> Usage:
    """Run ``command`` to its end; what it prints goes to ``log``.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=cwd, stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
        peak = _Peak(process.pid)
        _, status, resources = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    peak.stop()
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}:\n{tail}")
    cpu = resources.ru_utime + resources.ru_stime
    return Usage(wall, cpu, peak.anonymous, peak.resident, resources.ru_inblock * 512)


class _Peak:
    """Watches the memory of a process and its descendants in a thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.anonymous = self.resident = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(SAMPLE_SECONDS):
            sizes = [_sizes(pid) for pid in _family(self.pid)]
            self.anonymous = max(self.anonymous, sum(size.get("RssAnon", 0) for size in sizes))
            self.resident = max(self.resident, sum(size.get("VmHWM", 0) for size in sizes))

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in found:
            yield from _family(int(child))


def _sizes(pid: int) -> dict[str, int]:
    """The sizes in a process's status in bytes, by their names there; none when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    fields = (line.split() for line in status.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, so that the next read comes from disk."""
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: Sequence[Path]) -> None:
    """Read files once, so that the next read comes from the page cache."""
    os.sync()
    read_plainly(files)


def read_plainly(files: Sequence[Path], most: int | None = None) -> int:
    """Read files one after the other into one buffer, and no more bytes than ``most``.

    Returns:
        The number of bytes that were read.
    """
    buffer = memoryview(bytearray(PIECE))
    done = 0
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while count := opened.readinto(buffer[: PIECE if most is None else min(PIECE, most - done)]) or 0:
                done += count
    return done


def write_plainly(file: Path, size: int) -> None:
    """Write that many bytes from one buffer and wait until the disk has them."""
    buffer = memoryview(os.urandom(PIECE))
    with file.open("wb", buffering=0) as opened:
        for start in range(0, size, PIECE):
            opened.write(buffer[: min(PIECE, size - start)])
        os.fsync(opened.fileno())
