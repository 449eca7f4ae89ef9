"""One opened safetensors file: its header, and its bytes on demand."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from merger.checkpoints.fileio import read_fully, will_need
from merger.checkpoints.header import LENGTH_BYTES, header_length, parse_header
from merger.errors import CheckpointError, InputChangedError
from merger.types import TensorSpec


class ShardFile:
    """A safetensors file that is open for reading.

    Attributes:
        path: where it is.
        tensors: specs by name, in the order of their bytes.
        metadata: the header's texts.
        size: bytes of the whole file.

    Raises:
        CheckpointError: it cannot be opened, or its header is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Looked at before it is opened: opening a pipe would wait for its other end.
            if not stat.S_ISREG(path.stat().st_mode):
                raise CheckpointError("this is not a file.", where=str(path), hint="Give a safetensors file.")
            self._file = io.FileIO(path)
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            self._identity = _identity(os.fstat(self._file.fileno()))
            self.size = self._identity[0]
            header = self.read_header()
            self.tensors, self.metadata = parse_header(header[LENGTH_BYTES:], self.size, path.name, str(path))
        except BaseException:
            self.close()
            raise

    def read_header(self) -> bytes:
        """The first bytes of the file: length and JSON.  Not kept, because those of large models are many megabytes.

        Raises:
            CheckpointError: the file is something else, cut short, or lies about the length.
        """
        prefix = self._bytes(0, min(LENGTH_BYTES, self.size))
        return prefix + self._bytes(LENGTH_BYTES, header_length(prefix, self.size, str(self.path)))

    def _bytes(self, start: int, count: int) -> bytes:
        data = bytearray(count)
        self.fill(memoryview(data), start, "header")
        return bytes(data)

    def fill(self, view: memoryview, offset: int, what: str) -> None:
        """Fill ``view`` from ``offset`` on.

        Raises:
            CheckpointError: the file ends too early, or cannot be read.
        """
        try:
            count = read_fully(self._file.fileno(), view, offset)
        except OSError as error:
            raise CheckpointError(
                f"{what} cannot be read ({error.strerror}).", where=str(self.path), hint="Check the disk."
            ) from error
        if count < len(view):
            raise CheckpointError(
                f"the file is truncated: it ends inside {what}.",
                where=str(self.path),
                hint="It became shorter after it was opened; download or export it again.",
            )

    def prefetch(self, spec: TensorSpec, start: int, stop: int) -> None:
        """Ask the kernel to read bytes ``start`` to ``stop`` of a tensor ahead."""
        will_need(self._file.fileno(), spec.start + start, stop - start)

    @property
    def state(self) -> str:
        """Size, modification time and inode, as one text."""
        return " ".join(map(str, self._identity))

    def verify_unchanged(self) -> None:
        """Compare size, modification time and inode with those at opening.

        Raises:
            InputChangedError: the file was written to, replaced or removed.
        """
        try:
            found = _identity(self.path.stat())
        except OSError:
            found = None
        if found != self._identity:
            what = "disappeared" if found is None else "changed"
            raise InputChangedError(
                f"the file {what} while it was being read.",
                where=str(self.path),
                hint="Leave the inputs alone while they are merged, and start again.",
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _cannot_open(path: Path, error: OSError) -> CheckpointError:
    hint = "Check its name and permissions."
    if path.is_symlink() and not path.exists():
        hint = f"It is a link to {path.readlink()}, which does not exist; download the model again."
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "Too many files are open: raise the limit with `ulimit -n 4096`."
    return CheckpointError(f"the file cannot be opened ({error.strerror}).", where=str(path), hint=hint)
