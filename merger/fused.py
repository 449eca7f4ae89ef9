"""Spans whose blocks a kernel takes from stored inputs to the stored result in one pass over memory.

Only speed differs from `merger.spans`: a kernel gives the bits that the method's own function gives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from merger.graph import BlockMerge
from merger.ops.convert import stored_result, view_bytes
from merger.ops.fusing import Formula, formula_of
from merger.ops.measuring import measurement_of
from merger.ops.noise import HashKeys
from merger.reading import LoadTensor, Range, Runtime, row_length
from merger.types import DTYPES, Fold

PIECE_ELEMENTS = 1 << 17
"""Elements of every input that a kernel is given at once, where rows need not stay together: they fit in the cache."""

MOST_ELEMENTS = 1 << 32
"""Of a tensor: beyond, the hash begins anew and counts may overflow."""

Bits = NDArray[Any]


class _Buffers(threading.local):
    """One thread's memory, used again from piece to piece."""

    def __init__(self) -> None:
        self.held: dict[str, Bits] = {}

    def bits(self, slot: str, count: int, dtype: Any) -> Bits:
        """An array of ``count`` elements with undefined contents."""
        held = self.held.get(slot)
        if held is None or held.nbytes < count * np.dtype(dtype).itemsize:
            held = self.held[slot] = np.empty(count * np.dtype(dtype).itemsize, np.uint8)
        return held[: count * np.dtype(dtype).itemsize].view(dtype)


_buffers = _Buffers()


class StoredInputs:
    """The inputs of one output tensor, read as their bits.

    Args:
        merge: names the inputs.
        runtime: how this run computes.
    """

    def __init__(self, merge: BlockMerge, runtime: Runtime) -> None:
        torch.set_num_threads(1)
        self._runtime = runtime
        self.loads = [load for load in merge.gather.loads if isinstance(load, LoadTensor)]
        codes = {load.spec.dtype for load in self.loads}
        self.dtype: Any = np.uint16 if codes == {"BF16"} else np.uint32
        self.row = row_length(merge.method.split(merge.context()), merge.shape)

    def pieces(self, blocks: Sequence[Range]) -> Iterator[tuple[Range, Range, Bits]]:
        """Block, piece of it and ``[inputs, elements]`` bits, valid until the next piece is asked for.

        Raises:
            Cancelled: the run was.
        """
        self._prefetch(blocks)
        for block in blocks:
            self._runtime.check()
            step = PIECE_ELEMENTS if self.row == 1 else block[1] - block[0]
            for start in range(*block, step):
                stop = min(start + step, block[1])
                yield block, (start, stop), self._read(start, stop)

    def _prefetch(self, blocks: Sequence[Range]) -> None:
        for load in self.loads if blocks else ():
            itemsize = DTYPES[load.spec.dtype].itemsize
            load.checkpoint.prefetch(load.spec, blocks[0][0] * itemsize, blocks[-1][1] * itemsize)

    def _read(self, start: int, stop: int) -> Bits:
        count = stop - start
        bits = _buffers.bits("inputs", len(self.loads) * count, self.dtype).reshape(len(self.loads), count)
        for load, own in zip(self.loads, bits, strict=True):
            itemsize = DTYPES[load.spec.dtype].itemsize
            if itemsize == self.dtype().itemsize:
                load.checkpoint.read_into(load.spec, start * itemsize, own.view(np.uint8).data)
                continue
            narrow = _buffers.bits("narrow", count * itemsize, np.uint8).data
            load.checkpoint.read_into(load.spec, start * itemsize, narrow)
            torch.from_numpy(own.view(np.float32)).copy_(view_bytes(narrow, load.spec.dtype))
        return bits


def is_fusable(merge: BlockMerge, runtime: Runtime) -> bool:
    """Whether kernels are wanted and can read this tensor's inputs."""
    loads = merge.gather.loads
    if prod(merge.shape) > MOST_ELEMENTS:
        return False
    base_first = merge.base_model is None or merge.gather.models[0] == merge.base_model
    return (
        runtime.kernels
        and base_first
        and all(isinstance(load, LoadTensor) and DTYPES[load.spec.dtype].is_float for load in loads)
        and not any(isinstance(load, LoadTensor) and load.spec.dtype == "F64" for load in loads)
    )


def measured_state(merge: BlockMerge, fold: Fold, blocks: Sequence[Range], runtime: Runtime) -> Any:
    """The fold's state after these blocks, None when no kernel knows the fold."""
    if not is_fusable(merge, runtime):
        return None
    inputs = StoredInputs(merge, runtime)
    measurement = measurement_of(fold, len(inputs.loads), merge.base_model is not None)
    if measurement is None:
        return None
    for (_, block_stop), (_, stop), stored in inputs.pieces(blocks):
        measurement.add(stored)
        if stop == block_stop:
            measurement.end_block()
    return measurement.state()


def formula(merge: BlockMerge, measured: Any, runtime: Runtime) -> Formula | None:
    """What a kernel can do in place of the method's `combine`, None when it can do nothing."""
    if not is_fusable(merge, runtime):
        return None
    return formula_of(merge.method.deferred(merge.context(), measured))


def combine_blocks(
    formula: Formula,
    code: str,
    merge: BlockMerge,
    blocks: Sequence[Range],
    runtime: Runtime,
    write: Callable[[int, memoryview, int], None],
) -> None:
    """Compute blocks and hand them over.

    Args:
        formula: of the method, for this tensor.
        code: element type of the output, a key of `merger.types.DTYPES`.
        merge: names the inputs.
        blocks: which.
        runtime: how this run computes.
        write: takes the first element, the bytes and how many elements are infinite or NaN.
    """
    inputs = StoredInputs(merge, runtime)
    models = zip(merge.gather.models, merge.gather.positions, strict=True)
    positions = [position for model, position in models if model != merge.base_model]
    keys = HashKeys(runtime.seed, merge.output_weight.name, positions)
    dtype = np.uint16 if code == "BF16" else np.uint32
    for (block_start, block_stop), (start, stop), stored in inputs.pieces(blocks):
        if start == block_start:
            result, spoiled = _buffers.bits("result", block_stop - block_start, dtype), 0
        own = result[start - block_start : stop - block_start]
        spoiled += formula.run(stored, inputs.row, keys.at(start), own)
        if stop == block_stop:
            write(block_start, *_as_stored(result, code, spoiled))


def _as_stored(result: Bits, code: str, spoiled: int) -> tuple[memoryview, int]:
    if code in ("BF16", "F32"):
        return result.view(np.uint8).data, spoiled
    return stored_result(torch.from_numpy(result.view(np.float32)), code)
