"""The weight files of an output while they are being filled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.checksum import checksum, joined
from merger.checkpoints.fileio import PIECE_BYTES, allocate, copy_range, read_fully, write_fully
from merger.checkpoints.layout import ShardLayout
from merger.checkpoints.tree import create_file
from merger.types import TensorSpec


class OutputShards:
    """Open weight files at their final size, with their headers.  What they hold already is kept."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def open(self, folder: Path, layouts: Sequence[ShardLayout]) -> None:
        """Make the files.

        Raises:
            OSError: the disk is full, or does not allow it.
        """
        for layout in layouts:
            fd = self._files[layout.file] = create_file(folder / layout.file)
            allocate(fd, layout.size)
            write_fully(fd, memoryview(layout.header), 0)

    def write(self, spec: TensorSpec, start: int, view: memoryview) -> int:
        """Write bytes of a tensor at ``start``, counted from its beginning.

        Returns:
            Their checksum.
        """
        write_fully(self._files[spec.shard], view, spec.start + start)
        return checksum(view, start)

    def read(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        """Read bytes of a tensor back."""
        read_fully(self._files[spec.shard], view, spec.start + start)

    def copy(self, output: TensorSpec, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> int:
        """Copy a part of an input tensor; inside the kernel where the input is a file.

        Returns:
            The checksum of the input's bytes.
        """
        path = checkpoint.shard_path(spec)
        total = 0
        if path is not None:
            with open(path, "rb", buffering=0) as file:
                places = spec.start + start, output.start + start
                copy_range(file.fileno(), self._files[output.shard], *places, stop - start)
        buffer = memoryview(bytearray(min(PIECE_BYTES, stop - start)))
        for position in range(start, stop, PIECE_BYTES):
            piece = buffer[: stop - position]
            # The file system may share the blocks of both files; the checksum is of the input's.
            checkpoint.read_into(spec, position, piece)
            total = joined(
                total, checksum(piece, position) if path is not None else self.write(output, position, piece)
            )
        return total

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        while self._files:
            os.close(self._files.popitem()[1])
