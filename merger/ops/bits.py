"""Floating-point numbers and random numbers as integers: masks of bits are many times faster than booleans."""

from __future__ import annotations

import torch
from torch import Tensor

from merger.ops.columns import Number

ALL = 1 << 32
"""A limit that every hash is below."""

LOWEST_HASH = -(1 << 31)
"""Random bits are int32; as a hash, this counts as 0 and the largest as 2^32 - 1."""

INFINITY_BITS = {torch.float32: 0x7F80 << 16, torch.float64: 0x7FF0 << 48}
"""The bit pattern of infinity; those of finite magnitudes are smaller, those of NaN larger."""


def integers_of(tensor: Tensor) -> Tensor:
    """The bit patterns of a float32 or float64 tensor, sharing its memory."""
    return tensor.view(torch.int64 if tensor.dtype == torch.float64 else torch.int32)


def magnitude_bits(delta: Tensor, out: Tensor | None = None) -> Tensor:
    """The bit patterns of |delta| as integers, by default in place of ``delta``."""
    bits = integers_of(delta)
    return torch.bitwise_and(bits, torch.iinfo(bits.dtype).max, out=bits if out is None else out)


def is_below(bits: Tensor, limit: Number) -> Tensor:
    """1 where a hash is below ``limit``, else 0; overwrites ``bits``.

    Args:
        bits: int32 hashes.
        limit: in [0, 2^32].
    """
    if isinstance(limit, Tensor) or limit >= ALL:
        return (bits.to(torch.int64) < limit + LOWEST_HASH).to(torch.int32)
    return torch.lt(bits, int(limit) + LOWEST_HASH, out=bits)
