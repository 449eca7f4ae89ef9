"""Recipe and file headers, fully resolved: every output tensor, its inputs, and every problem."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.target import partial_folder, resolved
from merger.errors import PlanError, Problem
from merger.executors.base import AHEAD
from merger.graph import BlockMerge
from merger.kinship import kinship_problems, naming_notes
from merger.matching import index_models, match_tensors
from merger.methods.base import MergeMethod
from merger.ops.convert import working_dtype
from merger.outputs import OutputTensor
from merger.policy import Policy
from merger.reading import row_length
from merger.recipe import ModelEntry, Recipe, RunOptions, has_filters
from merger.rules import TensorPlanner
from merger.slicing import slice_problems
from merger.types import BLOCK_ELEMENTS, ModelReference
from merger.vocabulary import vocabulary_problems

__all__ = ["OutputTensor", "Plan", "make_plan"]

MIB = 1 << 20
COUNTER_BYTES = MIB // 2


@dataclass(frozen=True)
class Plan:
    """What a merge will do.

    Attributes:
        recipe: what was asked for.
        method: its merge method.
        checkpoints: the opened models, the base included.
        outputs: every output tensor, in writing order.
        problems: everything found: errors, warnings and notes.
        memory: upper bound of working memory in bytes, without torch itself.
    """

    recipe: Recipe
    method: MergeMethod
    checkpoints: Mapping[ModelReference, Checkpoint]
    outputs: tuple[OutputTensor, ...] = ()
    problems: tuple[Problem, ...] = ()
    memory: int = 0

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop the merge."""
        return tuple(problem for problem in self.problems if problem.level == "error")

    @cached_property
    def bytes_in(self) -> int:
        """Bytes of all input tensors that will be read, once each."""
        return sum(spec.nbytes for output in self.outputs for _, spec in output.sources)

    @cached_property
    def bytes_out(self) -> int:
        """Bytes of all output tensors; also the free disk that the merge needs."""
        return sum(output.nbytes for output in self.outputs)

    def require(self) -> None:
        """Insist that nothing stops the merge.

        Raises:
            PlanError: with all errors together.
        """
        if self.errors:
            raise PlanError(self.errors)

    def close(self) -> None:
        """Close the opened models."""
        for checkpoint in self.checkpoints.values():
            checkpoint.close()


