"""Carries out a plan: runs its tasks, writes and verifies the output folder, and tells what happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merger.checkpoints.layout import plan_shards
from merger.checkpoints.writer import OutputFolder
from merger.devices import Processor, find_devices
from merger.errors import NonFiniteError, Problem
from merger.events import Event, Merged, Planned, ShardWritten, TensorMerged, Verified, Working
from merger.executors import make_executor
from merger.executors.base import HEARTBEAT_SECONDS
from merger.graph import Task
from merger.methods.define import DecoratedMethod
from merger.ops import kernels
from merger.plan import OutputTensor, Plan
from merger.portable import portable_recipe
from merger.reading import Runtime, as_tensor
from merger.recipe import RunOptions
from merger.sidefiles import side_files
from merger.sinks import FolderSink, MemorySink
from merger.tasks import WriteTensor, execute, expand
from merger.types import WeightInfo

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
    run = _Run(plan, options)
    yield from run.begin(out)
    with run.folder:
        yield from run.events()


class _Run:
    """One merge under way."""

    folder: OutputFolder

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self.plan, self.options = plan, options
        self.devices = find_devices(options.device)
        on_processor = all(isinstance(device, Processor) for device in self.devices)
        self.kernels = on_processor and use_kernels(plan)
        self.began = self.last_working = time.monotonic()
        self.recipe = portable_recipe(plan.recipe, plan.checkpoints)
        specs = [output.spec for output in plan.outputs]
        self.layouts = plan_shards(specs, options.shard_size, {"recipe": self.recipe})
        self.specs = {spec.name: spec for layout in self.layouts for spec in layout.tensors}
        self.sink: FolderSink | None = None
        self.done_before = 0
        self.current: WeightInfo | None = None

    def begin(self, out: Path) -> Iterator[Event]:
        """Make the folder; what an interrupted run left there is read and checked, which takes a while."""
        closed = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(self._make_folder, out, closed)
            try:
                yield from self._signs_of_life(made)
            except BaseException:
                closed.set()
                if made.exception() is None:
                    made.result().abandon()
                raise
        self.folder = made.result()
        self.sink = FolderSink(self.folder)
        self.done_before = self.sink.bytes_done

    def _make_folder(self, out: Path, closed: threading.Event) -> OutputFolder:
        inputs = {str(reference): checkpoint.state for reference, checkpoint in self.plan.checkpoints.items()}
        return OutputFolder.create(
            out,
            self.layouts,
            {"recipe": self.recipe, "inputs": inputs},
            overwrite=self.options.overwrite,
            resume=self.options.resume,
            inputs=[reference.path for reference in self.plan.checkpoints],
            stopped=lambda: closed.is_set() or self._stopped(),
        )

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
        runtime = Runtime(self.plan.recipe.seed, lambda: stop.is_set() or self._stopped(), self.kernels)
        roots = {self._root(output): output.weight for output in self.plan.outputs}
        left = Counter(spec.shard for spec in self.specs.values())
        done = 0
        with make_executor(self.options.worker_count, self.devices) as executor:
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
        assert self.sink is not None, "the folder is made before anything is written to it"
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
        done = self.sink.bytes_done if self.sink else 0
        rate = (done - self.done_before) / (now - self.began)
        rest = self.plan.bytes_out - done
        yield Working(
            tensor=self.current.name if self.current else "",
            bytes_done=done,
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
            yield from self._signs_of_life(placed)
        placed.result()

    def _signs_of_life(self, awaited: Future[Any]) -> Iterator[Event]:
        self.last_working = time.monotonic()
        while wait([awaited], HEARTBEAT_SECONDS).not_done:
            yield from self._working()


def use_kernels(plan: Plan) -> bool:
    """Whether compiled kernels shall do what they can of a plan; if so they are loaded."""
    method = plan.method
    if not (isinstance(method, DecoratedMethod) and method.fusable):
        return False
    merged = (output for output in plan.outputs if output.action == "merge")
    elements = sum(len(output.sources) * prod(output.shape) for output in merged)
    wanted = kernels.are_wanted(elements * kernels.DEMANDING if method.is_demanding else elements)
    if wanted:
        kernels.load()
    return wanted


def run_in_memory(plan: Plan) -> dict[str, Tensor]:
    """Merge without writing; for models that fit in memory.

    Returns:
        The output tensors by name, in the dtypes that a merge would write.
    """
    plan.require()
    sink = MemorySink({output.weight.name: output.nbytes for output in plan.outputs})
    runtime = Runtime(plan.recipe.seed, kernels=use_kernels(plan))
    roots = [WriteTensor(output.task, output.spec, sink) for output in plan.outputs]
    for _ in make_executor(0).run(
        roots,
        expand=lambda task: expand(task, runtime),
        call=lambda task, values: execute(task, values, runtime),
        stop=threading.Event(),
    ):
        pass
    return {output.weight.name: as_tensor(sink.data[output.weight.name], output.spec) for output in plan.outputs}
