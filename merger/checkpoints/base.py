"""What every source of tensors offers, whatever it is made of."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from merger.errors import CheckpointError
from merger.types import ModelReference, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

C = TypeVar("C", bound="Checkpoint")

COMPARED_BYTES = 1 << 20
"""Tensors of whole numbers up to this size are read and compared before anything is merged."""


@dataclass(frozen=True)
class SideFile:
    """A file that belongs to a model beside its weights, such as a tokenizer.

    Attributes:
        name: its path inside the model, with forward slashes.
        size: bytes.
        load: reads it; use `read`.
    """

    name: str
    size: int
    load: Callable[[], bytes]

    def read(self) -> bytes:
        """The file's bytes.

        Raises:
            CheckpointError: it cannot be read or is implausibly large.
        """
        return self.load()


class Checkpoint(ABC):
    """An opened model: what its tensors are, and their bytes on demand.  Safe to use from several threads.

    Attributes:
        reference: how the user named the model.
        tensors: specs by name, in the order in which the bytes are stored.
        config: the model's ``config.json``, or None where there is none.
        files: side files by name.
        digest: hex SHA-256 of every shard's name, size and header; the same for the same
            checkpoint on every machine.  Weights are not read for it.
        documents: recipes that made the model in the same series of merges, in the order in which
            they ran, its own last; empty for a model from elsewhere.
    """

    def __init__(
        self,
        reference: ModelReference,
        tensors: Mapping[str, TensorSpec],
        digest: str,
        config: dict[str, Any] | None = None,
        files: Mapping[str, SideFile] | None = None,
    ) -> None:
        self.reference = reference
        self.tensors = tensors
        self.digest = digest
        self.config = config
        self.files: Mapping[str, SideFile] = files or {}
        self.documents: tuple[str, ...] = ()
        self._bytes_read = 0
        self._counter_lock = threading.Lock()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(spec.nbytes for spec in self.tensors.values())

    @property
    def bytes_read(self) -> int:
        """Tensor bytes read so far, every pass counted."""
        return self._bytes_read

    @property
    def state(self) -> str:
        """Like `digest`, but also different after the files were replaced or written to.

        It is good for caches and for resuming on this machine, and must not enter an output.
        """
        return self.digest

    def read_into(self, spec: TensorSpec, start: int, buffer: Buffer) -> None:
        """Fill ``buffer`` with the tensor's bytes from ``start`` on, as they are stored.

        Args:
            spec: one of `tensors`.
            start: first byte, counted from the beginning of the tensor.
            buffer: contiguous and writable; its length says how much is read.

        Raises:
            CheckpointError: the bytes lie outside the tensor or cannot be read.
        """
        view = memoryview(buffer)
        count = view.nbytes
        if not 0 <= start <= start + count <= spec.nbytes:
            raise CheckpointError(
                f"bytes {start} to {start + count} were asked of tensor '{spec.name}', which has {spec.nbytes}.",
                where=str(self.reference),
                hint="Read inside the tensor.",
            )
        if count == 0:
            return
        self._fill(spec, start, view.cast("B"))
        with self._counter_lock:
            self._bytes_read += count

    def read(self, spec: TensorSpec) -> bytearray:
        """All bytes of a tensor, as they are stored.

        Raises:
            CheckpointError: they cannot be read.
        """
        data = bytearray(spec.nbytes)
        self.read_into(spec, 0, data)
        return data

    @abstractmethod
    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        """Fill ``view`` completely; the range is already checked and not empty."""

    def prefetch(self, spec: TensorSpec, start: int, stop: int) -> None:
        """Hint that bytes ``start`` to ``stop`` of the tensor will be read soon."""

    def shard_path(self, spec: TensorSpec) -> Path | None:
        """The local file that holds the tensor at ``spec.start``, or None where there is none."""
        return None

    def verify_unchanged(self) -> None:
        """Make sure that what was read is still what is stored.

        Raises:
            InputChangedError: a file was written to, replaced or removed since it was opened.
        """

    def close(self) -> None:
        """Give back files and connections.  A closed checkpoint cannot be read."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