class _Pause:
    """Holds back the search for unreachable objects while a plan is made, in any number of threads.

    A plan is hundreds of thousands of objects without cycles: looking through them takes longer than making them.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._was_enabled = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


uncollected = _Pause()


def make_plan(
    recipe: Recipe,
    method: MergeMethod,
    checkpoints: Mapping[ModelReference, Checkpoint],
    options: RunOptions,
    out: Path | None = None,
    policy: Policy | None = None,
) -> Plan:
    """Resolve a recipe against opened models; finds problems, never raises for them.

    Args:
        recipe: what to merge.
        method: the merge method it names.
        checkpoints: every model of the recipe, opened.
        options: how to run, for the memory estimate.
        out: where the result will stand, for the disk check.
        policy: limits of this installation.
    """
    problems = [*recipe.problems, *recipe_problems(recipe, method), *vocabulary_problems(recipe, checkpoints)]
    plan = Plan(recipe, method, checkpoints)
    indexes = index_models(recipe, checkpoints)
    problems += [*kinship_problems(indexes), *naming_notes(indexes)]
    problems += slice_problems(recipe, indexes)
    if not any(problem.level == "error" for problem in problems):
        planner = TensorPlanner(recipe, method, checkpoints, strict=options.strict)
        matches = match_tensors(recipe, checkpoints, indexes)
        planned = [planner.plan(match) for match in matches]
        outputs = tuple(output for output in planned if output is not None)
        problems += [*planner.problems(), *unmatched_filters(recipe, outputs)]
        plan = replace(plan, outputs=outputs, memory=memory_bound(outputs, options))
    problems += disk_problems(plan.bytes_out, out) if out else []
    problems += policy.size_problems(len(plan.outputs), plan.bytes_out) if policy else []
    return replace(plan, problems=tuple(dict.fromkeys(problems)))


def recipe_problems(recipe: Recipe, method: MergeMethod) -> Iterator[Problem]:
    """What a recipe and its method say without any model: base and number of models."""
    parts = [(part.sources, part.base_model or recipe.base_model) for part in recipe.slices]
    for entries, base in parts or [(recipe.models, recipe.base_model)]:
        yield from _count_problems(entries, base, method)


def _count_problems(
    entries: Sequence[ModelEntry], base: ModelReference | None, method: MergeMethod
) -> Iterator[Problem]:
    name = method.name()
    if method.base == "required" and base is None:
        yield Problem(f"{name} needs a base model", "base_model", "Add the model that the others were fine-tuned from.")
        return
    listed = [entry for entry in entries if entry.model != base or method.base in ("none", "reads_first")]
    if len(listed) < method.min_models or len(listed) > (method.max_models or len(listed)):
        beside = " besides the base" if method.base in ("required", "optional") and base else ""
        yield Problem(f"{name} merges {_wanted(method)}{beside}, the recipe lists {len(listed)}", "models")
    is_listed = any(entry.model == base for entry in entries)
    if base and is_listed and method.base == "required" and method.max_models != 1:
        yield Problem("the base is listed among the models; it has no change of its own and is ignored", level="note")
    if base and not is_listed and method.base == "none":
        yield Problem(
            f"{name} has no use for a base: only config and tokenizer are taken from it",
            "base_model",
            "List it under models too if it should be merged.",
            "warning",
        )


def _wanted(method: MergeMethod) -> str:
    low, high = method.min_models, method.max_models
    if low == high:
        return f"exactly {low} model{'s' if low > 1 else ''}"
    return f"at least {low} model{'s' if low > 1 else ''}" if high is None else f"{low} to {high} models"


def unmatched_filters(recipe: Recipe, outputs: Sequence[OutputTensor]) -> Iterator[Problem]:
    """Filters that are in no tensor's name, so that their line is for nothing."""
    names = {output.weight.name for output in outputs} | {spec.name for output in outputs for _, spec in output.sources}
    roles = sorted({output.weight.role for output in outputs if output.weight.layer is not None})[:6]
    hint = f"Parts of names here: {', '.join(roles)}." if roles else ""
    levels = [recipe.parameters, *(part.parameters for part in recipe.slices)]
    levels += [entry.parameters for entry in recipe.entries()]
    settings = [
        (parameter, setting) for level in levels for parameter, setting in level.items() if has_filters(setting)
    ]
    for parameter, lines in settings:
        for line in lines:
            if not any(map(line.matches, names)):
                message = f"no tensor's name has '{line.filter}' in it"
                yield Problem(message, f"a filter of {parameter}", hint, "warning")


def memory_bound(outputs: Sequence[OutputTensor], options: RunOptions) -> int:
    """Bytes of blocks, counters and whole tensors that can be alive at once."""
    return max((_working_set(output) for output in outputs), default=0) * options.worker_count


def _working_set(output: OutputTensor) -> int:
    """Bytes that one worker needs for a tensor."""
    models, task, total = len(output.sources), output.task, prod(output.shape)
    itemsize = working_dtype(spec.dtype for _, spec in output.sources if spec.is_float).itemsize
    if output.action == "merge" and not isinstance(task, BlockMerge):
        return (models * AHEAD + 4) * total * itemsize  # the next tasks' inputs are loaded meanwhile
    row, workspace = 1, 0
    if isinstance(task, BlockMerge):
        context = task.context()
        row, workspace = row_length(task.method.split(context), output.shape), task.method.workspace(context)
    return (models + 4) * min(total, max(row, BLOCK_ELEMENTS)) * itemsize + models * COUNTER_BYTES + workspace


def _size_text(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.3f} MB"


def disk_problems(needed: int, out: Path) -> list[Problem]:
    """What stands against writing so many bytes in or beside ``out``."""
    target = resolved(out)
    place = next(folder for folder in (target, *target.parents) if folder.exists())
    unfinished = partial_folder(target).glob("*.safetensors") if target.name else ()
    # What an interrupted merge holds already is used again, or deleted first.
    free = shutil.disk_usage(place).free + sum(file.stat().st_size for file in unfinished)
    if needed <= free:
        return []
    return [
        Problem(
            f"the result needs {_size_text(needed)} of disk, {_size_text(free)} are free",
            "output",
            "Free some space, choose another disk, or write a smaller dtype (out_dtype).",
        )
    ]
