"""Carries out a plan: runs its tasks, writes and verifies the output folder, and tells what happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.layout import plan_shards
from merger.checkpoints.writer import OutputFolder
from merger.errors import NonFiniteError, Problem, UserError
from merger.events import Event, Merged, Planned, ShardWritten, TensorMerged, Verified, Working
from merger.executors import make_executor
from merger.graph import Task
from merger.plan import OutputTensor, Plan
from merger.portable import portable_recipe
from merger.reading import Runtime, as_tensor
from merger.recipe import RunOptions
from merger.sidefiles import side_files
from merger.tasks import WriteTensor, execute, expand
from merger.types import TensorSpec, WeightInfo

if TYPE_CHECKING:
    from torch import Tensor

WORKING_SECONDS = 0.2


def run_plan(plan: Plan, out: Path, options: RunOptions) -> Iterator[Event]:
    """Merge, write, verify and put in place.  Closing the iterator cancels.

    Args:
        plan: free of errors.
        out: the output folder.
        options: how to run.

    Raises:
        OutputError: the output place cannot be used.
        Cancelled: `RunOptions.cancel` was set; finished work is kept for a resume.
        NonFiniteError: `RunOptions.strict` and the result is not finite everywhere.
    """
    plan.require()
    run = _Run(plan, out, options)
    with run.folder:
        yield from run.events()


class FolderSink:
    """Writes blocks of tensors into an output folder and counts what arrives.

    Args:
        folder: the folder being made.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self._finished = {name: frozenset(spans) for name, spans in folder.finished.items()}
        self.bytes_done = sum(stop - start for spans in self._finished.values() for start, stop in spans)
        self._lock = threading.Lock()

    def is_finished(self, name: str, start: int, stop: int) -> bool:
        """Whether an earlier run wrote these bytes."""
        return (start, stop) in self._finished.get(name, ())

    def write(self, name: str, start: int, data: memoryview, non_finite: int) -> None:
        """Put a block at its place and record it."""
        self.folder.write(name, start, data, non_finite)
        self._count(data.nbytes)

    def copy(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Copy a piece of an input tensor as it is and record it."""
        self.folder.copy_from(name, checkpoint, spec, start, stop)
        self._count(stop - start)

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size


class _Run:
    """One merge under way."""

    def __init__(self, plan: Plan, out: Path, options: RunOptions) -> None:
        self.plan, self.options = plan, options
        self.began = time.monotonic()
        recipe = portable_recipe(plan.recipe, plan.checkpoints)
        layouts = plan_shards([output.spec for output in plan.outputs], options.shard_size, {"recipe": recipe})
        self.folder = OutputFolder.create(
            out,
            layouts,
            self._fingerprint(recipe),
            overwrite=options.overwrite,
            resume=options.resume,
            inputs=[reference.path for reference in plan.checkpoints],
            stopped=self._stopped,
        )
        self.sink = FolderSink(self.folder)
        self.layouts = layouts
        self.specs = {spec.name: spec for layout in layouts for spec in layout.tensors}
        self.done_before = self.sink.bytes_done
        self.last_working = self.began
        self.current: WeightInfo | None = None

    def _fingerprint(self, recipe: str) -> dict[str, Any]:
        inputs = {str(reference): checkpoint.state for reference, checkpoint in self.plan.checkpoints.items()}
        return {"recipe": recipe, "inputs": inputs}

    def events(self) -> Iterator[Event]:
        plan = self.plan
        yield Planned(
            tensors=len(plan.outputs),
            bytes_in=plan.bytes_in,
            bytes_out=plan.bytes_out,
            bytes_done=self.done_before,
            memory=plan.memory,
            problems=plan.problems,
        )
        yield from self._merge_tensors()
        for checkpoint in plan.checkpoints.values():
            checkpoint.verify_unchanged()
        self._add_side_files()
        yield from self._verify()
        yield from self._commit()
        yield Merged(
            path=str(self.folder.target),
            seconds=time.monotonic() - self.began,
            bytes_out=plan.bytes_out,
            bytes_read=sum(checkpoint.bytes_read for checkpoint in plan.checkpoints.values()),
        )

    def _merge_tensors(self) -> Iterator[Event]:
        stop = threading.Event()
        device = compute_device(self.options.device)
        runtime = Runtime(self.plan.recipe.seed, device, lambda: stop.is_set() or self._stopped())
        roots = {self._root(output): output.weight for output in self.plan.outputs}
        left = Counter(spec.shard for spec in self.specs.values())
        done = 0
        with make_executor(self.options.worker_count) as executor:
            for step in executor.run(
                list(roots),
                expand=lambda task: expand(task, runtime),
                call=lambda task, values: execute(task, values, runtime),
                stop=stop,
            ):
                runtime.check()
                if step is not None:
                    done += 1
                    weight = self.current = roots[step.task]
                    yield TensorMerged(weight.name, weight.layer, weight.role, done, len(roots))
                    yield from self._shard_events(weight.name, left)
                yield from self._working()

    def _root(self, output: OutputTensor) -> Task[Any]:
        return WriteTensor(output.task, self.specs[output.weight.name], self.sink)

    def _shard_events(self, name: str, left: Counter[str]) -> Iterator[Event]:
        shard = self.specs[name].shard
        left[shard] -= 1
        if not left[shard]:
            yield ShardWritten(shard, next(layout.size for layout in self.layouts if layout.file == shard))

    def _working(self) -> Iterator[Event]:
        now = time.monotonic()
        if now - self.last_working < WORKING_SECONDS:
            return
        self.last_working = now
        rate = (self.sink.bytes_done - self.done_before) / (now - self.began)
        rest = self.plan.bytes_out - self.sink.bytes_done
        yield Working(
            tensor=self.current.name if self.current else "",
            bytes_done=self.sink.bytes_done,
            bytes_out=self.plan.bytes_out,
            bytes_per_second=rate,
            seconds_left=rest / rate if rate else None,
        )

    def _stopped(self) -> bool:
        return self.options.cancel is not None and self.options.cancel.is_set()

    def _add_side_files(self) -> None:
        method = self.plan.method
        for name, content in side_files(
            self.plan.recipe,
            self.plan.checkpoints,
            self.plan.outputs,
            method_name=method.pretty_name() or method.name(),
            method_url=method.reference_url(),
            copy_files=self.options.copy_files,
            write_readme=self.options.write_readme,
        ):
            self.folder.add_file(name, content)

    def _verify(self) -> Iterator[Event]:
        steps = self.folder.verify_steps(self._stopped)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                non_finite: dict[str, int] = end.value
                break
            yield from self._working()
        if non_finite and self.options.strict:
            raise NonFiniteError(
                [
                    Problem(f"{count} values are infinite or NaN", name, "Try out_dtype: bfloat16, or smaller weights.")
                    for name, count in sorted(non_finite.items())
                ]
            )
        yield Verified(len(self.layouts), len(self.plan.outputs), self.plan.bytes_out, non_finite)

    def _commit(self) -> Iterator[Event]:
        """Make the result durable and put it in place, which large ones take a while for and nothing stops."""
        with ThreadPoolExecutor(1) as pool:
            placed = pool.submit(self.folder.commit)
            while wait([placed], WORKING_SECONDS).not_done:
                yield from self._working()
        placed.result()


def compute_device(wanted: str) -> str:
    """The torch device of a run.

    Raises:
        UserError: a CUDA device was asked for and there is none.
    """
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no CUDA device was found", where="device", hint="Use --device cpu, or auto.")
    return wanted


class MemorySink:
    """Collects blocks into bytes in memory."""

    def __init__(self, plan: Plan) -> None:
        self.data = {output.weight.name: bytearray(output.nbytes) for output in plan.outputs}

    def is_finished(self, name: str, start: int, stop: int) -> bool:
        """Nothing is, at the beginning."""
        return False

    def write(self, name: str, start: int, data: memoryview, non_finite: int) -> None:
        """Put a block at its place."""
        self.data[name][start : start + len(data)] = data

    def copy(self, name: str, checkpoint: Checkpoint, spec: TensorSpec, start: int, stop: int) -> None:
        """Read a piece of an input tensor as it is."""
        checkpoint.read_into(spec, start, memoryview(self.data[name])[start:stop])


def run_in_memory(plan: Plan) -> dict[str, Tensor]:
    """Merge without writing; for models that fit in memory.

    Returns:
        The output tensors by name, in the dtypes that a merge would write.
    """
    plan.require()
    sink, runtime = MemorySink(plan), Runtime(plan.recipe.seed)
    roots = [WriteTensor(output.task, output.spec, sink) for output in plan.outputs]
    for _ in make_executor(0).run(
        roots,
        expand=lambda task: expand(task, runtime),
        call=lambda task, values: execute(task, values, runtime),
        stop=threading.Event(),
    ):
        pass
    return {output.weight.name: as_tensor(sink.data[output.weight.name], output.spec) for output in plan.outputs}
