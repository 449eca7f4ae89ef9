"""The weight files of an output while they are being filled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from xxhash import xxh3_64, xxh3_64_intdigest

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.fileio import PIECE_BYTES, allocate, copy_range, read_fully, write_fully
from merger.checkpoints.layout import ShardLayout
from merger.checkpoints.nonfinite import count_non_finite
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
        return xxh3_64_intdigest(view)

    def read(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        """Read bytes of a tensor back."""
        read_fully(self._files[spec.shard], view, spec.start + start)

    def copy(
        self, output: TensorSpec, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int
    ) -> tuple[int, int]:
        """Copy a part of an input tensor, made of whole elements; inside the kernel where the input is a file.

        Returns:
            The checksum of the input's bytes, and how many of the elements are infinite or NaN.
        """
        path = checkpoint.shard_path(spec)
        failure = None if path is None else self._copy_file(path, spec.start + start, output, start, stop)
        checksum, non_finite = xxh3_64(), 0
        buffer = memoryview(bytearray(min(PIECE_BYTES, stop - start)))
        for position in range(start, stop, PIECE_BYTES):
            piece = buffer[: stop - position]
            # The file system may share the blocks of both files; the checksum is of the input's.
            checkpoint.read_into(spec, position, piece)
            checksum.update(piece)
            if path is None:
                write_fully(self._files[output.shard], piece, output.start + position)
            non_finite += count_non_finite(piece, spec.dtype)
        if failure is not None:
            # The input can be read, so it is gone, or the output is at fault.
            checkpoint.verify_unchanged()
            raise failure
        return checksum.intdigest(), non_finite

    def _copy_file(self, path: Path, offset: int, output: TensorSpec, start: int, stop: int) -> OSError | None:
        """Copy bytes ``start`` to ``stop`` of an output tensor from a file; returns why it did not work."""
        try:
            with open(path, "rb", buffering=0) as file:
                copy_range(file.fileno(), self._files[output.shard], offset, output.start + start, stop - start)
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        while self._files:
            os.close(self._files.popitem()[1])
