"""Working memory that a thread uses again: touching fresh pages costs more than the arithmetic done on them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from merger.types import BLOCK_ELEMENTS


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}


_buffers = _Buffers()


def scratch(slot: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of ``like``'s shape and device with undefined contents.

    It stays valid until the same thread asks for the same slot again, so it must not leave
    the function that asked. More than one block is allocated afresh and not held.
    """
    if like.numel() > BLOCK_ELEMENTS:
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    key = (slot, dtype, like.device)
    buffer = _buffers.held.get(key)
    if buffer is None:
        buffer = _buffers.held[key] = torch.empty(BLOCK_ELEMENTS, dtype=dtype, device=like.device)
    return buffer[: like.numel()].view(like.shape)
