"""Everything that goes into each output tensor, read in blocks or as sampled rows, for the preview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from merger.checkpoints.base import Checkpoint
from merger.estimates import Integers
from merger.matching import Source, match_tensors
from merger.ops.convert import working_dtype
from merger.plan import OutputTensor, Plan
from merger.stripes import Stripes, read_stripes
from merger.tasks import LoadTensor, block_ranges, read_block
from merger.types import BLOCK_ELEMENTS, ModelReference, Split


@dataclass(frozen=True)
class TensorInputs:
    """One output tensor and every model that has it, also those that the merge does not read.

    Attributes:
        output: what the plan says of it.
        reference: what its changes are measured from, None when nothing can be compared.
        loads: its tensor in each model.
    """

    output: OutputTensor
    reference: ModelReference | None
    loads: Mapping[ModelReference, LoadTensor]

    @property
    def dtype(self) -> torch.dtype:
        """The type that it is computed in."""
        return working_dtype(load.spec.dtype for load in self.loads.values())

    @property
    def models(self) -> list[ModelReference]:
        """The models whose changes are measured."""
        return [model for model in self.loads if model != self.reference]


def collect_inputs(plan: Plan) -> list[TensorInputs]:
    """The inputs of every output tensor of a plan, in its order."""
    outputs = {output.weight.name: output for output in plan.outputs}
    first = plan.recipe.base_model or plan.recipe.all_models()[0]
    collected = []
    for match in match_tensors(plan.recipe, plan.checkpoints):
        output = outputs.get(match.name)
        if output is None:
            continue
        sources = [match.base, *match.sources] if match.base else list(match.sources)
        loads = {
            source.model: LoadTensor(source.model, source.spec, _checkpoint(source, plan.checkpoints))
            for source in sources
            if source.spec is not None
        }
        reference = match.base.model if match.base else first
        collected.append(TensorInputs(output, reference if reference in loads else None, loads))
    return collected


def _checkpoint(source: Source, checkpoints: Mapping[ModelReference, Checkpoint]) -> Checkpoint:
    return checkpoints[source.entry.model if source.entry else source.model]


@dataclass(frozen=True)
class Piece:
    """A part of every input of one tensor.

    Attributes:
        tensors: ``[elements]`` of each model, widened.
        indices: ``[elements]`` flat indices in the whole tensor, None where they follow each other.
        start: flat index of the first element.
        rows: where each row begins among the elements.
        length: elements of a row.
    """

    tensors: Mapping[ModelReference, Tensor]
    indices: Tensor | None
    start: int
    rows: Integers
    length: int


class WholeTensor:
    """All of a tensor, block by block, read anew in every pass.

    Args:
        inputs: of the tensor.
        split: how it may be cut.
    """

    def __init__(self, inputs: TensorInputs, split: Split) -> None:
        self._inputs = inputs
        self._ranges = list(block_ranges(split, inputs.output.shape))

    def __iter__(self) -> Iterator[Piece]:
        for start, stop in self._ranges:
            tensors = {
                model: read_block(load, start, stop, slot, self._inputs.dtype)
                for slot, (model, load) in enumerate(self._inputs.loads.items())
            }
            yield Piece(tensors, None, start, np.zeros(1, np.int64), stop - start)


class SampledTensor:
    """The sampled rows of a tensor, held in memory.

    Attributes:
        stripes: which rows.
        tensors: ``[elements]`` of each model, widened.
    """

    def __init__(self, stripes: Stripes, tensors: Mapping[ModelReference, Tensor]) -> None:
        self.stripes, self.tensors = stripes, tensors

    @classmethod
    def read(cls, inputs: TensorInputs, stripes: Stripes) -> SampledTensor:
        """Read the rows from every model."""
        dtype = inputs.dtype
        tensors = {
            model: read_stripes(load.checkpoint, load.spec, stripes).to(dtype) for model, load in inputs.loads.items()
        }
        return cls(stripes, tensors)

    def __iter__(self) -> Iterator[Piece]:
        """Pieces of about a block, of whole rows."""
        length, indices = self.stripes.length, self.stripes.indices()
        step = max(1, BLOCK_ELEMENTS // length)
        for first in range(0, len(self.stripes.starts), step):
            part = indices[first : first + step].reshape(-1)
            place = slice(first * length, first * length + part.numel())
            tensors = {model: tensor[place] for model, tensor in self.tensors.items()}
            yield Piece(tensors, part, int(part[0]), np.arange(0, part.numel(), length), length)
