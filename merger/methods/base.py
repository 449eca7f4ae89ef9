"""What every merge method offers to the planner."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from merger.errors import Problem
from merger.graph import MergeTensorInput, Task
from merger.methods.signature import summary_of
from merger.types import ConfigParameterDef, ImmutableMap, ModelReference, TensorContext, WeightInfo

BaseUse = Literal["required", "optional", "reads_first", "none"]
"""What a method does with the recipe's base model.

``required`` and ``optional``: it is an input of its own. ``reads_first``: it is simply the first of the
tensors. ``none``: it gives configuration and tokenizer only.
"""

PreviewKind = Literal["sample", "gram", "exact"]
"""How a method can be previewed.

``sample``: `combine` works on any elements, also on ``[tensors, samples]`` with columns as parameters.
``gram``: so it does, with coefficients from a Gram matrix that a sample estimates.
``exact``: only whole tensors give its figures.
"""

Parameters = ImmutableMap[str, Any]


class MergeMethod(ABC):
    """A named formula with typed parameters.

    Attributes:
        base: what becomes of the base model.
        min_models: fewest models, the base not counted.
        max_models: most models, None for any number.
        preview: how it can be previewed.
        summary: one sentence for people; of a class that gives none, the first of its docstring.
        aliases: other names that recipes may use.
        skips_zero_weight: whether a model whose weight is 0 changes nothing, so that it need not be read.
        needs_base_values: whether a base among the tensors needs its own values of required parameters;
            else they are None where the recipe gives none.
    """

    base: BaseUse = "reads_first"
    min_models: int = 1
    max_models: int | None = None
    preview: PreviewKind = "exact"
    summary: str = ""
    aliases: tuple[str, ...] = ()
    skips_zero_weight: bool = False
    needs_base_values: bool = False

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        if cls.__doc__ and "summary" not in vars(cls):
            cls.summary = summary_of(cls.__doc__)

    @abstractmethod
    def name(self) -> str:
        """The name that recipes use."""

    def pretty_name(self) -> str | None:
        """The name that people read."""
        return None

    def reference_url(self) -> str | None:
        """Where the method is described."""
        return None

    def parameters(self) -> list[ConfigParameterDef]:
        """Parameters that have one value for all models."""
        return []

    def tensor_parameters(self) -> list[ConfigParameterDef]:
        """Parameters that have one value for each model."""
        return []

    @abstractmethod
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
        """The work that makes one output tensor.

        Args:
            output_weight: the tensor that is being made.
            tensors: gathers the inputs; the base first when the method reads one.
            parameters: global parameters, resolved for this tensor.
            tensor_parameters: per-model parameters by reference.
            base_model: the base's reference, None when this tensor has no base.
            **kwargs: other facts, of which methods use what they know: ``shape``, the output's shape.
        """

    def needs_whole(self, context: TensorContext) -> bool:
        """Whether only the whole of this tensor shows what becomes of it."""
        return self.preview == "exact"

    def check(self, context: TensorContext) -> list[Problem]:
        """What is wrong with one tensor's parameters: missing values, wrong types, bounds.

        Messages name the parameter and the model but not the tensor, so that equal ones can be counted
        together, and are sentences without a full stop. Methods that override this add their own.
        """
        found = _problems(self.parameters(), context.parameters, "")
        definitions = self.tensor_parameters()
        for model, values in zip(context.models, context.tensor_parameters, strict=True):
            found += _problems(definitions, values, f" of {model.short_name}")
        return found


def _problems(definitions: Sequence[ConfigParameterDef], values: Mapping[str, Any], owner: str) -> list[Problem]:
    messages = (_wrong(definition, values, f"{definition.name}{owner}") for definition in definitions)
    return [Problem(message) for message in messages if message]


def _wrong(definition: ConfigParameterDef, values: Mapping[str, Any], name: str) -> str | None:
    if definition.name not in values:
        return f"{name} is needed and has no value" if definition.required else None
    value = values[definition.name]
    if value is None and definition.default_value is None:
        return None
    return value_problem(definition, value, name)


def value_problem(definition: ConfigParameterDef, value: Any, name: str) -> str | None:
    """Why a value cannot be used for a parameter, without a full stop; None when it can."""
    if coerced(value, definition.type) is NOT_A_VALUE:
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        return f"{name} is {shown} but must be {_KINDS.get(definition.type, definition.type.__name__)}"
    below = definition.minimum is not None and value < definition.minimum
    above = definition.maximum is not None and value > definition.maximum
    return f"{name} is {value:g} but must {_bounds(definition)}" if below or above else None


_KINDS = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text"}


def _bounds(definition: ConfigParameterDef) -> str:
    low, high = definition.minimum, definition.maximum
    if low is not None and high is not None:
        return f"lie between {low:g} and {high:g}"
    return f"be at least {low:g}" if low is not None else f"be at most {high:g}"


NOT_A_VALUE: Any = object()


def coerced(value: Any, kind: type) -> Any:
    """A recipe's value as ``kind``, or `NOT_A_VALUE`: whole numbers are floats too, but switches are no numbers."""
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number and math.isfinite(value) else NOT_A_VALUE
    if kind is int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else NOT_A_VALUE
    if kind is bool and isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    return value if isinstance(value, kind) else NOT_A_VALUE


@dataclass(frozen=True)
class MethodFacts:
    """What people and pages need to know of a method.

    Attributes:
        name, pretty_name, aliases: how it is called.
        summary: one sentence.
        description: its documentation: formula, paper, when to use it.
        reference_url: where it is described, or None.
        base, min_models, max_models, preview: as in `MergeMethod`.
        parameters: those with one value for all models.
        tensor_parameters: those with one value for each model.
    """

    name: str
    pretty_name: str
    aliases: tuple[str, ...]
    summary: str
    description: str
    reference_url: str | None
    base: BaseUse
    min_models: int
    max_models: int | None
    preview: PreviewKind
    parameters: tuple[ConfigParameterDef, ...]
    tensor_parameters: tuple[ConfigParameterDef, ...]
