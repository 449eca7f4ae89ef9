"""The parts of a recipe as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeGuard, Union

from merger.types import ImmutableMap, ModelReference


@dataclass(frozen=True)
class Filtered:
    """One line of a conditional setting.

    Attributes:
        filter: part of the names of the tensors it is for; None or ``*`` for every tensor.
        value: a scalar or a gradient.
    """

    filter: str | None
    value: Setting

    def matches(self, tensor_name: str) -> bool:
        """Whether the line is for this tensor."""
        return self.is_fallback or (self.filter or "") in tensor_name

    @property
    def is_fallback(self) -> bool:
        """Whether the line is for every tensor."""
        return self.filter is None or self.filter == "*"


Setting = Union[bool, int, float, str, "tuple[float, ...]", "tuple[Filtered, ...]"]
"""What a recipe may give for a parameter: a scalar, a gradient over the layers, or lines with filters."""


def has_filters(setting: Setting) -> TypeGuard[tuple[Filtered, ...]]:
    """Whether a setting consists of lines with filters."""
    return isinstance(setting, tuple) and isinstance(setting[0], Filtered)


def is_gradient(setting: Setting) -> TypeGuard[tuple[float, ...]]:
    """Whether a setting is a list of numbers over the layers."""
    return isinstance(setting, tuple) and not isinstance(setting[0], Filtered)


@dataclass(frozen=True)
class ModelEntry:
    """One model in ``models`` or among the sources of a slice.

    Attributes:
        model: which model.
        parameters: its own settings.
        layer_range: first layer and one past the last, in a slice; None for all layers.
    """

    model: ModelReference
    parameters: Mapping[str, Setting] = field(default_factory=ImmutableMap)
    layer_range: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", ImmutableMap(self.parameters))


@dataclass(frozen=True)
class Slice:
    """Consecutive output layers and the models that they are made from.

    Attributes:
        sources: the models, each with as many layers.
        parameters: settings for this slice.
        base_model: the base in this slice, None for the recipe's.
    """

    sources: tuple[ModelEntry, ...]
    parameters: Mapping[str, Setting] = field(default_factory=ImmutableMap)
    base_model: ModelReference | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", ImmutableMap(self.parameters))


@dataclass(frozen=True)
class TokenRule:
    """Where one token's embedding comes from.

    Attributes:
        source: a model, ``zero`` for a row of zeros, or None for the usual rule.
        token: the token of ``source`` to take, by its text; None for the same token.
        token_id: the same by its number.
        force: whether the row is replaced in models that have the token, too.
    """

    source: ModelReference | Literal["zero"] | None = None
    token: str | None = None
    token_id: int | None = None
    force: bool = False


@dataclass(frozen=True)
class TokenizerRule:
    """How the output's vocabulary is made.

    Attributes:
        source: ``union``, ``base`` or the model whose tokenizer is taken; None for the usual rule.
        tokens: rules for single tokens.
        pad_to_multiple_of: rows of the embedding are filled up to a multiple of this.
    """

    source: ModelReference | str | None = None
    tokens: Mapping[str, TokenRule] = field(default_factory=ImmutableMap)
    pad_to_multiple_of: int | None = None
