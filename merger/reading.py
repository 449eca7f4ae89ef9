"""Reading tensors whole or in blocks, widened for arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.devices import Stored, Transport, widened
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
        stopped: asked between blocks; True ends the work.
        kernels: whether compiled kernels may take the place of torch's operations on the processor.
    """

    seed: int = 0
    stopped: Callable[[], bool] = field(default=lambda: False)
    kernels: bool = False

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


Range = tuple[int, int]
"""First element of a block, and one past its last."""


def block_ranges(split: Split, shape: tuple[int, ...]) -> Iterator[Range]:
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


def noise_positions(merge: BlockMerge) -> list[int | None]:
    """Of each tensor beside the base, its model's place among the recipe's non-base models."""
    models = zip(merge.gather.models, merge.gather.positions, strict=True)
    return [position for model, position in models if model != merge.base_model]


def prefetch(loads: Sequence[LoadTensor], span: Sequence[Range]) -> None:
    """Tell the sources what will be read next."""
    for load in loads if span else ():
        itemsize = DTYPES[load.spec.dtype].itemsize
        load.checkpoint.prefetch(load.spec, span[0][0] * itemsize, span[-1][1] * itemsize)


class BlockReader:
    """Reads blocks of every input of one tensor, widened, in the shape that the method's split promises.

    Args:
        merge: names inputs and method.
        runtime: how this run computes.
        transport: carries the blocks to where they are computed.

    Attributes:
        context: the facts that the method sees.
    """

    def __init__(self, merge: BlockMerge, runtime: Runtime, transport: Transport) -> None:
        torch.set_num_threads(1)
        self.context = merge.context()
        self._merge, self._runtime, self._transport = merge, runtime, transport
        self._split = merge.method.split(self.context)
        self._loads = [load for load in merge.gather.loads if isinstance(load, LoadTensor)]
        self._dtype = working_dtype(load.spec.dtype for load in self._loads)
        has_base = merge.base_model is not None
        self._base = merge.gather.models.index(merge.base_model) if has_base else None
        self._positions = noise_positions(merge)

    def blocks(self, span: Sequence[Range]) -> Iterator[tuple[Range, Block]]:
        """Every block of a span, in order; a block is valid until the next one is asked for.

        Raises:
            Cancelled: the run was.
        """
        prefetch(self._loads, span)
        stored = ([stored_run(load, *place) for load in self._loads] for place in span)
        for (start, stop), tensors in zip(span, self._transport.inputs(stored, self._dtype), strict=True):
            self._runtime.check()
            yield (start, stop), self._block(start, stop, tensors)

    def _block(self, start: int, stop: int, flat: Sequence[Tensor]) -> Block:
        shape = block_shape(self._split, self._merge.shape, stop - start)
        tensors = [tensor.view(shape) for tensor in flat]
        base = None if self._base is None else tensors.pop(self._base)
        name, device = self._merge.output_weight.name, self._transport.device
        return Block(tensors, base, BlockNoise(self._runtime.seed, name, self._positions, start, shape, device))


def block_shape(split: Split, shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The shape in which a block of so many elements is given to a method."""
    if split == "tensor":
        return shape
    return (elements,) if split == "elements" else (elements // row_length(split, shape), row_length(split, shape))


def stored_run(load: LoadTensor, start: int, stop: int) -> Stored:
    """Elements ``start`` to ``stop`` of a tensor, not yet read."""
    itemsize = DTYPES[load.spec.dtype].itemsize
    return Stored(
        load.spec.dtype,
        (stop - start) * itemsize,
        lambda buffer: load.checkpoint.read_into(load.spec, start * itemsize, buffer),
    )


def read_block(load: LoadTensor, start: int, stop: int, slot: int, dtype: torch.dtype) -> Tensor:
    """Elements ``start`` to ``stop`` of a tensor, flat, widened to ``dtype``, in the processor's memory.

    The result lives in the thread's buffer number ``slot`` and is valid until that is used again.
    """
    return widened(stored_run(load, start, stop), slot, dtype)
