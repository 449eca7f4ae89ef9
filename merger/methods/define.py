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
from merger.types import Block, ConfigParameterDef, Fold, ImmutableMap, ModelReference, Split, TensorContext, WeightInfo

__all__ = ["Between", "DecoratedMethod", "each", "merge_method"]

Function = Callable[..., Tensor]


def merge_method(
    name: str,
    pretty_name: str | None = None,
    reference_url: str | None = None,
    *,
    split: Split | Callable[[TensorContext], Split] = "tensor",
    measure: Callable[[TensorContext], Fold | None] | None = None,
    check: Callable[[TensorContext], Iterable[Problem]] | None = None,
    copies: Callable[[TensorContext], int | None] | None = None,
    aliases: tuple[str, ...] = (),
    min_models: int = 1,
    max_models: int | None = None,
    preview: PreviewKind = "exact",
    base: BaseUse | None = None,
    skips_zero_weight: bool = False,
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
        aliases: other names.
        min_models: fewest models, the base not counted.
        max_models: most models.
        preview: how the method can be previewed.
        base: what becomes of the base model, when the signature does not say it.
        skips_zero_weight: whether a model of weight 0 changes nothing.

    Raises:
        MethodError: an argument is not understood, or the name is taken.
    """
    if not callable(split):
        _known_split(split, name)
    for word, helper in (("measure", measure), ("check", check), ("copies", copies)):
        if helper is not None and not callable(helper):
            raise MethodError(f"'{word}' of merge method '{name}' must be a function, not {helper!r}.")

    def decorate(function: Function) -> DecoratedMethod:
        method = DecoratedMethod(function, name, pretty_name, reference_url, read_signature(function, name))
        method.base = base or method.signature.base
        method.min_models, method.max_models, method.preview = min_models, max_models, preview
        method.aliases, method.skips_zero_weight = aliases, skips_zero_weight
        method.splits, method.measures, method.checks, method.copies = split, measure, check, copies
        registry.register(method)
        return method

    return decorate


class DecoratedMethod(MergeMethod):
    """A merge method made from a function; calling it calls the function.

    Attributes:
        function: the mathematics.
        signature: what it asks for.
        splits, measures, checks, copies: as given to `merge_method`.
    """

    splits: Split | Callable[[TensorContext], Split] = "tensor"
    measures: Callable[[TensorContext], Fold | None] | None = None
    checks: Callable[[TensorContext], Iterable[Problem]] | None = None
    copies: Callable[[TensorContext], int | None] | None = None

    def __init__(
        self, function: Function, name: str, pretty_name: str | None, reference_url: str | None, signature: Signature
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.signature = function, signature
        self.summary = summary_of(inspect.getdoc(function) or "")
        self._name, self._pretty_name, self._reference_url = name, pretty_name, reference_url

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
        values = _complete(self.signature.parameters, parameters)
        if base_model is not None and "base_model" in self.signature.special:
            values["base_model"] = base_model
        merge = BlockMerge(
            gather=tensors,
            method=self,
            output_weight=output_weight,
            shape=tuple(kwargs["shape"]),
            parameters=ImmutableMap(values),
            tensor_parameters=ImmutableMap(
                {model: self._per_model(tensor_parameters, model) for model in tensors.models}
            ),
            base_model=base_model if reads_base else None,
        )
        return self._copied(merge) or merge

    def _per_model(self, given: Mapping[ModelReference, Parameters], model: ModelReference) -> Parameters:
        return ImmutableMap(_complete(self.signature.tensor_parameters, given.get(model, {})))

    def _copied(self, merge: BlockMerge) -> Task[Any] | None:
        context = merge.context()
        with foreign_code(f"'copies' of merge method '{self._name}'", context.output_weight.name):
            index = None if self.copies is None else self.copies(context)
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


def _complete(arguments: Iterable[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name with defaults filled in; what has no default and no value stays out."""
    values: dict[str, Any] = {}
    for definition in (argument.definition for argument in arguments):
        value = given.get(definition.name, definition.default_value)
        if value is not None:
            usable = coerced(value, definition.type)
            values[definition.name] = value if usable is NOT_A_VALUE else usable
    return values
