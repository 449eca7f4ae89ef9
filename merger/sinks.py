"""Where finished blocks go: a folder, or memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.writer import OutputFolder
from merger.types import TensorSpec


class FolderSink:
    """Writes blocks of tensors into an output folder and counts what arrives.

    Args:
        folder: the folder being made.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self._finished = {name: frozenset(spans) for name, spans in folder.finished.items()}
        self.bytes_done = sum(stop - start for spans in self._finished.values() for start, stop in spans)
        self._lock = threading.Lock()

    def is_finished(self, name: str, start: int, stop: int) -> bool:
        """Whether an earlier run wrote these bytes."""
        return (start, stop) in self._finished.get(name, ())

    def write(self, name: str, start: int, data: memoryview, non_finite: int) -> None:
        """Put a block at its place and record it."""
        self.folder.write(name, start, data, non_finite)
        self._count(data.nbytes)

    def copy(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Copy a piece of an input tensor as it is and record it."""
        self.folder.copy_from(name, checkpoint, spec, start, stop)
        self._count(stop - start)

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size


class MemorySink:
    """Collects blocks into bytes in memory.

    Args:
        sizes: bytes of every output tensor, by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.data = {name: bytearray(size) for name, size in sizes.items()}

    def is_finished(self, name: str, start: int, stop: int) -> bool:
        """Nothing is, at the beginning."""
        return False

    def write(self, name: str, start: int, data: memoryview, non_finite: int) -> None:
        """Put a block at its place."""
        self.data[name][start : start + len(data)] = data

    def copy(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Read a piece of an input tensor as it is."""
        checkpoint.read_into(spec, start, memoryview(self.data[name])[start:stop])
