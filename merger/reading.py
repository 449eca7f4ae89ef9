"""Reading tensors whole or in blocks, widened for arithmetic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.errors import Cancelled
from merger.graph import BlockMerge, Task
from merger.ops.convert import torch_dtype, view_bytes, working_dtype
from merger.ops.noise import BlockNoise
from merger.types import BLOCK_ELEMENTS, DTYPES, Block, ModelReference, Split, TensorSpec


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
        return as_tensor(self.checkpoint.read(self.spec), self.spec).to(working_dtype([self.spec.dtype]))

    def group_label(self) -> str:
        return f"{self.model}/{self.spec.shard}"


def as_tensor(raw: bytearray, spec: TensorSpec) -> Tensor:
    """Bytes of a whole tensor as a tensor of its dtype and shape, sharing memory."""
    flat = view_bytes(memoryview(raw), spec.dtype) if raw else torch.empty(0, dtype=torch_dtype(spec.dtype))
    return flat.reshape(spec.shape)


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
        self._dtype = working_dtype(load.spec.dtype for load in self._loads)
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
