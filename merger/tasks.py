"""Loading, combining and writing tensors as tasks, and cutting them into spans of blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.errors import Cancelled, MethodError, foreign_code
from merger.executors.base import Program
from merger.graph import BlockMerge, Task
from merger.ops.convert import result_problem, to_bytes, torch_dtype, view_bytes, working_dtype
from merger.ops.noise import BlockNoise
from merger.types import (
    BLOCK_ELEMENTS,
    DTYPES,
    SPAN_BLOCKS,
    Block,
    ModelReference,
    Split,
    TensorSpec,
)

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


@dataclass(frozen=True)
class Runtime:
    """How one run computes; never changes values.

    Attributes:
        seed: the recipe's seed.
        device: torch device of the computation.
        stopped: asked between blocks; True ends the work.
    """

    seed: int = 0
    device: str = "cpu"
    stopped: Callable[[], bool] = field(default=lambda: False)

    def check(self) -> None:
        """Stop here when the run was cancelled.

        Raises:
            Cancelled: it was.
        """
        if self.stopped():
            raise Cancelled("The merge was cancelled.")


class LoadTensor(Task[Tensor]):
    """One tensor of one model, whole, widened to float32 (float64 when it is stored so)."""

    model: ModelReference
    spec: TensorSpec
    checkpoint: Checkpoint

    def execute(self, **values: Any) -> Tensor:
        raw = bytearray(self.spec.nbytes)
        self.checkpoint.read_into(self.spec, 0, memoryview(raw))
        return as_tensor(raw, self.spec).to(working_dtype([self.spec.dtype]))

    def group_label(self) -> str:
        return f"{self.model}/{self.spec.shard}"


def as_tensor(raw: bytearray, spec: TensorSpec) -> Tensor:
    """Bytes of a whole tensor as a tensor of its dtype and shape, sharing memory."""
    flat = view_bytes(memoryview(raw), spec.dtype) if raw else torch.empty(0, dtype=torch_dtype(spec.dtype))
    return flat.reshape(spec.shape)


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
    step = COPY_CHUNK_BYTES if load.spec.dtype == output.dtype else BLOCK_ELEMENTS
    size = output.nbytes if load.spec.dtype == output.dtype else output.numel
    action = _copy_bytes if load.spec.dtype == output.dtype else _convert
    yield [partial(action, task, load, start, min(start + step, size), runtime) for start in range(0, size, step)]


def _copy_bytes(task: WriteTensor, load: LoadTensor, start: int, stop: int, runtime: Runtime) -> None:
    runtime.check()
    if not task.sink.is_finished(task.output.name, start, stop):
        task.sink.copy(task.output.name, load.checkpoint, load.spec, start, stop)


def _convert(task: WriteTensor, load: LoadTensor, start: int, stop: int, runtime: Runtime) -> None:
    runtime.check()
    itemsize = DTYPES[task.output.dtype].itemsize
    if not task.sink.is_finished(task.output.name, start * itemsize, stop * itemsize):
        write_block(task.sink, task.output, start, read_block(load, start, stop, 0, _dtype_of([load])))


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
        fold, measured = (measured, None) if _is_fold(measured) else (None, measured)
    yield [partial(_combine_span, task, merge, measured, span, runtime) for span in spans]


def _is_fold(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("start", "add", "join", "finish"))


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


def block_ranges(split: Split, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Element ranges of a tensor's blocks; a row that is longer than a block stays whole."""
    total = prod(shape)
    row = row_length(split, shape)
    step = max(1, BLOCK_ELEMENTS // row) * row if row else total
    for start in range(0, total, max(step, 1)):
        yield start, min(start + step, total)


def row_length(split: Split, shape: tuple[int, ...]) -> int:
    """Elements that must stay together under a split."""
    if split == "elements":
        return 1
    if split == "rows":
        return shape[-1] if shape else 1
    if split == "leading":
        return prod(shape[1:]) if len(shape) > 1 else prod(shape)
    return prod(shape)


class BlockReader:
    """Reads blocks of every input of one tensor, widened, in the shape that the method's split promises.

    Attributes:
        context: the facts that the method sees.
    """

    def __init__(self, merge: BlockMerge, runtime: Runtime) -> None:
        torch.set_num_threads(1)
        self.context = merge.context()
        self._merge, self._runtime = merge, runtime
        self._split = merge.method.split(self.context)
        self._loads = [load for load in merge.gather.loads if isinstance(load, LoadTensor)]
        self._dtype = _dtype_of(self._loads)
        has_base = merge.base_model is not None
        self._base = merge.gather.models.index(merge.base_model) if has_base else None
        self._positions = [
            -1 if position is None else position
            for slot, position in enumerate(merge.gather.positions)
            if slot != self._base
        ]

    def prefetch(self, span: Sequence[tuple[int, int]]) -> None:
        """Tell the sources what will be read next."""
        for load in self._loads if span else ():
            itemsize = DTYPES[load.spec.dtype].itemsize
            load.checkpoint.prefetch(load.spec, span[0][0] * itemsize, span[-1][1] * itemsize)

    def read(self, start: int, stop: int) -> Block:
        """The block of elements ``start`` to ``stop``; valid until the thread reads the next one."""
        shape = block_shape(self._split, self._merge.shape, stop - start)
        device = self._runtime.device
        tensors = [
            read_block(load, start, stop, slot, self._dtype, device).view(shape)
            for slot, load in enumerate(self._loads)
        ]
        base = None if self._base is None else tensors.pop(self._base)
        name = self._merge.output_weight.name
        return Block(tensors, base, BlockNoise(self._runtime.seed, name, self._positions, start, shape, device))


def block_shape(split: Split, shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The shape in which a block of so many elements is given to a method."""
    if split == "tensor":
        return shape
    return (elements,) if split == "elements" else (elements // row_length(split, shape), row_length(split, shape))


def _dtype_of(loads: Sequence[LoadTensor]) -> torch.dtype:
    return working_dtype(load.spec.dtype for load in loads)


class _Scratch(threading.local):
    """One thread's buffers, reused from block to block: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self.raw: dict[int, bytearray] = {}
        self.wide: dict[tuple[int, torch.dtype], Tensor] = {}

    def raw_buffer(self, slot: int, size: int) -> memoryview:
        if len(self.raw.get(slot, b"")) < size:
            self.raw[slot] = bytearray(size)
        return memoryview(self.raw[slot])[:size]

    def wide_buffer(self, slot: int, size: int, dtype: torch.dtype) -> Tensor:
        buffer = self.wide.get((slot, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self.wide[slot, dtype] = torch.empty(size, dtype=dtype)
        return buffer[:size]


_scratch = _Scratch()


def read_block(load: LoadTensor, start: int, stop: int, slot: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Elements ``start`` to ``stop`` of a tensor, flat, widened to ``dtype``.

    The result lives in the thread's buffer number ``slot`` and is valid until that is used again.
    """
    itemsize = DTYPES[load.spec.dtype].itemsize
    raw = _scratch.raw_buffer(slot, (stop - start) * itemsize)
    load.checkpoint.read_into(load.spec, start * itemsize, raw)
    stored = view_bytes(raw, load.spec.dtype)
    if device != "cpu":
        return stored.to(device).to(dtype)
    return stored if stored.dtype == dtype else _scratch.wide_buffer(slot, stop - start, dtype).copy_(stored)


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
