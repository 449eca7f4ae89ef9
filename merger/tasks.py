"""Combining and writing tensors as tasks, and cutting them into spans of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.errors import MethodError, foreign_code
from merger.executors.base import Program
from merger.graph import BlockMerge, Task
from merger.ops.convert import result_problem, to_bytes, torch_dtype, working_dtype
from merger.reading import BlockReader, LoadTensor, Runtime, block_ranges, read_block
from merger.types import BLOCK_ELEMENTS, DTYPES, SPAN_BLOCKS, Fold, TensorSpec

COPY_CHUNK_BYTES = 32 << 20


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
        write_block(self.sink, self.output, 0, values["value"])

    def group_label(self) -> str | None:
        return self.value.group_label()

    def priority(self) -> int:
        return self.value.priority()

    def title(self) -> str:
        return f"{self.value.title()} for {self.output.name}"


def execute(task: Task[Any], values: dict[str, Any], runtime: Runtime) -> Any:
    """Run one whole task, its tensor arguments on the compute device."""
    runtime.check()
    torch.set_num_threads(1)
    if isinstance(task, (WriteTensor, LoadTensor)):
        return task.execute(**values)
    with foreign_code(task.title()):
        if task.uses_accelerator() and runtime.device != "cpu":
            values = {name: _moved(value, runtime.device) for name, value in values.items()}
        return task.execute(**values)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return [_moved(item, device) for item in value] if isinstance(value, list) else value


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
    if not _is_written(task, start, stop):
        write_block(task.sink, task.output, start, read_block(load, start, stop, 0, working_dtype([load.spec.dtype])))


def _merge_program(task: WriteTensor, merge: BlockMerge, runtime: Runtime) -> Program:
    context = merge.context()
    blocks = list(block_ranges(merge.method.split(context), merge.shape))
    spans = [blocks[first : first + SPAN_BLOCKS] for first in range(0, len(blocks), SPAN_BLOCKS)]
    if all(_is_written(task, start, stop) for start, stop in blocks):
        return
    fold, measured = merge.method.measure(context), None
    while fold is not None:
        states = yield [partial(_measure_span, merge, fold, span, runtime) for span in spans]
        state = states[0]
        for following in states[1:]:
            state = fold.join(state, following)
        measured = fold.finish(state)
        fold, measured = (measured, None) if isinstance(measured, Fold) else (None, measured)
    yield [partial(_combine_span, task, merge, measured, span, runtime) for span in spans]


def _is_written(task: WriteTensor, start: int, stop: int) -> bool:
    itemsize = DTYPES[task.output.dtype].itemsize
    return task.sink.is_finished(task.output.name, start * itemsize, stop * itemsize)


def _measure_span(merge: BlockMerge, fold: Any, span: Sequence[tuple[int, int]], runtime: Runtime) -> Any:
    reader = BlockReader(merge, runtime)
    reader.prefetch(span)
    state = fold.start()
    for start, stop in span:
        runtime.check()
        state = fold.add(state, reader.read(start, stop))
    return state


def _combine_span(
    task: WriteTensor, merge: BlockMerge, measured: Any, span: Sequence[tuple[int, int]], runtime: Runtime
) -> None:
    reader = BlockReader(merge, runtime)
    span = [(start, stop) for start, stop in span if not _is_written(task, start, stop)]
    reader.prefetch(span)
    for start, stop in span:
        runtime.check()
        merged = merge.method.combine(reader.context, reader.read(start, stop), measured)
        if merged.numel() != stop - start:
            raise MethodError(
                f"the method returned {merged.numel()} elements for a block of {stop - start}.",
                where=task.output.name,
            )
        write_block(task.sink, task.output, start, merged)


def write_block(sink: Sink, output: TensorSpec, start: int, merged: Tensor) -> None:
    """Round a block once to the output's dtype and write it at its elements' place."""
    merged = merged.detach().reshape(-1).to("cpu")
    data = to_bytes(merged, output.dtype)
    sink.write(output.name, start * DTYPES[output.dtype].itemsize, data, count_non_finite(merged, output.dtype))


def count_non_finite(merged: Tensor, dtype: str) -> int:
    """Infinities and NaN that a block has after rounding to a dtype."""
    if not merged.numel() or not merged.is_floating_point():
        return 0
    rounded = torch_dtype(dtype)
    limit = torch.finfo(rounded).max
    low, high = torch.aminmax(merged)
    if -limit <= float(low) and float(high) <= limit:
        return 0
    return int((~torch.isfinite(merged.to(rounded))).sum())
