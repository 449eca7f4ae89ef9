"""Numbers that are one for a whole tensor, or a column with one row for each of many tensors.

A block usually is a piece of one tensor. The preview evaluates samples of many tensors at once:
its blocks are ``[tensors, samples]``, and parameters and measured values are columns
``[tensors, 1]``, float64 or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Number = float | Tensor
"""A Python number, or a ``[tensors, 1]`` column of them."""


def total(values: Sequence[Number]) -> Number:
    """The sum from left to right in float64; ``sum`` itself rounds differently from Python 3.12 on."""
    result: Number = 0.0
    for value in values:
        result = result + value
    return result


def number_like(value: Number, like: Tensor) -> Tensor:
    """A number, or a column of them, as a tensor of ``like``'s type and device: operations with it round once."""
    if isinstance(value, Tensor):
        return value.to(like.dtype)
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def per_row(function: Callable[..., Any], *values: Number) -> Any:
    """``function`` of plain numbers, applied once, or to each row when any value is a column.

    Args:
        function: takes plain numbers; returns a number or a tuple of numbers.
        values: its arguments, numbers or columns of equal length.

    Returns:
        What ``function`` returns, with columns in place of numbers when a value was a column.
    """
    columns = [value for value in values if isinstance(value, Tensor)]
    if not columns:
        return function(*values)
    count = columns[0].numel()
    lists = [value.reshape(-1).tolist() if isinstance(value, Tensor) else [value] * count for value in values]
    return stack([function(*row) for row in zip(*lists, strict=True)], device=columns[0].device)


def stack(values: Sequence[Any], device: torch.device | str = "cpu") -> Any:
    """Join the values of several tensors into columns.

    Args:
        values: one per tensor, all built alike: a number, None, or a list or (named) tuple of such.
        device: where the columns are wanted.

    Returns:
        The same structure with ``[tensors, 1]`` columns in place of the numbers.
    """
    first = values[0]
    if first is None:
        return None
    if isinstance(first, (list, tuple)):
        parts = [stack(part, device) for part in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    dtype = torch.int64 if all(isinstance(value, int) for value in values) else torch.float64
    return torch.tensor(values, dtype=dtype, device=device).reshape(-1, 1)
