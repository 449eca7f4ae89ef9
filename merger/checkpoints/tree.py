"""Whole folders: adding a file, emptying, making durable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Container
from pathlib import Path

from merger.checkpoints.fileio import sync_folder

FILE_MODE = 0o644


def create_file(path: Path) -> int:
    """Open a file for reading and writing, readable for everybody; an existing one is kept.

    Returns:
        The file descriptor.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags, FILE_MODE)
    # The mode of `open` is cut down by the process's umask.
    os.chmod(path, FILE_MODE)
    return fd


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(create_file(path), "wb") as file:
        file.truncate()
        file.write(data)


def clear(folder: Path, keep: Container[str] = ()) -> None:
    """Delete what a folder holds, but for the entries named in ``keep``."""
    for entry in folder.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def sync(folder: Path) -> None:
    """Make every file and folder inside survive a power failure."""
    for inner, _, files in os.walk(folder):
        for name in files:
            fd = os.open(os.path.join(inner, name), os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_folder(Path(inner))
