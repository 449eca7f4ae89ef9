"""One tensor of the result, and what there is to say about all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from merger.errors import Problem
from merger.graph import Task
from merger.methods.base import Parameters
from merger.types import DTYPES, ImmutableMap, ModelReference, TensorSpec, WeightInfo

SUMMARY_FROM = 4
"""From this many tensors on, one kind of finding becomes one sentence."""

Level = Literal["error", "warning", "note"]
NO_PARAMETERS: Parameters = ImmutableMap()


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of the result.

    Attributes:
        weight: its name, layer and role.
        dtype: safetensors code that it is written in.
        shape: its dimensions.
        action: ``merge``, or ``copy`` when one input is taken as it is.
        task: computes it.
        sources: the inputs that are read, in the order in which the method sees them.
        parameters: the method's global parameters here; empty for a copy.
        tensor_parameters: per-model parameters by reference; empty for a copy.
    """

    weight: WeightInfo
    dtype: str
    shape: tuple[int, ...]
    action: Literal["merge", "copy"]
    task: Task[Any]
    sources: tuple[tuple[ModelReference, TensorSpec], ...]
    parameters: Parameters = NO_PARAMETERS
    tensor_parameters: ImmutableMap[ModelReference, Parameters] = field(default_factory=ImmutableMap)

    @property
    def nbytes(self) -> int:
        """Size in the output file."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def spec(self) -> TensorSpec:
        """What the output file's header will say; its place is not known yet."""
        return TensorSpec(self.weight.name, self.dtype, self.shape, stop=self.nbytes)


class Findings:
    """Collects problems, and turns many of one kind into one sentence."""

    def __init__(self) -> None:
        self._single: list[Problem] = []
        self._kinds: dict[tuple[Level, str, str], list[str]] = {}

    def add(self, problem: Problem) -> None:
        """Keep a problem as it is."""
        self._single.append(problem)

    def tensor(self, level: Level, name: str, message: str, hint: str = "") -> None:
        """Keep a finding about one tensor; equal messages are grouped."""
        self._kinds.setdefault((level, message, hint), []).append(name)

    def problems(self) -> list[Problem]:
        """Everything, errors first."""
        grouped = [
            Problem(_with_others(message, names), names[0], hint, level)
            for (level, message, hint), names in self._kinds.items()
        ]
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(dict.fromkeys([*self._single, *grouped]), key=lambda problem: order[problem.level])


def _with_others(message: str, names: Sequence[str]) -> str:
    """The message, with the other tensors that it holds for in brackets before its full stop."""
    if len(names) == 1:
        return message
    also = f"also {', '.join(names[1:])}" if len(names) < SUMMARY_FROM else f"and {len(names) - 1} more tensors"
    return f"{message.removesuffix('.')} ({also})."
