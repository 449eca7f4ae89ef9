"""Samples of many tensors side by side, so that one call evaluates a merge on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from merger.ops.noise import BlockNoise
from merger.ops.ranked import Ordered, sorted_magnitudes
from merger.statistics.estimates import Floats, Integers, Layout
from merger.statistics.evaluation import Places
from merger.statistics.measures import Sheet
from merger.statistics.stripes import Stripes
from merger.types import ModelReference


class Batch:
    """Samples of tensors of which equally many rows of equal length are held.

    Args:
        places: of the tensors among all sampled ones.
        names: of the tensors.
        stripes: the rows of each tensor.
        reference: what changes are measured from.
        data: ``[tensors, samples]`` of every model.

    Attributes:
        rows: of each tensor.
        length: of a row.
        is_whole: whether the tensors are held whole.
        indices: ``[tensors, samples]`` flat index of each element in its tensor.
        weights: ``[tensors, rows]`` how many rows of the tensor each stands for.
        share: of the tensors' elements that are held, for each tensor.
    """

    def __init__(
        self,
        places: Sequence[int],
        names: Sequence[str],
        stripes: Sequence[Stripes],
        reference: ModelReference,
        data: Mapping[ModelReference, Tensor],
    ) -> None:
        self.places, self.names, self.reference, self.data = list(places), list(names), reference, dict(data)
        self.stripes = list(stripes)
        self.rows, self.length = len(stripes[0].starts), stripes[0].length
        self.is_whole = stripes[0].is_whole
        self.shape = stripes[0].shape if self.is_whole else (self.rows, self.length)
        self.indices = torch.stack([part.indices().reshape(-1) for part in stripes])
        self.weights: Floats = np.stack([part.weights for part in stripes])
        self.shares: Floats = np.array([part.sampled / part.elements for part in stripes])
        self._bits: dict[tuple[int, int | None], Tensor] = {}
        self._uniform: dict[tuple[int, int | None], Tensor] = {}
        self._ordered: dict[tuple[ModelReference, ModelReference], Ordered] = {}
        self._inputs: Floats | None = None

    @property
    def bytes(self) -> int:
        """Memory that is held, with what was derived from it."""
        tensors = [*self.data.values(), self.indices, *self._bits.values(), *self._uniform.values()]
        return sum(tensor.nbytes for tensor in tensors) + sum(ordered.nbytes for ordered in self._ordered.values())

    def sheet(self, layout: Layout, tensors: int) -> Sheet:
        """An empty sheet for the rows of so many of the tensors."""
        samples = self.rows * self.length
        starts: Integers = np.arange(0, tensors * samples, self.length)
        return Sheet(layout, starts, tensors * samples)

    def input_sums(self, layout: Layout, places: Places) -> Floats:
        """``[tensors, rows, sums]`` of what does not depend on the method; measured once."""
        if self._inputs is None:
            sheet = self.sheet(layout, len(self.names))
            models = {places[model]: data.reshape(-1) for model, data in self.data.items() if model != self.reference}
            sheet.inputs(self.data[self.reference].reshape(-1), models)
            self._inputs = sheet.sums.reshape(len(self.names), self.rows, layout.size)
        return self._inputs

    def bits(self, seed: int, position: int | None) -> Tensor:
        """``[tensors, samples]`` random bits for a model's position, drawn once."""
        key = (seed, position)
        if key not in self._bits:
            self._bits[key] = BlockNoise.at(seed, self.names, [position], self.indices).bits(0)
        return self._bits[key]

    def uniform(self, seed: int, position: int | None) -> Tensor:
        """``[tensors, samples]`` random numbers for a model's position, drawn once."""
        key = (seed, position)
        if key not in self._uniform:
            self._uniform[key] = BlockNoise.at(seed, self.names, [position], self.indices).uniform(0)
        return self._uniform[key]

    def ordered(self, model: ModelReference, base: ModelReference) -> Ordered:
        """``[tensors, samples]`` magnitudes of a model's changes in ascending order, sorted once."""
        if (model, base) not in self._ordered:
            self._ordered[model, base] = sorted_magnitudes(self.data[model] - self.data[base])
        return self._ordered[model, base]


class HeldNoise:
    """A batch's noise, drawn once and handed out as often as it is asked for.

    Args:
        batch: whose noise.
        seed: of the recipe.
        positions: of each of the block's tensors among the recipe's non-base models.
        tensors: which tensors of the batch.
        shape: of the block.
    """

    def __init__(
        self, batch: Batch, seed: int, positions: Sequence[int | None], tensors: Tensor, shape: tuple[int, ...]
    ) -> None:
        self._batch, self._seed, self._positions = batch, seed, positions
        self._tensors, self._shape = tensors, shape

    def bits(self, model: int) -> Tensor:
        """Fresh int32 tensor of 32 random bits per element."""
        return self._batch.bits(self._seed, self._positions[model])[self._tensors].view(self._shape)

    def uniform(self, model: int) -> Tensor:
        """Fresh float32 tensor in [0, 1)."""
        return self._batch.uniform(self._seed, self._positions[model])[self._tensors].view(self._shape)
