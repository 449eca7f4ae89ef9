"""Work described as data: tasks, the tensors they gather, and the order they run in."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from merger.errors import MethodError, foreign_code
from merger.types import Block, Fold, ImmutableMap, ModelReference, Split, TensorContext, WeightInfo

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Nothing at run time; type checkers read it."""
        return lambda cls: cls


T_co = TypeVar("T_co", covariant=True)


def _computed_once(compute: Callable[[Any], int]) -> Callable[[Any], int]:
    """A hash that is remembered: a task is looked up many times, and its fields are tasks again."""

    def __hash__(self: Any) -> int:
        try:
            known: int = self._hash
        except AttributeError:
            known = compute(self)
            object.__setattr__(self, "_hash", known)
        return known

    return __hash__


@dataclass_transform(frozen_default=True)
class Task(ABC, Generic[T_co]):
    """A frozen value that says what to compute.  Equal tasks run once.

    A subclass annotates its fields, as a dataclass does, and defines `execute`; everything
    else has a default.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_own = cls.__dict__.get("__hash__") is not None
        dataclass(frozen=True)(cls)
        if not is_own:
            cls.__hash__ = _computed_once(cls.__hash__)  # type: ignore[assignment, method-assign]

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which is another one in another process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    def arguments(self) -> Mapping[str, Task[Any]]:
        """Tasks whose values `execute` receives by these names; by default the fields that are tasks."""
        return {name: value for name, value in _fields(self).items() if isinstance(value, Task)}

    @abstractmethod
    def execute(self, **values: Any) -> T_co:
        """Compute the value from the arguments' values."""

    def priority(self) -> int:
        """Within a group, higher runs earlier."""
        return 0

    def group_label(self) -> str | None:
        """Tasks of one group stay together; by default the greatest label among the arguments."""
        labels = [label for task in self.arguments().values() if (label := task.group_label()) is not None]
        return max(labels, default=None)

    def uses_accelerator(self) -> bool:
        """Whether tensor arguments are moved to the compute device first."""
        return False

    def title(self) -> str:
        """What messages call it: by its kind, and the tensor where a field says which."""
        weights = (value.name for value in _fields(self).values() if isinstance(value, WeightInfo))
        return " for ".join([f"the task {type(self).__name__}", *islice(weights, 1)])


def _fields(task: Any) -> dict[str, Any]:
    """A task's fields and their values; every task is a dataclass."""
    return {field.name: getattr(task, field.name) for field in fields(task)}


class MergeTensorInput(Task[dict[ModelReference, Any]]):
    """Gathers one tensor from every model that has it.

    Attributes:
        models: references in the recipe's order; the base comes first when the method reads it.
        loads: the task that loads each model's tensor, aligned with ``models``.
        positions: each model's place among the recipe's non-base models, None for the base.
    """

    models: tuple[ModelReference, ...]
    loads: tuple[Task[Any], ...]
    positions: tuple[int | None, ...]

    def arguments(self) -> Mapping[str, Task[Any]]:
        return {f"tensor_{index}": load for index, load in enumerate(self.loads)}

    def execute(self, **values: Any) -> dict[ModelReference, Any]:
        return {model: values[f"tensor_{index}"] for index, model in enumerate(self.models)}


class BlockMethod(Protocol):
    """What a method must offer so that its tensors can be computed in blocks."""

    def split(self, context: TensorContext) -> Split:
        """How this tensor may be cut."""
        ...

    def measure(self, context: TensorContext) -> Fold | None:
        """The measurement that must be complete before `combine`, or None."""
        ...

    def workspace(self, context: TensorContext) -> int:
        """Bytes that one block's measure or combine needs beside its inputs and result."""
        ...

    def deferred(self, context: TensorContext, measured: Any) -> Any:
        """The steps of `combine` written down, see `merger.ops.deferred`; None when it needs the numbers."""
        ...

    def combine(self, context: TensorContext, block: Block, measured: Any) -> Any:
        """The merged block, float32 (or float64), of the block's shape."""
        ...


