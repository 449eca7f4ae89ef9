"""Steps that are written down instead of carried out, so that a kernel can take several of them at once.

A merge function that consists of shared steps alone can be called with `Input` in place of its tensors. Every
`deferrable` step then returns a `Step`; `merger.ops.fusing` reads off the last one what the function computes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Deferred:
    """Stands for numbers that are not there yet."""


@dataclass(frozen=True)
class Input(Deferred):
    """One input of every block.

    Attributes:
        row: its place among the inputs, the base first.
    """

    row: int


@dataclass(frozen=True)
class Step(Deferred):
    """A shared step and what it is applied to.

    Attributes:
        name: the step's function.
        arguments: its arguments by name, defaults included.
    """

    name: str
    arguments: Mapping[str, Any]


def deferrable(step: Function) -> Function:
    """Make a step return a `Step` when its first argument, or the first item of that, is deferred."""
    signature = inspect.signature(step)

    @functools.wraps(step)
    def call(first: Any, *others: Any, **named: Any) -> Any:
        head = first[0] if isinstance(first, list) and first else first
        if not isinstance(head, Deferred):
            return step(first, *others, **named)
        bound = signature.bind(first, *others, **named)
        bound.apply_defaults()
        return Step(step.__name__, bound.arguments)

    return cast(Function, call)
