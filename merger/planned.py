"""A model that does not exist yet, as the plan that will make it describes it."""

from __future__ import annotations

import hashlib

from merger.checkpoints.base import Checkpoint
from merger.errors import CheckpointError
from merger.plan import Plan
from merger.portable import portable_documents
from merger.reading import LoadTensor
from merger.sidefiles import copied_files, donor, output_config
from merger.types import ModelReference, TensorSpec


class PlannedCheckpoint(Checkpoint):
    """The result of a plan, for planning what comes behind it.  Only tensors that are copied can be read.

    Args:
        reference: what later recipes call the result.
        plan: free of errors; its models stay open as long as this is used.
    """

    def __init__(self, reference: ModelReference, plan: Plan) -> None:
        source = donor(plan.recipe, plan.checkpoints)
        config = None if source.config is None else output_config(plan.recipe, plan.checkpoints, plan.outputs)
        documents = portable_documents(plan.recipe, plan.checkpoints)
        digest = hashlib.sha256("".join(documents).encode()).hexdigest()
        tensors = {output.weight.name: output.spec for output in plan.outputs}
        super().__init__(reference, tensors, digest, config, copied_files(source))
        self.documents = documents
        self._tasks = {output.weight.name: output.task for output in plan.outputs}

    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        task = self._tasks[spec.name]
        if not isinstance(task, LoadTensor) or task.spec.dtype != spec.dtype:
            raise CheckpointError(f"tensor '{spec.name}' is not merged yet.", where=str(self.reference))
        task.checkpoint.read_into(task.spec, start, view)
