"""Everything that goes into each output tensor, read in blocks or as sampled rows, for the preview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from merger.matching import match_tensors
from merger.ops.convert import working_dtype
from merger.outputs import OutputTensor
from merger.plan import Plan
from merger.reading import LoadTensor, block_ranges, read_block
from merger.statistics.estimates import Integers, Layout
from merger.statistics.stripes import Stripes, read_stripes
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
    def compared_with(self) -> ModelReference:
        """The reference of a tensor that has one."""
        assert self.reference is not None
        return self.reference

    @property
    def models(self) -> list[ModelReference]:
        """The models whose changes are measured."""
        return [model for model in self.loads if model != self.reference]


@dataclass(frozen=True)
class Study:
    """The tensors of a merge that have figures, and the models whose changes are measured.

    Attributes:
        reference: name of what changes are measured from.
        tensors: in the order of the output.
        places: each model's place among the figures.
        model_names: of these models, each name once.
        left_out: tensors without figures and why.
    """

    reference: str
    tensors: tuple[TensorInputs, ...]
    places: Mapping[ModelReference, int]
    model_names: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def layout(self) -> Layout:
        """Where the sums over these models stand."""
        return Layout(len(self.model_names))

    @classmethod
    def of(cls, plan: Plan) -> Study:
        """What can be said of a plan."""
        tensors, left_out = [], []
        for inputs in collect_inputs(plan):
            reason = _reason_against(inputs)
            if reason:
                left_out.append((inputs.output.weight.name, reason))
            else:
                tensors.append(inputs)
        models = list(dict.fromkeys(model for inputs in tensors for model in inputs.models))
        return cls(
            plan.recipe.primary.short_name,
            tuple(tensors),
            {model: place for place, model in enumerate(models)},
            tuple(unique_names(models)),
            tuple(left_out),
        )


def _reason_against(inputs: TensorInputs) -> str | None:
    output = inputs.output
    if not all(load.spec.is_float for load in inputs.loads.values()):
        return "not a float tensor"
    if not output.spec.numel:
        return "empty"
    return None if inputs.reference else "only in models that have nothing to compare it with"


def unique_names(models: Iterable[ModelReference]) -> list[str]:
    """Short names of models; one that comes again gets a number."""
    seen: Counter[str] = Counter()
    names = []
    for model in models:
        name = model.short_name
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def collect_inputs(plan: Plan) -> Iterator[TensorInputs]:
    """The inputs of every output tensor of a plan, in its order."""
    outputs = {output.weight.name: output for output in plan.outputs}
    for match in match_tensors(plan.recipe, plan.checkpoints):
        output = outputs.get(match.name)
        if output is None:
            continue
        sources = [match.base, *match.sources] if match.base else list(match.sources)
        loads = {
            source.model: LoadTensor(source.model, source.spec, plan.checkpoints[source.owner])
            for source in sources
            if source.spec is not None
        }
        reference = match.base.model if match.base else plan.recipe.primary
        yield TensorInputs(output, reference if reference in loads else None, loads)


@dataclass(frozen=True)
class Piece:
    """A part of every input of one tensor.

    Attributes:
        tensors: ``[elements]`` of each model, widened.
        indices: ``[elements]`` flat indices in the whole tensor, None where they follow each other.
        start: flat index of the first element.
        elements: how many there are.
        rows: where each row begins among the elements.
    """

    tensors: Mapping[ModelReference, Tensor]
    indices: Tensor | None
    start: int
    elements: int
    rows: Integers


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
            yield Piece(tensors, None, start, stop - start, np.zeros(1, np.int64))


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
            yield Piece(tensors, part, int(part[0]), part.numel(), np.arange(0, part.numel(), length))
