"""Reading and writing at an offset, on every operating system."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

PIECE_BYTES = 1 << 20
"""Unit in which files are read and written where the caller does not say; it stays in the processor's cache."""

_seek_lock = threading.Lock()


def read_vectored(fd: int, view: memoryview, offset: int) -> int:
    """One read straight into ``view``."""
    return os.preadv(fd, [view], offset)


def read_positioned(fd: int, view: memoryview, offset: int) -> int:
    """One read at an offset through a temporary copy."""
    data = os.pread(fd, min(len(view), PIECE_BYTES), offset)
    view[: len(data)] = data
    return len(data)


def read_seeking(fd: int, view: memoryview, offset: int) -> int:
    """One read for systems that know no reading at an offset."""
    with _seek_lock:
        os.lseek(fd, offset, os.SEEK_SET)
        data = os.read(fd, min(len(view), PIECE_BYTES))
    view[: len(data)] = data
    return len(data)


def write_positioned(fd: int, view: memoryview, offset: int) -> int:
    """One write at an offset."""
    return os.pwrite(fd, view, offset)


def write_seeking(fd: int, view: memoryview, offset: int) -> int:
    """One write for systems that know no writing at an offset."""
    with _seek_lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, view[:PIECE_BYTES])


if hasattr(os, "preadv"):
    _read_some = read_vectored
elif hasattr(os, "pread"):
    _read_some = read_positioned
else:
    _read_some = read_seeking
_write_some = write_positioned if hasattr(os, "pwrite") else write_seeking


def read_fully(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` (bytes) from ``offset`` on; fewer bytes only where the file ends.

    Returns:
        How many bytes were read.
    """
    done = 0
    while done < len(view):
        count = _read_some(fd, view[done:], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_fully(fd: int, view: memoryview, offset: int) -> None:
    """Write all of ``view`` (bytes) at ``offset``."""
    done = 0
    while done < len(view):
        done += _write_some(fd, view[done:], offset + done)


def copy_range(source: int, target: int, source_offset: int, target_offset: int, count: int) -> int:
    """Copy bytes between two files, inside the kernel where it can.

    Returns:
        How many bytes were copied: ``count``, or fewer where the source ends.
    """
    done = 0
    while done < count:
        try:
            copied = _copy_in_kernel(source, target, source_offset + done, target_offset + done, count - done)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            return done + _copy_through_memory(source, target, source_offset + done, target_offset + done, count - done)
        if copied == 0:
            break
        done += copied
    return done


def _copy_in_kernel(source: int, target: int, source_offset: int, target_offset: int, count: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "no copying inside the kernel here")
    return os.copy_file_range(source, target, count, source_offset, target_offset)


def _copy_through_memory(source: int, target: int, source_offset: int, target_offset: int, count: int) -> int:
    buffer = memoryview(bytearray(min(count, PIECE_BYTES)))
    done = 0
    while done < count:
        piece = buffer[: count - done]
        got = read_fully(source, piece, source_offset + done)
        write_fully(target, piece[:got], target_offset + done)
        done += got
        if got < len(piece):
            break
    return done


def allocate(fd: int, size: int) -> None:
    """Give a file its final size, with its blocks reserved where the file system can.

    Raises:
        OSError: the disk is full.
    """
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(fd, size)


def will_need(fd: int, offset: int, count: int) -> None:
    """Tell the kernel that a range will be read soon, where it listens."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, count, os.POSIX_FADV_WILLNEED)


def sync_folder(path: Path) -> None:
    """Make a folder's entries survive a power failure, where folders can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
