"""Measuring and computing spans: neighbouring blocks of one tensor, on the calling thread's device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from merger import fused
from merger.checkpoints.base import Checkpoint
from merger.devices import Transport, moved, transport
from merger.errors import MethodError
from merger.graph import BlockMerge
from merger.reading import BlockReader, Range, Runtime
from merger.types import DTYPES, Fold, TensorSpec


class Sink(Protocol):
    """Where finished bytes go."""

    def is_finished(self, name: str, start: int, stop: int) -> bool:
        """Whether these bytes of a tensor are there from an earlier run."""
        ...

    def write(self, name: str, start: int, data: memoryview, non_finite: int) -> None:
        """Put bytes at their place and record that they are there."""
        ...

    def copy(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Copy bytes of an input tensor unchanged and record that they are there."""
        ...


@dataclass(frozen=True)
class Target:
    """An output tensor and where it is written.

    Attributes:
        spec: what it is.
        sink: takes its bytes.
    """

    spec: TensorSpec
    sink: Sink

    def is_written(self, start: int, stop: int) -> bool:
        """Whether the elements ``start`` to ``stop`` are there from an earlier run."""
        itemsize = DTYPES[self.spec.dtype].itemsize
        return self.sink.is_finished(self.spec.name, start * itemsize, stop * itemsize)

    def write(self, start: int, data: memoryview, non_finite: int) -> None:
        """Write bytes whose first element is ``start``."""
        self.sink.write(self.spec.name, start * DTYPES[self.spec.dtype].itemsize, data, non_finite)

    def put(self, carrier: Transport, start: int, merged: Tensor) -> None:
        """Round a block once to the output's dtype, and write it as soon as it is back from the device."""
        carrier.output(merged, self.spec.dtype, partial(self.write, start))


class JoinedStates:
    """The state of one measuring pass: the states of its parts, joined in order as they arrive.

    Args:
        fold: joins two neighbours.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._joined: Any = None
        self._early: dict[int, Any] = {}
        self._next = 0
        self._lock = threading.Lock()

    def put(self, place: int, state: Any) -> None:
        """Add the state of part number ``place``; may be called from several threads."""
        with self._lock:
            self._early[place] = state
            while self._next in self._early:
                following = self._early.pop(self._next)
                self._joined = self._fold.join(self._joined, following) if self._next else following
                self._next += 1

    def finish(self) -> Any:
        """What the fold makes of all of them."""
        return self._fold.finish(self._joined)


def measure_blocks(merge: BlockMerge, fold: Fold, blocks: Sequence[Range], runtime: Runtime) -> Any:
    """The fold's state after these blocks, in the processor's memory."""
    carrier = transport()
    if carrier.device == "cpu":
        state = fused.measured_state(merge, fold, blocks, runtime)
        if state is not None:
            return state
    fold = moved(fold, carrier.device)
    state = moved(fold.start(), carrier.device)
    try:
        for _, block in BlockReader(merge, runtime, carrier).blocks(blocks):
            state = fold.add(state, block)
        return moved(state, "cpu")
    finally:
        carrier.settle()


def combine_span(target: Target, merge: BlockMerge, measured: Any, span: Sequence[Range], runtime: Runtime) -> None:
    """Compute and write the blocks of a span that are not there yet.

    Raises:
        MethodError: the method returned something else than the merged block.
    """
    missing = [place for place in span if not target.is_written(*place)]
    if missing:
        _combine_blocks(target, merge, measured, missing, runtime)


def _combine_blocks(
    target: Target, merge: BlockMerge, measured: Any, blocks: Sequence[Range], runtime: Runtime
) -> None:
    carrier = transport()
    formula = fused.formula(merge, measured, runtime) if carrier.device == "cpu" else None
    if formula is not None:
        fused.combine_blocks(formula, target.spec.dtype, merge, blocks, runtime, target.write)
        return
    measured = moved(measured, carrier.device)
    reader = BlockReader(merge, runtime, carrier)
    try:
        for (start, stop), block in reader.blocks(blocks):
            merged = merge.method.combine(reader.context, block, measured)
            if merged.numel() != stop - start:
                raise MethodError(
                    f"the method returned {merged.numel()} elements for a block of {stop - start}.",
                    where=target.spec.name,
                )
            target.put(carrier, start, merged)
        carrier.finish()
    finally:
        carrier.settle()
