"""Runs a merge method over one tensor in blocks, the way the engine does: split, measure in passes, combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from merger.errors import Problem
from merger.graph import BlockMerge, MergeTensorInput, Task
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.ops.noise import BlockNoise
from merger.types import BLOCK_ELEMENTS, Block, ImmutableMap, ModelReference, TensorContext, WeightInfo

BASE = ModelReference("base")


class Held(Task[Tensor]):
    """A tensor that is there already."""

    place: int

    def execute(self, **values: Any) -> Tensor:
        raise AssertionError("the driver hands tensors over itself")


def make_task(
    method: MergeMethod,
    *,
    shape: Sequence[int],
    models: int,
    base: bool,
    parameters: Mapping[str, Any],
    per_model: Mapping[str, Sequence[Any]],
    name: str = "layer.weight",
    positions: Sequence[int] | None = None,
) -> Task[Any]:
    """The task that the planner would get for one tensor of ``models`` models."""
    references = [ModelReference(f"model-{index}") for index in range(models)]
    own = {
        reference: ImmutableMap({key: values[index] for key, values in per_model.items()})
        for index, reference in enumerate(references)
    }
    places = list(positions) if positions is not None else list(range(models))
    gather = MergeTensorInput(
        models=(*([BASE] if base else []), *references),
        loads=tuple(Held(place=place) for place in range(models + base)),
        positions=(*([None] if base else []), *places),
    )
    return method.make_task(
        output_weight=WeightInfo(name),
        tensors=gather,
        parameters=ImmutableMap(parameters),
        tensor_parameters=ImmutableMap(own),
        base_model=BASE if base else None,
        shape=tuple(shape),
    )


def run(
    method: MergeMethod,
    tensors: Sequence[Tensor],
    base: Tensor | None = None,
    *,
    seed: int = 0,
    name: str = "layer.weight",
    positions: Sequence[int] | None = None,
    block: int = BLOCK_ELEMENTS,
    span: int = 3,
    out: torch.dtype | None = None,
    parameters: Mapping[str, Any] | None = None,
    **per_model: Sequence[Any],
) -> Tensor:
    """Merge one tensor; inputs are widened, the result is rounded once to ``out``.

    Args:
        method: what merges.
        tensors: one per model.
        base: the base model's tensor.
        seed: of the noise.
        name: of the tensor.
        positions: of the models among the recipe's non-base models.
        block: about how many elements a block has.
        span: how many blocks share a state.
        out: dtype of the result, by default the inputs'.
        parameters: global parameters.
        **per_model: per-model parameters, aligned with ``tensors``.
    """
    given = [*([base] if base is not None else []), *tensors]
    task = make_task(
        method,
        shape=given[0].shape,
        models=len(tensors),
        base=base is not None,
        parameters=parameters or {},
        per_model=per_model,
        name=name,
        positions=positions,
    )
    if isinstance(task, Held):
        return given[task.place].to(out or given[0].dtype)
    assert isinstance(task, BlockMerge)
    wide = torch.float64 if any(t.dtype == torch.float64 for t in given) else torch.float32
    blocks = Blocks(task, [t.to(wide) for t in given], seed, block)
    measured = measure(task, blocks, span)
    context = task.context()
    pieces = [task.method.combine(context, piece, measured).reshape(-1) for piece in blocks]
    return torch.cat(pieces).reshape(given[0].shape).to(out or given[0].dtype)


def measure(task: BlockMerge, blocks: Blocks, span: int = 3) -> Any:
    """The measured value, with a state per span of blocks, joined in order, pass after pass."""
    fold, value = task.method.measure(task.context()), None
    while fold is not None:
        states = []
        for number, piece in enumerate(blocks):
            if number % span == 0:
                states.append(fold.start())
            states[-1] = fold.add(states[-1], piece)
        state = states[0]
        for following in states[1:]:
            state = fold.join(state, following)
        value = fold.finish(state)
        fold, value = (value, None) if hasattr(value, "finish") else (None, value)
    return value


class Blocks:
    """The blocks of one tensor's inputs, fresh in each pass because methods overwrite them."""

    def __init__(self, task: BlockMerge, wide: Sequence[Tensor], seed: int, size: int) -> None:
        self.task, self.wide, self.seed, self.size = task, wide, seed, size
        self.split = task.method.split(task.context())
        self.base = task.gather.models.index(task.base_model) if task.base_model else None

    def __iter__(self) -> Iterator[Block]:
        shape = self.task.shape
        if self.split == "tensor":
            yield self._block(0, prod(shape), shape)
            return
        row = {
            "elements": 1,
            "rows": shape[-1] if shape else 1,
            "leading": prod(shape[1:]) if len(shape) > 1 else prod(shape),
        }[self.split]
        step = max(1, self.size // row) * row
        for start in range(0, prod(shape), step):
            count = min(step, prod(shape) - start)
            yield self._block(start, count, (count,) if self.split == "elements" else (count // row, row))

    def _block(self, start: int, count: int, shape: tuple[int, ...]) -> Block:
        pieces = [t.reshape(-1)[start : start + count].clone().reshape(shape) for t in self.wide]
        positions = [p for slot, p in enumerate(self.task.gather.positions) if slot != self.base]
        base = None if self.base is None else pieces.pop(self.base)
        return Block(pieces, base, BlockNoise(self.seed, self.task.output_weight.name, positions, start, shape))


def merge(method: str, *args: Any, **kwargs: Any) -> Tensor:
    """`run` with a registered method's name."""
    return run(registry.get(method), *args, **kwargs)


def copied(
    method: str,
    models: int,
    parameters: Mapping[str, Any] | None = None,
    *,
    base: bool = False,
    **per_model: Sequence[Any],
) -> int | None:
    """Which input the planner may copy instead of merging, the base counted first."""
    task = make_task(
        registry.get(method), shape=(4,), models=models, base=base, parameters=parameters or {}, per_model=per_model
    )
    return task.place if isinstance(task, Held) else None


def problems(method: str, parameters: Mapping[str, Any] | None = None, **per_model: Sequence[Any]) -> list[Problem]:
    """What a registered method's check finds, with defaults for what is not given."""
    found = registry.get(method)
    count = len(next(iter(per_model.values()), [None]))
    defaults = {d.name: d.default_value for d in found.parameters() if not d.required}
    own = [
        ImmutableMap(
            {d.name: d.default_value for d in found.tensor_parameters() if not d.required}
            | {name: values[model] for name, values in per_model.items()}
        )
        for model in range(count)
    ]
    models = tuple(ModelReference(name) for name in "abcdef"[:count])
    return found.check(
        TensorContext(WeightInfo("w"), (4,), ImmutableMap(defaults | (parameters or {})), tuple(own), models)
    )
