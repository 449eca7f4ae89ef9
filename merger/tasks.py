"""Combining and writing tensors as tasks, and cutting them into spans of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from merger.devices import moved, transport
from merger.errors import MethodError, foreign_code
from merger.executors.base import Program
from merger.graph import BlockMerge, Task
from merger.ops.convert import result_problem, working_dtype
from merger.reading import LoadTensor, Range, Runtime, block_ranges, read_block
from merger.spans import JoinedStates, Sink, Target, combine_span, measure_blocks
from merger.types import BLOCK_ELEMENTS, SPAN_BLOCKS, Fold, TensorSpec

COPY_CHUNK_BYTES = 32 << 20
MEASURE_TASKS = 16
"""Most parts that a tensor is measured in at once; each holds a state, whatever the size of the tensor."""


class WriteTensor(Task[None]):
    """Computes one output tensor and writes it."""

    value: Task[Any]
    output: TensorSpec
    sink: Sink

    def arguments(self) -> dict[str, Task[Any]]:
        return {} if isinstance(self.value, (BlockMerge, LoadTensor)) else {"value": self.value}

    def execute(self, **values: Any) -> None:
        problem = result_problem(values["value"], self.output.shape)
        if problem is not None:
            raise MethodError(
                f"the method returned {problem} instead of shape {list(self.output.shape)}.", where=self.output.name
            )
        carrier = transport()
        self.target.put(carrier, 0, values["value"])
        carrier.finish()

    @property
    def target(self) -> Target:
        """The output tensor and its sink."""
        return Target(self.output, self.sink)

    def group_label(self) -> str | None:
        return self.value.group_label()

    def priority(self) -> int:
        return self.value.priority()

    def title(self) -> str:
        title = self.value.title()
        return title if self.output.name in title else f"{title} for {self.output.name}"


def execute(task: Task[Any], values: dict[str, Any], runtime: Runtime) -> Any:
    """Run one whole task, its tensor arguments on the compute device."""
    runtime.check()
    torch.set_num_threads(1)
    if isinstance(task, (WriteTensor, LoadTensor)):
        return task.execute(**values)
    with foreign_code(task.title()):
        return task.execute(**(moved(values, transport().device) if task.uses_accelerator() else values))


def expand(task: Task[Any], runtime: Runtime) -> Program | None:
    """The spans of a task that can be cut, None for one that runs whole."""
    if not isinstance(task, WriteTensor):
        return None
    if isinstance(task.value, BlockMerge):
        return _merge_program(task, task.value, runtime)
    return _copy_program(task, task.value, runtime) if isinstance(task.value, LoadTensor) else None


def _copy_program(task: WriteTensor, load: LoadTensor, runtime: Runtime) -> Program:
    """Bytes as they are when the dtype stays, else a conversion block by block."""
    output = task.output
    if load.spec.dtype == output.dtype:
        action, step, size = _copy_bytes, COPY_CHUNK_BYTES, output.nbytes
    else:
        action, step, size = _convert, BLOCK_ELEMENTS, output.numel
    yield [partial(action, task, load, start, min(start + step, size), runtime) for start in range(0, size, step)]


def _copy_bytes(task: WriteTensor, load: LoadTensor, start: int, stop: int, runtime: Runtime) -> None:
    runtime.check()
    if not task.sink.is_finished(task.output.name, start, stop):
        task.sink.copy(task.output.name, load.checkpoint, load.spec, start, stop)


def _convert(task: WriteTensor, load: LoadTensor, start: int, stop: int, runtime: Runtime) -> None:
    runtime.check()
    if not task.target.is_written(start, stop):
        carrier = transport()
        task.target.put(carrier, start, read_block(load, start, stop, 0, working_dtype([load.spec.dtype])))
        carrier.finish()


def _merge_program(task: WriteTensor, merge: BlockMerge, runtime: Runtime) -> Program:
    context, target = merge.context(), task.target
    blocks = list(block_ranges(merge.method.split(context), merge.shape))
    if all(target.is_written(*place) for place in blocks):
        return
    fold, measured = merge.method.measure(context), None
    while fold is not None:
        states = JoinedStates(fold)
        parts = enumerate(measured_parts(blocks))
        yield [partial(_measure, states, place, merge, fold, part, runtime) for place, part in parts]
        measured = states.finish()
        fold, measured = (measured, None) if isinstance(measured, Fold) else (None, measured)
    yield [partial(combine_span, target, merge, measured, span, runtime) for span in _cut(blocks, SPAN_BLOCKS)]


def measured_parts(blocks: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """The blocks of a tensor in runs that are measured by themselves: whole spans, and not more than a few runs.

    How they are cut depends on their number alone, so that sums have one order.
    """
    spans = -(-len(blocks) // SPAN_BLOCKS)
    return _cut(blocks, SPAN_BLOCKS * -(-spans // MEASURE_TASKS))


def _cut(blocks: Sequence[Range], size: int) -> Iterator[Sequence[Range]]:
    return (blocks[first : first + size] for first in range(0, len(blocks), size))


def _measure(
    states: JoinedStates, place: int, merge: BlockMerge, fold: Fold, part: Sequence[Range], runtime: Runtime
) -> None:
    states.put(place, measure_blocks(merge, fold, part, runtime))
