"""Working memory that a thread uses again: touching fresh pages costs more than the arithmetic done on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.types import BLOCK_ELEMENTS


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self.bytes: dict[str, NDArray[np.uint8]] = {}


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


def held_bytes(slot: str, nbytes: int) -> NDArray[np.uint8]:
    """Bytes with undefined contents, which a thread's slot holds however many they are.

    They stay valid until the same thread asks for the same slot again.
    """
    held = _buffers.bytes.get(slot)
    if held is None or len(held) < nbytes:
        held = _buffers.bytes[slot] = np.empty(nbytes, np.uint8)
    return held[:nbytes]
