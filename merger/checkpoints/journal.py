"""The record of what an output folder already holds; it survives a kill at any moment.

One JSON text per line: first what is being made, then each finished span.  A line is
written with a single call after the span's bytes, so a torn line can only be the last one.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from merger.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows: two merges into one place are not noticed there.
    _lock_functions = None
else:
    _lock_functions = fcntl

JOURNAL_FILE = ".mixdesk-journal"


class SpanRecord(NamedTuple):
    """A finished span of an output tensor.

    Attributes:
        name: the tensor.
        start, stop: bytes, counted from the beginning of the tensor.
        checksum: of these bytes, by XXH3 in 64 bits: it finds damage, not forgery.
        non_finite: infinities and NaN among the elements.
    """

    name: str
    start: int
    stop: int
    checksum: int
    non_finite: int


class Journal:
    """A journal file, locked as long as it is open.

    Raises:
        OutputError: another merge holds the lock.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o644)
        self._target = target
        self._write_lock = threading.Lock()
        try:
            if not _take_lock(self._fd) or not _same_file(self._fd, path):
                raise OutputError(
                    "another merge is writing to this place.",
                    where=str(target),
                    hint="Wait until it has finished, stop it, or choose another output folder.",
                )
        except BaseException:
            os.close(self._fd)
            raise

    def begin(self, content: Mapping[str, Any]) -> None:
        """Forget everything and say what is being made."""
        os.ftruncate(self._fd, 0)
        self._append(content)

    def append(self, record: SpanRecord) -> None:
        """Add a finished span."""
        self._append(record)

    def load(self) -> tuple[dict[str, Any] | None, list[SpanRecord]]:
        """What is being made (None in a new journal) and the finished spans; a torn end is cut off."""
        text = self._text()
        end = text.rfind(b"\n") + 1
        os.ftruncate(self._fd, end)
        lines = text[:end].splitlines()
        content = _parsed(lines[0]) if lines else None
        return (content if isinstance(content, dict) else None), list(_records(lines[1:]))

    def close(self) -> None:
        """Close the file and give back the lock."""
        os.close(self._fd)

    def _append(self, content: Any) -> None:
        line = json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        with self._write_lock:
            if os.write(self._fd, line) != len(line):
                raise OutputError(
                    "the journal could not be written.",
                    where=str(self._target),
                    hint="The disk is probably full: make room, then go on with --resume.",
                )

    def _text(self) -> bytes:
        os.lseek(self._fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            return file.read()


def _take_lock(fd: int) -> bool:
    if _lock_functions is None:
        return True
    try:
        _lock_functions.flock(fd, _lock_functions.LOCK_EX | _lock_functions.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems know no locks; merging there is better than refusing.
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True


def _same_file(fd: int, path: Path) -> bool:
    """Whether the file that is locked is still the one at ``path``: a merge may just have finished."""
    return path.exists() and os.path.samestat(os.fstat(fd), os.stat(path))


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _records(lines: list[bytes]) -> Iterator[SpanRecord]:
    """The readable records; an unreadable one only means that its span is made again."""
    for line in lines:
        match _parsed(line):
            case [str(name), int(start), int(stop), int(checksum), int(non_finite)]:
                yield SpanRecord(name, start, stop, checksum, non_finite)
