"""The folder a merge writes: headers first, then spans in any order, then into place at once."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from merger.checkpoints import tree
from merger.checkpoints.base import Checkpoint
from merger.checkpoints.fingerprint import journal_content, require_same
from merger.checkpoints.folder import INDEX_FILE, INDEX_SUFFIX, is_plain_name, listing
from merger.checkpoints.journal import JOURNAL_FILE, Journal, SpanRecord
from merger.checkpoints.layout import ShardLayout, index_bytes
from merger.checkpoints.outputs import OutputShards
from merger.checkpoints.target import (
    check_free,
    check_target,
    check_unfinished,
    claim,
    output_errors,
    partial_folder,
    repair,
    resolved,
    take_place,
)
from merger.checkpoints.verification import Ledger, Stopped, compare, reread
from merger.errors import OutputError
from merger.types import TensorSpec

Place = str | os.PathLike[str]


class OutputFolder:
    """A merge's output while it is being made, in a hidden folder beside its target.

    Make one with `create`; end it with `commit`, `abandon` or `discard`, after all threads
    that write have stopped.  As a context manager it is abandoned unless it was committed.
    What lies between may be called from several threads.

    Attributes:
        target: where the finished folder will stand, links followed.
        path: the folder in which it is built.
        layouts: the weight files.
    """

    def __init__(self, target: Path, layouts: Sequence[ShardLayout], journal: Journal, overwrite: bool) -> None:
        self.target = target
        self.path = partial_folder(target)
        self.layouts = tuple(layouts)
        self._specs = {spec.name: spec for layout in layouts for spec in layout.tensors}
        self._overwrite = overwrite
        self._journal = journal
        self._shards = OutputShards()
        self._ledger = Ledger(self._specs)
        self._continued = False
        self._open = True

    @classmethod
    def create(
        cls,
        target: Place,
        layouts: Sequence[ShardLayout],
        fingerprint: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        inputs: Iterable[Place] = (),
        stopped: Stopped | None = None,
    ) -> OutputFolder:
        """Begin an output, or go on with one that was interrupted.

        Args:
            target: the output folder to be.
            layouts: all weight files, from `merger.checkpoints.layout.plan_shards`.
            fingerprint: what the bytes depend on, as JSON values: ``recipe``, and ``inputs`` by
                model name.  The layouts are added to it.
            overwrite: replace what stands at the target, once the new folder is finished.
            resume: keep the sound spans of an interrupted run; without one, begin afresh.
            inputs: model folders and files, which the output must leave alone.
            stopped: ends the checking of old spans.

        Raises:
            OutputError: the target is taken, in use, an input or not writable, or the disk is
                full; or the interrupted run made something else, and what differs.
            Cancelled: ``stopped`` said so.
        """
        place = resolved(target)
        with output_errors(place):
            check_target(place, inputs)
            repair(place)
            if resume and not overwrite:
                check_unfinished(place, [layout.file for layout in layouts])
            check_free(place, overwrite=overwrite)
            folder = cls(place, layouts, claim(place), overwrite)
            try:
                folder._begin(journal_content(fingerprint, layouts), resume, stopped)
            except BaseException:
                folder._back_out()
                raise
        return folder

    @property
    def finished(self) -> dict[str, list[tuple[int, int]]]:
        """Byte spans of each tensor that are written and journaled, in order."""
        return self._ledger.spans()

    def write(self, name: str, start: int, data: memoryview | bytes | bytearray, non_finite: int = 0) -> None:
        """Write a span of a tensor and record it as finished.

        Args:
            name: the tensor.
            start: place of the first byte, counted from the tensor's beginning.
            data: the bytes.
            non_finite: infinities and NaN among the elements.

        Raises:
            OutputError: the bytes do not lie inside the tensor, or the disk is full.
        """
        view = memoryview(data)
        stop = start + view.nbytes
        spec = self._inside(name, start, stop)
        if stop > start:
            with output_errors(self.target):
                checksum = self._shards.write(spec, start, view.cast("B"))
                self._finish(SpanRecord(name, start, stop, checksum, non_finite))

    def copy_from(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Copy a span of an input tensor as it is and record it as finished.

        The kernel copies it where the input is a local file.

        Args:
            name: the output tensor.
            checkpoint: where the input is.
            spec: the input tensor, as long as the output tensor.
            start: first byte of an element, counted from the tensor's beginning.
            stop: one past the last byte of one.

        Raises:
            OutputError: the bytes do not lie inside the tensor, or the disk is full.
            CheckpointError: the input cannot be read.
        """
        output = self._inside(name, start, stop)
        if stop > start:
            with output_errors(self.target):
                checksum, non_finite = self._shards.copy(output, checkpoint, spec, start, stop)
                self._finish(SpanRecord(name, start, stop, checksum, non_finite))

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file beside the weights, such as the configuration or a tokenizer.

        Args:
            name: its path inside the output folder, with forward slashes.
            data: its bytes.

        Raises:
            OutputError: the name leaves the folder or belongs to a weight file, or the disk is full.
        """
        is_weights = "/" not in name and name.endswith((".safetensors", INDEX_SUFFIX))
        if is_weights or name == JOURNAL_FILE or not all(map(is_plain_name, name.split("/"))):
            raise OutputError(f"{name!a} is no name for a file of the output.", where=str(self.target))
        with output_errors(self.target):
            tree.write_file(self.path / PurePosixPath(name), data)

    def verify(self, stopped: Stopped | None = None) -> dict[str, int]:
        """Read everything back and compare it with what was computed; see `verify_steps`.

        Returns:
            Infinities and NaN by tensor; only tensors that have any.
        """
        for _ in self.verify_steps(stopped):
            pass
        return self._ledger.non_finite()

    def verify_steps(self, stopped: Stopped | None = None) -> Generator[int, None, dict[str, int]]:
        """Open the written files as any reader would, and compare headers and all bytes.

        Yields:
            Bytes compared so far.

        Returns:
            Infinities and NaN by tensor; only tensors that have any.

        Raises:
            OutputError: something is unfinished or is not what was written.
            Cancelled: ``stopped`` said so.
        """
        self._require_complete()
        yield from reread(self.path, self.layouts, self._ledger.records(), stopped)
        return self._ledger.non_finite()

    def commit(self) -> Path:
        """Make everything durable and move the folder to its target.

        Returns:
            The target.

        Raises:
            OutputError: something is unfinished, or the target was taken meanwhile.
        """
        self._require_complete()
        with output_errors(self.target):
            check_free(self.target, overwrite=self._overwrite)
            self._shards.close()
            tree.sync(self.path)
            take_place(self.path, self.target)
        self.abandon()
        return self.target

    def abandon(self) -> None:
        """Stop, and keep what is finished for a later `create` with ``resume``."""
        self._shards.close()
        if self._open:
            self._open = False
            self._journal.close()

    def discard(self) -> None:
        """Stop, and delete what was written."""
        self._shards.close()
        if self._open:
            with output_errors(self.target):
                # The journal goes last: an interrupted deletion is then still recognised as ours.
                tree.clear(self.path, keep={JOURNAL_FILE})
                tree.clear(self.path)
                self.path.rmdir()
        self.abandon()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _begin(self, content: Mapping[str, Any], resume: bool, stopped: Stopped | None) -> None:
        self._continued = resume
        stored, records = self._journal.load()
        if resume and stored is not None:
            require_same(stored, content, self.target)
        else:
            self._continued, records = False, []
            self._journal.begin(content)
        shards = {layout.file for layout in self.layouts} if self._continued else set()
        tree.clear(self.path, keep={JOURNAL_FILE, *shards})
        self._shards.open(self.path, self.layouts)
        index = index_bytes(self.layouts)
        if index is not None:
            tree.write_file(self.path / INDEX_FILE, index)
        for record, sound in compare(self._plausible(records), self._specs, self._shards.read, stopped):
            if sound:
                self._ledger.keep(record)

    def _back_out(self) -> None:
        """Leave an interrupted run's work as it was; of a new one nothing remains."""
        if self._continued:
            self.abandon()
        else:
            self.discard()

    def _plausible(self, records: Iterable[SpanRecord]) -> list[SpanRecord]:
        """The last record of each span, of those that lie inside their tensor."""
        latest = {record[:3]: record for record in records if record.name in self._specs}
        return [
            record for record in latest.values() if 0 <= record.start < record.stop <= self._specs[record.name].nbytes
        ]

    def _finish(self, record: SpanRecord) -> None:
        self._journal.append(record)
        self._ledger.keep(record)

    def _inside(self, name: str, start: int, stop: int) -> TensorSpec:
        spec = self._specs[name]
        if not 0 <= start <= stop <= spec.nbytes:
            raise OutputError(
                f"bytes {start} to {stop} do not lie inside tensor '{name}', which has {spec.nbytes}.",
                where=str(self.target),
            )
        return spec

    def _require_complete(self) -> None:
        missing = self._ledger.unfinished()
        if missing:
            raise OutputError(
                f"{len(missing)} of {len(self._specs)} tensors are not finished: {listing(missing)}.",
                where=str(self.target),
                hint="Finish the merge with --resume.",
            )
