"""Checkpoints made of tensors that are already in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from merger.checkpoints.base import Checkpoint
from merger.errors import CheckpointError, Problem
from merger.types import DTYPE_BY_NAME, ModelReference, TensorSpec


class MemoryCheckpoint(Checkpoint):
    """A model held in memory, for notebooks, tests and live figures.

    Contiguous tensors are used where they are, not copied: do not change them meanwhile.  Those of
    another device travel piece by piece as they are read.

    Args:
        reference: a name for the model.
        tensors: by name; any supported dtype, device and strides.
        config: what ``config.json`` would say.

    Raises:
        CheckpointError: something is no tensor, or its dtype or layout has no place in a safetensors
            file; all such problems together.
    """

    def __init__(
        self, reference: ModelReference, tensors: Mapping[str, Tensor], config: dict[str, Any] | None = None
    ) -> None:
        problems = [problem for item in tensors.items() if (problem := _problem(*item, str(reference)))]
        if problems:
            raise CheckpointError(problems)
        self._bytes: dict[str, Tensor] = {}
        specs: dict[str, TensorSpec] = {}
        digest = hashlib.sha256()
        position = 0
        for name, tensor in tensors.items():
            data = self._bytes[name] = _bytes_of(tensor)
            code = DTYPE_BY_NAME[_dtype_name(tensor)].code
            specs[name] = TensorSpec(name, code, tuple(tensor.shape), "", position, position + len(data))
            position += len(data)
            digest.update(f"{name}\0{code}\0{tuple(tensor.shape)}\0".encode())
        super().__init__(reference, specs, digest.hexdigest(), config)

    @property
    def state(self) -> str:
        digest = hashlib.sha256(self.digest.encode())
        for data in self._bytes.values():
            digest.update(xxh3_128_digest(data.cpu().numpy().data))
        return digest.hexdigest()

    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        torch.frombuffer(view, dtype=torch.uint8).copy_(self._bytes[spec.name][start : start + len(view)])


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _problem(name: object, tensor: object, where: str) -> Problem | None:
    """Why something cannot be a tensor of a checkpoint."""
    hint = f"Supported are dense tensors of {', '.join(DTYPE_BY_NAME)}."
    if not isinstance(name, str):
        return Problem(f"the tensor name {name!r} is no text.", where)
    if not isinstance(tensor, Tensor):
        return Problem(f"'{name}' is of the type {type(tensor).__name__}, not a tensor.", where, hint)
    if _dtype_name(tensor) in DTYPE_BY_NAME and tensor.layout == torch.strided and not tensor.is_meta:
        return None
    kind = f"{_dtype_name(tensor)}, {tensor.layout}, {tensor.device.type}"
    return Problem(f"tensor '{name}' is of the kind {kind}.", where, hint)


def _bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's bytes in row-major order, on its device; its own memory where it is contiguous."""
    return tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
