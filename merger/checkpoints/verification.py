"""Reading back what was written, and comparing it with the journal."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_64

from merger.checkpoints.fileio import PIECE_BYTES
from merger.checkpoints.journal import SpanRecord
from merger.checkpoints.layout import ShardLayout
from merger.checkpoints.safetensors import SafetensorsCheckpoint
from merger.errors import Cancelled, CheckpointError, OutputError
from merger.types import TensorSpec

ReadTensor = Callable[[TensorSpec, int, memoryview], None]
"""Fills a buffer with a tensor's bytes, from a byte offset inside the tensor on."""

Stopped = Callable[[], bool]
"""Asked every few milliseconds; True ends the work."""

_WORKERS = 2
_BATCH_BYTES = 64 << 20
_HINT = "Something else wrote there, or the disk is failing; --resume makes only the damaged parts again."


class Ledger:
    """What is finished of every output tensor.  Safe to use from several threads.

    Args:
        specs: the output tensors by name.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._specs = specs
        self._records: dict[str, dict[int, SpanRecord]] = defaultdict(dict)
        self._lock = threading.Lock()

    def keep(self, record: SpanRecord) -> None:
        """Add a finished span; it replaces one that began at the same byte."""
        with self._lock:
            self._records[record.name][record.start] = record

    def records(self) -> list[SpanRecord]:
        """Every finished span, ordered inside its tensor."""
        with self._lock:
            return [spans[start] for spans in self._records.values() for start in sorted(spans)]

    def spans(self) -> dict[str, list[tuple[int, int]]]:
        """Start and stop of every finished span, by tensor, in order."""
        found: dict[str, list[tuple[int, int]]] = {}
        for record in self.records():
            found.setdefault(record.name, []).append((record.start, record.stop))
        return found

    def unfinished(self) -> list[str]:
        """Names of tensors that have bytes in no finished span."""
        spans = self.spans()
        return [name for name, spec in self._specs.items() if _has_gap(spec.nbytes, spans.get(name, ()))]

    def non_finite(self) -> dict[str, int]:
        """Infinities and NaN by tensor; only tensors that have any."""
        counts: dict[str, int] = {}
        for record in self.records():
            if record.non_finite:
                counts[record.name] = counts.get(record.name, 0) + record.non_finite
        return counts


def reread(
    folder: Path, layouts: Sequence[ShardLayout], records: Sequence[SpanRecord], stopped: Stopped | None
) -> Generator[int, None, None]:
    """Open a written folder as any reader would, and compare headers and all bytes.

    Yields:
        Bytes compared so far.

    Raises:
        OutputError: a header or a span is not what was written.
        Cancelled: ``stopped`` said so.
    """
    specs = {spec.name: spec for layout in layouts for spec in layout.tensors}
    done = 0
    with _reopened(folder, specs) as checkpoint:
        for record, sound in compare(records, specs, checkpoint.read_into, stopped):
            if not sound:
                raise OutputError(
                    f"bytes {record.start} to {record.stop} of tensor '{record.name}' are not what was written.",
                    where=str(folder / specs[record.name].shard),
                    hint=_HINT,
                )
            done += record.stop - record.start
            yield done


def compare(
    records: Sequence[SpanRecord], specs: Mapping[str, TensorSpec], read: ReadTensor, stopped: Stopped | None
) -> Iterator[tuple[SpanRecord, bool]]:
    """Read every span again and say whether its checksum is the recorded one, in order.

    Raises:
        Cancelled: ``stopped`` said so.
    """
    ended = threading.Event()
    buffers = threading.local()

    def is_sound(record: SpanRecord) -> bool:
        if not hasattr(buffers, "view"):
            buffers.view = memoryview(bytearray(PIECE_BYTES))
        found = xxh3_64()
        for start in range(record.start, record.stop, PIECE_BYTES):
            if ended.is_set() or (stopped is not None and stopped()):
                raise Cancelled("The merge was cancelled.")
            piece = buffers.view[: record.stop - start]
            read(specs[record.name], start, piece)
            found.update(piece)
        return found.intdigest() == record.checksum

    batches = list(_batches(records))
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
        try:
            verdicts = pool.map(lambda batch: [is_sound(record) for record in batch], batches)
            yield from zip(records, itertools.chain.from_iterable(verdicts), strict=True)
        finally:
            ended.set()


def _batches(records: Iterable[SpanRecord]) -> Iterator[list[SpanRecord]]:
    batch: list[SpanRecord] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.stop - record.start
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _has_gap(nbytes: int, spans: Iterable[tuple[int, int]]) -> bool:
    position = 0
    for start, stop in spans:
        if start > position:
            return True
        position = max(position, stop)
    return position < nbytes


def _reopened(folder: Path, specs: Mapping[str, TensorSpec]) -> SafetensorsCheckpoint:
    try:
        checkpoint = SafetensorsCheckpoint.from_folder(folder)
    except CheckpointError as error:
        raise OutputError(f"what was written cannot be read: {error}", where=str(folder), hint=_HINT) from error
    if dict(checkpoint.tensors) != dict(specs):
        checkpoint.close()
        raise OutputError("the headers are not what was written.", where=str(folder), hint=_HINT)
    return checkpoint
