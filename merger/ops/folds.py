"""Measuring every model's task vector in the same passes over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
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


def changes_of(block: Block) -> list[Tensor]:
    """The block's task vectors, in place of its tensors."""
    assert block.base is not None
    return [tensor.sub_(block.base) for tensor in block.tensors]


def bits_of(noise: Noise, model: int) -> Bits:
    """The block's random bits for one model, made when asked for."""
    return lambda: noise.bits(model)


@dataclass(frozen=True)
class Elementwise:
    """A fold that measures numbers made from all models, one for each element.

    Attributes:
        part: what is measured of them.
        values: makes the numbers of a block, which may be overwritten; working memory is allowed.
        then: makes of the measured value that of the whole, or the next fold.
    """

    part: Part
    values: Callable[[Block], Tensor]
    then: Callable[[Any], Any]

    def start(self) -> Any:
        return self.part.start()

    def add(self, state: Any, block: Block) -> Any:
        return self.part.add(state, self.values(block), bits_of(block.noise, 0))

    def join(self, left: Any, right: Any) -> Any:
        return self.part.join(left, right)

    def finish(self, state: Any) -> Any:
        found = self.part.finish(state)
        return replace(self, part=found) if isinstance(found, Part) else self.then(found)


def fixed_sum(values: Tensor) -> float:
    """The sum in float64, by a tree that depends on the number of values alone."""
    wide = scratch("wide 0", values, torch.float64).copy_(values).reshape(-1)
    return float(fixed_row_sums(wide))


def fixed_row_sums(values: Tensor) -> Tensor:
    """The sums along the last dimension, by a tree that depends on its length alone; overwrites ``values``.

    Args:
        values: ``[..., row length]`` float64.

    Returns:
        ``[...]``, 0 for rows without elements.
    """
    count = values.shape[-1]
    while count > 1:
        half = count // 2
        values[..., :half].add_(values[..., count - half : count])
        count -= half
    return values[..., :1].sum(-1)
