"""Measuring every model's task vector in the same passes over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from merger.ops.scratch import scratch
from merger.types import Block, Noise

Bits = Callable[[], Tensor]
"""Makes the block's random bits for one model, when they are needed."""


class Part(ABC):
    """What a `PerModel` fold does for one model."""

    @abstractmethod
    def start(self) -> Any:
        """The state before any block."""

    @abstractmethod
    def add(self, state: Any, delta: Tensor, bits: Bits) -> Any:
        """The state after one more block of the model's task vector, which may be overwritten."""

    @abstractmethod
    def join(self, left: Any, right: Any) -> Any:
        """The state of two neighbouring spans together."""

    @abstractmethod
    def finish(self, state: Any) -> Any:
        """The measured value, or the next part when another pass is needed."""


@dataclass(frozen=True)
class PerModel:
    """A fold that measures every model's task vector in the same passes over the data.

    Attributes:
        parts: one per model: a `Part`, or the value of a model that is measured already.
    """

    parts: tuple[Any, ...]

    def start(self) -> list[Any]:
        return [part.start() if isinstance(part, Part) else None for part in self.parts]

    def add(self, state: list[Any], block: Block) -> list[Any]:
        for model, part in enumerate(self.parts):
            if isinstance(part, Part):
                state[model] = part.add(
                    state[model], block.tensors[model].sub_(block.base), bits_of(block.noise, model)
                )
        return state

    def join(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [
            part.join(a, b) if isinstance(part, Part) else None
            for part, a, b in zip(self.parts, left, right, strict=True)
        ]

    def finish(self, state: list[Any]) -> Any:
        """The models' values as a list, or the fold of the next pass."""
        found = [
            part.finish(value) if isinstance(part, Part) else part
            for part, value in zip(self.parts, state, strict=True)
        ]
        return PerModel(tuple(found)) if any(isinstance(value, Part) for value in found) else found


def bits_of(noise: Noise, model: int) -> Bits:
    """The block's random bits for one model, made when asked for."""
    return lambda: noise.bits(model)


def fixed_sum(values: Tensor) -> float:
    """The sum in float64, by a tree that depends on the number of values alone."""
    wide = scratch("wide 0", values, torch.float64).copy_(values).reshape(-1)
    count = wide.numel()
    while count > 1:
        half = count // 2
        wide[:half].add_(wide[count - half : count])
        count -= half
    return float(wide[:1].sum())
