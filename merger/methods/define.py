"""Merge methods from plain functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from torch import Tensor

from merger.errors import MethodError, Problem, foreign_code
from merger.graph import BlockMerge, MergeTensorInput, Task
from merger.methods import registry
from merger.methods.base import NOT_A_VALUE, BaseUse, MergeMethod, Parameters, PreviewKind, coerced
from merger.methods.signature import Argument, Between, Signature, each, read_signature, summary_of
from merger.ops.convert import result_problem
from merger.ops.deferred import Input
from merger.ops.noise import BlockNoise
from merger.types import Block, ConfigParameterDef, Fold, ImmutableMap, ModelReference, Split, TensorContext, WeightInfo

__all__ = ["Between", "DecoratedMethod", "each", "merge_method"]

Function = Callable[..., Tensor]
REMEMBERED_MAPS = 4096
_NO_NOISE = BlockNoise(0, "", (), 0, (0,))


def merge_method(
    name: str,
    pretty_name: str | None = None,
    reference_url: str | None = None,
    *,
    split: Split | Callable[[TensorContext], Split] = "tensor",
    measure: Callable[[TensorContext], Fold | None] | None = None,
    check: Callable[[TensorContext], Iterable[Problem]] | None = None,
    copies: Callable[[TensorContext], int | None] | None = None,
    workspace: Callable[[TensorContext], int] | None = None,
    aliases: tuple[str, ...] = (),
    min_models: int = 1,
    max_models: int | None = None,
    preview: PreviewKind = "exact",
    needs_whole: Callable[[TensorContext], bool] | None = None,
    base: BaseUse | None = None,
    skips_zero_weight: bool = False,
    fusable: bool | Callable[[TensorContext], bool] = False,
) -> Callable[[Function], DecoratedMethod]:
    """Make a typed function a merge method and register it.

    The function takes ``tensors: List[Tensor]``, float32 or float64, in the recipe's order, and returns
    the merged tensor of the same shape. With an argument ``base_tensor: Tensor`` the base is
    given there and not in ``tensors``; with ``Optional[Tensor]`` a recipe need not have one; without
    it a base model, if any, is the first of ``tensors``. ``bool``, ``int`` and ``float`` arguments are
    parameters of the recipe; ``List[float]`` and ``List[int]`` have one value for each of ``tensors``.
    ``output_weight``, ``base_model``, ``measured`` and ``noise`` are filled in by name.

    The function may overwrite the tensors it is given.

    Args:
        name: as recipes write it.
        pretty_name: for people.
        reference_url: a paper or page.
        split: how tensors may be cut into blocks; by default not at all.
        measure: makes the `Fold` whose value the function gets as ``measured``, or None.
        check: finds problems of a tensor's parameters beyond types and bounds.
        copies: index among ``TensorContext.models`` of the model whose tensor is the result as it stands,
            -1 for the base, or None.
        workspace: upper bound of the bytes that the function holds at once beside a block of every input and one
            of its result, for a method that needs more than a few blocks.
        aliases: other names.
        min_models: fewest models, the base not counted.
        max_models: most models.
        preview: how the method can be previewed.
        needs_whole: for which parameters it can be previewed on whole tensors only, whatever ``preview`` says.
        base: what becomes of the base model, when the signature does not say it.
        skips_zero_weight: whether a model of weight 0 changes nothing.
        fusable: whether (or for which parameters) the function consists of steps of `merger.ops` alone, so that a
            compiled kernel may take them in one pass over memory.

    Raises:
        MethodError: an argument is not understood, or the name is taken.
    """
    if not callable(split):
        _known_split(split, name)
    functions = {"measure": measure, "check": check, "copies": copies, "workspace": workspace}
    for word, helper in {**functions, "needs_whole": needs_whole}.items():
        if helper is not None and not callable(helper):
            raise MethodError(f"'{word}' of merge method '{name}' must be a function, not {helper!r}.")

    def decorate(function: Function) -> DecoratedMethod:
        method = DecoratedMethod(function, name, pretty_name, reference_url, read_signature(function, name))
        method.base = base or method.signature.base
        method.min_models, method.max_models, method.preview = min_models, max_models, preview
        method.aliases, method.skips_zero_weight = aliases, skips_zero_weight
        method.splits, method.measures, method.checks, method.copies = split, measure, check, copies
        method.wants_whole, method.workspaces = needs_whole, workspace
        method.fusable = fusable
        registry.register(method)
        return method

    return decorate


class DecoratedMethod(MergeMethod):
    """A merge method made from a function; calling it calls the function.

    Attributes:
        function: the mathematics.
        signature: what it asks for.
        splits, measures, checks, copies, workspaces, wants_whole, fusable: as given to `merge_method`.
    """

    splits: Split | Callable[[TensorContext], Split] = "tensor"
    measures: Callable[[TensorContext], Fold | None] | None = None
    checks: Callable[[TensorContext], Iterable[Problem]] | None = None
    copies: Callable[[TensorContext], int | None] | None = None
    workspaces: Callable[[TensorContext], int] | None = None
    wants_whole: Callable[[TensorContext], bool] | None = None
    fusable: bool | Callable[[TensorContext], bool] = False

    def __init__(
        self, function: Function, name: str, pretty_name: str | None, reference_url: str | None, signature: Signature
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.signature = function, signature
        self.summary = summary_of(inspect.getdoc(function) or "")
        self._name, self._pretty_name, self._reference_url = name, pretty_name, reference_url
        self._shared, self._per_model = _Completer(signature.parameters), _Completer(signature.tensor_parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **kwargs)

    def name(self) -> str:
        return self._name

    def pretty_name(self) -> str | None:
        return self._pretty_name

    def reference_url(self) -> str | None:
        return self._reference_url

    def parameters(self) -> list[ConfigParameterDef]:
        return [argument.definition for argument in self.signature.parameters]

    def tensor_parameters(self) -> list[ConfigParameterDef]:
        return [argument.definition for argument in self.signature.tensor_parameters]

    def make_task(
        self,
        *,
        output_weight: WeightInfo,
        tensors: MergeTensorInput,
        parameters: Parameters,
        tensor_parameters: ImmutableMap[ModelReference, Parameters],
        base_model: ModelReference | None,
        **kwargs: Any,
    ) -> Task[Any]:
        """The merge of one tensor in blocks, or the loading of the one tensor that is the result."""
        reads_base = "base_tensor" in self.signature.special
        values = self._shared(parameters)
        if base_model is not None and "base_model" in self.signature.special:
            values = ImmutableMap({**values, "base_model": base_model})
        merge = BlockMerge(
            gather=tensors,
            method=self,
            output_weight=output_weight,
            shape=tuple(kwargs["shape"]),
            parameters=values,
            tensor_parameters=ImmutableMap(
                {model: self._per_model(tensor_parameters.get(model, _NOTHING)) for model in tensors.models}
            ),
            base_model=base_model if reads_base else None,
        )
        return self._copied(merge) or merge

    def _copied(self, merge: BlockMerge) -> Task[Any] | None:
        if self.copies is None:
            return None
        context = merge.context()
        with foreign_code(f"'copies' of merge method '{self._name}'", context.output_weight.name):
            index = self.copies(context)
        if index is None:
            return None
        model = context.base_model if index < 0 else context.models[index]
        return merge.gather.loads[merge.gather.models.index(model)] if model is not None else None

    def check(self, context: TensorContext) -> list[Problem]:
        found = super().check(context)
        if self.checks is not None and not found:
            with foreign_code(f"'check' of merge method '{self._name}'", context.output_weight.name):
                found += self.checks(context)
        return found

    def needs_whole(self, context: TensorContext) -> bool:
        """Whether only the whole of this tensor shows what becomes of it."""
        if self.wants_whole is None or super().needs_whole(context):
            return super().needs_whole(context)
        with foreign_code(f"'needs_whole' of merge method '{self._name}'", context.output_weight.name):
            return self.wants_whole(context)

    def split(self, context: TensorContext) -> Split:
        """How this tensor may be cut.

        Raises:
            MethodError: the method's own answer is none.
        """
        if not callable(self.splits):
            return self.splits
        with foreign_code(f"'split' of merge method '{self._name}'", context.output_weight.name):
            chosen = self.splits(context)
        return _known_split(chosen, self._name)

    def measure(self, context: TensorContext) -> Fold | None:
        """The measurement that must be complete before `combine`, or None."""
        if self.measures is None:
            return None
        with foreign_code(f"'measure' of merge method '{self._name}'", context.output_weight.name):
            return self.measures(context)

    def workspace(self, context: TensorContext) -> int:
        """Bytes that one block's measure or combine needs beside its inputs and result."""
        if self.workspaces is None:
            return 0
        with foreign_code(f"'workspace' of merge method '{self._name}'", context.output_weight.name):
            return int(self.workspaces(context))

    @property
    def is_demanding(self) -> bool:
        """Whether tensors are measured first, or random numbers drawn: both cost far more than a sum."""
        return self.measures is not None or "noise" in self.signature.special

    def deferred(self, context: TensorContext, measured: Any) -> Any:
        """The function's steps written down, for inputs that stand for those of any block; None if not `fusable`."""
        if not (self.fusable(context) if callable(self.fusable) else self.fusable):
            return None
        first = 0 if context.base_model is None else 1
        inputs: list[Any] = [Input(first + model) for model in range(len(context.models))]
        block = Block(inputs, Input(0) if first else None, _NO_NOISE)
        arguments = self._arguments(context, block, measured)
        with foreign_code(f"merge method '{self._name}'", context.output_weight.name):
            return self.function(**arguments)

    def combine(self, context: TensorContext, block: Block, measured: Any) -> Tensor:
        """The function's value for one block.

        Raises:
            MethodError: the function returned something that is not a tensor of the block's shape.
        """
        expected, arguments = block.tensors[0].shape, self._arguments(context, block, measured)
        with foreign_code(f"merge method '{self._name}'", context.output_weight.name):
            result = self.function(**arguments)
        shown = result_problem(result, expected)
        if shown is not None:
            raise MethodError(
                f"merge method '{self._name}' returned {shown} instead of shape {list(expected)}.",
                where=context.output_weight.name,
            )
        return result

    def _arguments(self, context: TensorContext, block: Block, measured: Any) -> dict[str, Any]:
        special = {
            "tensors": block.tensors,
            "base_tensor": block.base,
            "output_weight": context.output_weight,
            "base_model": context.base_model or context.parameters.get("base_model"),
            "measured": measured,
            "noise": block.noise,
        }
        values = {name: special[name] for name in self.signature.special}
        for argument in self.signature.parameters:
            values[argument.name] = self._value(argument, context.parameters)
        for argument in self.signature.tensor_parameters:
            values[argument.name] = [self._value(argument, own) for own in context.tensor_parameters]
        return values

    def _value(self, argument: Argument, given: Mapping[str, Any]) -> Any:
        definition = argument.definition
        value = given.get(definition.name, definition.default_value)
        if isinstance(value, Tensor):
            return value
        value = coerced(value, definition.type)
        if value is NOT_A_VALUE:
            raise MethodError(
                f"merge method '{self._name}' has no usable value for '{definition.name}'.",
                hint="Give one in the recipe's parameters.",
            )
        return value


