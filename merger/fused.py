"""Spans whose blocks a kernel takes from stored inputs to the stored result in one pass over memory.

Only speed differs from `merger.spans`: a kernel gives the bits that the method's own function gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from merger.devices import as_stored
from merger.graph import BlockMerge, Task
from merger.ops.convert import stored_result
from merger.ops.fusing import Formula, formula_of
from merger.ops.kernels.codes import Stored
from merger.ops.measuring import measurement_of
from merger.ops.noise import HashKeys
from merger.ops.scratch import held_bytes
from merger.reading import LoadTensor, Range, Runtime, noise_positions, prefetch, row_length, stored_run
from merger.types import Fold

PIECE_ELEMENTS = 1 << 17
"""Elements of every input that a kernel is given at once, where rows need not stay together: they fit in the cache."""

MOST_ELEMENTS = 1 << 32
"""Of a tensor: beyond, the hash begins anew and counts may overflow."""


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

    def pieces(self, blocks: Sequence[Range]) -> Iterator[tuple[Range, Range, Stored]]:
        """Block, piece of it and ``[inputs, elements]`` bits, valid until the next piece is asked for.

        Raises:
            Cancelled: the run was.
        """
        prefetch(self.loads, blocks)
        for block in blocks:
            self._runtime.check()
            step = PIECE_ELEMENTS if self.row == 1 else block[1] - block[0]
            for start in range(*block, step):
                stop = min(start + step, block[1])
                yield block, (start, stop), self._read(start, stop)

    def _read(self, start: int, stop: int) -> Stored:
        bits = _held("inputs", len(self.loads) * (stop - start), self.dtype).reshape(len(self.loads), -1)
        for load, own in zip(self.loads, bits, strict=True):
            run = stored_run(load, start, stop)
            if run.nbytes == own.nbytes:
                run.fill(own.view(np.uint8).data)
            else:
                torch.from_numpy(own.view(np.float32)).copy_(as_stored(run, 0))
        return bits


def _held(slot: str, count: int, dtype: Any) -> Stored:
    """The thread's memory for so many elements, with undefined contents."""
    bits: Stored = held_bytes(slot, count * np.dtype(dtype).itemsize).view(dtype)
    return bits


def is_fusable(merge: BlockMerge, runtime: Runtime) -> bool:
    """Whether kernels are wanted and can read this tensor's inputs."""
    base_first = merge.base_model is None or merge.gather.models[0] == merge.base_model
    fits = base_first and prod(merge.shape) <= MOST_ELEMENTS
    return runtime.kernels and fits and all(map(_is_readable, merge.gather.loads))


def _is_readable(load: Task[Any]) -> bool:
    """Whether an input is one that float32 holds."""
    return isinstance(load, LoadTensor) and load.spec.is_float and load.spec.dtype != "F64"


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
    keys = HashKeys(runtime.seed, merge.output_weight.name, noise_positions(merge))
    dtype = np.uint16 if code == "BF16" else np.uint32
    for (block_start, block_stop), (start, stop), stored in inputs.pieces(blocks):
        if start == block_start:
            result, spoiled = _held("result", block_stop - block_start, dtype), 0
        own = result[start - block_start : stop - block_start]
        spoiled += formula.run(stored, inputs.row, keys.at(start), own)
        if stop == block_stop:
            write(block_start, *_as_bytes(result, code, spoiled))


def _as_bytes(result: Stored, code: str, spoiled: int) -> tuple[memoryview, int]:
    if code in ("BF16", "F32"):
        return result.view(np.uint8).data, spoiled
    return stored_result(torch.from_numpy(result.view(np.float32)), code)
