"""Working memory that a thread uses again: touching fresh pages costs more than the arithmetic done on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from merger.types import BLOCK_ELEMENTS


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}


_buffers = _Buffers()


def scratch(slot: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of ``like``'s shape and device with undefined contents; see `workspace`."""
    return workspace(slot, like.shape, dtype, like.device)


def workspace(slot: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor with undefined contents.

    It stays valid until the same thread asks for the same slot again, so it must not leave
    the function that asked. More than one block is allocated afresh and not held.
    """
    elements = prod(shape)
    if elements > BLOCK_ELEMENTS:
        return torch.empty(shape, dtype=dtype, device=device)
    key = (slot, dtype, device)
    buffer = _buffers.held.get(key)
    if buffer is None:
        buffer = _buffers.held[key] = torch.empty(BLOCK_ELEMENTS, dtype=dtype, device=device)
    return buffer[:elements].view(shape)