def _known_split(split: Any, method: str) -> Split:
    """The split, if it is one."""
    if split not in get_args(Split):
        raise MethodError(
            f"'split' of merge method '{method}' is {split!r}.", hint=f"Known: {', '.join(get_args(Split))}."
        )
    known: Split = split
    return known


_NOTHING: Parameters = ImmutableMap()


class _Completer:
    """Fills in defaults, once for each map: the planner gives the same one to thousands of tensors.

    Maps are told apart by identity, not by value: 1, 1.0 and true are equal, and mean different things.

    Args:
        arguments: what belongs into a map; without default and value it stays out.
    """

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self._definitions = [argument.definition for argument in arguments]
        self._known: dict[int, tuple[Parameters, Parameters]] = {}

    def __call__(self, given: Parameters) -> Parameters:
        known = self._known.get(id(given))
        if known is None or known[0] is not given:
            if len(self._known) >= REMEMBERED_MAPS:
                self._known.clear()
            known = self._known[id(given)] = given, self._complete(given)
        return known[1]

    def _complete(self, given: Parameters) -> Parameters:
        values: dict[str, Any] = {}
        for definition in self._definitions:
            value = given.get(definition.name, definition.default_value)
            if value is not None:
                usable = coerced(value, definition.type)
                values[definition.name] = value if usable is NOT_A_VALUE else usable
        return ImmutableMap(values)
