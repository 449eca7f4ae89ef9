"""Checkpoints made of tensors that are already in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.checksum import checksum
from merger.errors import CheckpointError
from merger.types import DTYPE_BY_NAME, ModelReference, TensorSpec


class MemoryCheckpoint(Checkpoint):
    """A model held in memory, for notebooks, tests and live figures.

    Contiguous CPU tensors are used in place, not copied: do not change them meanwhile.

    Args:
        reference: a name for the model.
        tensors: by name; any supported dtype, device and strides.
        config: what ``config.json`` would say.

    Raises:
        CheckpointError: a tensor's dtype or layout has no place in a safetensors file.
    """

    def __init__(
        self, reference: ModelReference, tensors: Mapping[str, torch.Tensor], config: dict[str, Any] | None = None
    ) -> None:
        self._bytes: dict[str, memoryview] = {}
        specs: dict[str, TensorSpec] = {}
        digest = hashlib.sha256()
        position = 0
        for name, tensor in tensors.items():
            data = self._bytes[name] = _bytes_of(tensor, name, str(reference))
            code = DTYPE_BY_NAME[_dtype_name(tensor)].code
            specs[name] = TensorSpec(name, code, tuple(tensor.shape), "", position, position + len(data))
            position += len(data)
            digest.update(f"{name}\0{code}\0{tuple(tensor.shape)}\0{checksum(data)}\0".encode())
        super().__init__(reference, specs, digest.hexdigest(), config)

    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        view[:] = self._bytes[spec.name][start : start + len(view)]


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes_of(tensor: torch.Tensor, name: str, where: str) -> memoryview:
    if _dtype_name(tensor) not in DTYPE_BY_NAME or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"tensor '{name}' is of the kind {_dtype_name(tensor)}, {tensor.layout}, {tensor.device.type}.",
            where=where,
            hint=f"Supported are dense tensors of {', '.join(DTYPE_BY_NAME)}.",
        )
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