class BlockMerge(Task[Any]):
    """The merge of one tensor by a method that works in blocks.

    Attributes:
        gather: the inputs; the base first when ``base_model`` is set.
        method: the mathematics.
        output_weight: the tensor being made.
        shape: its shape.
        parameters: global parameters, resolved for this tensor.
        tensor_parameters: per-model parameters by reference.
        base_model: the base's reference, None when this tensor has no base.
    """

    gather: MergeTensorInput
    method: BlockMethod
    output_weight: WeightInfo
    shape: tuple[int, ...]
    parameters: ImmutableMap[str, Any]
    tensor_parameters: ImmutableMap[ModelReference, ImmutableMap[str, Any]]
    base_model: ModelReference | None

    def context(self) -> TensorContext:
        """The facts that the method sees, aligned with ``Block.tensors``."""
        models = tuple(model for model in self.gather.models if model != self.base_model)
        return TensorContext(
            output_weight=self.output_weight,
            shape=self.shape,
            parameters=self.parameters,
            tensor_parameters=tuple(self.tensor_parameters.get(model, ImmutableMap()) for model in models),
            models=models,
            base_model=self.base_model,
        )

    def arguments(self) -> Mapping[str, Task[Any]]:
        """Nothing: its tensors are read span by span, not loaded whole."""
        return {}

    def execute(self, **values: Any) -> Any:
        raise AssertionError("a BlockMerge is expanded into spans, not executed")

    def group_label(self) -> str | None:
        return self.gather.group_label()

    def uses_accelerator(self) -> bool:
        return True


def ordered(roots: Sequence[Task[Any]]) -> list[Task[Any]]:
    """All tasks that ``roots`` need, each once, arguments before their users.

    Groups keep the order in which ``roots`` first name them; within a group higher priority
    comes first.  A task stands right before its first user, so loads happen as late as
    possible, and a task that several use runs once.
    """
    order: list[Task[Any]] = []
    done: set[Task[Any]] = set()
    for root in _grouped(roots):
        _visit(root, order, done)
    return order


def _grouped(roots: Sequence[Task[Any]]) -> list[Task[Any]]:
    rank: dict[str | None, int] = {}
    places = [(rank.setdefault(_group(root), len(rank)), -_priority(root)) for root in roots]
    return [root for _, root in sorted(zip(places, roots, strict=True), key=lambda pair: pair[0])]


def _group(task: Task[Any]) -> str | None:
    try:
        with foreign_code(task.title()):
            return task.group_label()
    except MethodError as error:
        if isinstance(error.__cause__, RecursionError):
            raise _endless(task) from None
        raise


def _priority(task: Task[Any]) -> int:
    with foreign_code(task.title()):
        priority = task.priority()
    if not isinstance(priority, int):
        raise MethodError(f"{task.title()} has the priority {priority!r}, which is no whole number.")
    return priority


def check_graph(root: Task[Any], where: str = "") -> None:
    """Insist that a task and all that it needs can run, as far as that shows before they do.

    Args:
        root: the task.
        where: the tensor that it makes, for messages.

    Raises:
        MethodError: a task cannot be compared, depends on itself, or does not take its arguments.
    """
    try:
        tasks = ordered([root])
    except TypeError as error:
        hint = "Use tuples, and ImmutableMap for dicts."
        raise MethodError(f"{_unhashable(root, error)}.", where=where, hint=hint) from error
    for task in tasks:
        refused = _refused(type(task), tuple(task.arguments()))
        if refused:
            raise MethodError(f"{task.title()} cannot be executed with its arguments: {refused}.", where=where)


def _unhashable(task: Task[Any], error: TypeError) -> str:
    """Which field keeps a task, or one that it holds, from being compared with others."""
    for name, value in _fields(task).items():
        try:
            hash(value)
        except TypeError:
            if isinstance(value, Task):
                return _unhashable(value, error)
            return f"{task.title()} holds a {type(value).__name__} in '{name}', which cannot be compared with others"
    return f"{task.title()}, or a task that it needs, cannot be compared with others: {error}"


@lru_cache(maxsize=1024)
def _refused(kind: type[Task[Any]], names: tuple[str, ...]) -> str | None:
    """Why `execute` does not take arguments of these names."""
    try:
        inspect.signature(kind.execute).bind(None, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def _arguments(task: Task[Any]) -> list[Task[Any]]:
    """The tasks whose values a task needs, those of high priority first."""
    with foreign_code(task.title()):
        arguments = task.arguments()
        if not isinstance(arguments, Mapping) or not all(isinstance(item, Task) for item in arguments.values()):
            raise MethodError(f"the arguments of {task.title()} must be tasks by name.")
    return sorted(arguments.values(), key=lambda argument: -_priority(argument))


def _endless(task: Task[Any]) -> MethodError:
    return MethodError(f"{task.title()} depends on itself.")


def _visit(root: Task[Any], order: list[Task[Any]], done: set[Task[Any]]) -> None:
    stack: list[tuple[Task[Any], Iterator[Task[Any]]]] = []
    active: set[Task[Any]] = set()

    def enter(task: Task[Any]) -> None:
        if task in active:
            raise _endless(task)
        active.add(task)
        stack.append((task, iter(_arguments(task))))

    if root not in done:
        enter(root)
    while stack:
        task, rest = stack[-1]
        argument = next(rest, None)
        if argument is None:
            stack.pop()
            active.discard(task)
            done.add(task)
            order.append(task)
        elif argument not in done:
            enter(argument)
