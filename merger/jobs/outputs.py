"""The files of a finished merge: listing them, and reading them without following links."""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from merger.errors import Cancelled

_CHUNK = 1 << 20


@dataclass(frozen=True)
class OutputFile:
    """One file of a finished merge.

    Attributes:
        name: relative path with forward slashes.
        size: bytes.
        crc32: checksum as zip archives want it.
        mtime_ns: time of its last change; a file that has changed since is not handed out.
    """

    name: str
    size: int
    crc32: int
    mtime_ns: int


def describe(folder: Path, stopped: Callable[[], bool]) -> tuple[OutputFile, ...]:
    """List the regular files below ``folder`` and read each once for its checksum.

    Raises:
        Cancelled: ``stopped()`` became true.
    """
    paths = sorted(Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    regular = (path for path in paths if stat.S_ISREG(path.lstat().st_mode))
    return tuple(_describe_file(folder, path.relative_to(folder).as_posix(), stopped) for path in regular)


def _describe_file(folder: Path, name: str, stopped: Callable[[], bool]) -> OutputFile:
    crc, size = 0, 0
    with open_beneath(folder, name) as file:
        while chunk := os.pread(file.fileno(), _CHUNK, size):
            if stopped():
                raise Cancelled("The merge was stopped.")
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        return OutputFile(name, size, crc, os.fstat(file.fileno()).st_mtime_ns)


def open_beneath(folder: Path, name: str) -> io.FileIO:
    """Open a regular file below ``folder`` for reading; no part of ``name`` may be a link.

    Raises:
        OSError: there is no such regular file.
    """
    *parents, last = name.split("/")
    if not all(part not in ("", ".", "..") for part in (*parents, last)):
        raise FileNotFoundError(name)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in parents:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = deeper
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)
    file = io.FileIO(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise FileNotFoundError(name)
    return file
