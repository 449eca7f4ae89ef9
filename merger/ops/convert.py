"""Bytes to numbers and back: element types, zero-copy views and the one rounding of a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from merger.errors import UserError
from merger.types import DTYPE_BY_NAME, DTYPES

_ROUNDED_TO_LARGEST_E4M3 = 464.0
"""What lies half way between the largest number of float8_e4m3fn, 448, and the next that it would have."""


def torch_dtype(code_or_name: str) -> torch.dtype:
    """The torch type for a file header's code (``BF16``) or a recipe's name (``bfloat16``).

    Raises:
        UserError: no such type.
    """
    dtype = DTYPES.get(code_or_name) or DTYPE_BY_NAME.get(code_or_name)
    if dtype is None:
        raise UserError(f"'{code_or_name}' is not an element type.", hint=f"Known: {', '.join(DTYPE_BY_NAME)}.")
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def working_dtype(codes: Iterable[str]) -> torch.dtype:
    """The type that inputs of these types are computed in: float64 if any is, else float32."""
    return torch.float64 if any(torch_dtype(code) is torch.float64 for code in codes) else torch.float32


def view_bytes(buffer: Any, code: str) -> Tensor:
    """A 1-D tensor over the memory of a writable buffer, without a copy."""
    dtype = torch_dtype(code)
    if memoryview(buffer).nbytes == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)


def result_problem(value: object, shape: Sequence[int]) -> str | None:
    """What somebody's function returned instead of a tensor of this shape that can be written; None if it did."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if not value.is_floating_point():
        kind = "complex" if value.is_complex() else "whole"
        return f"{kind} numbers ({str(value.dtype).removeprefix('torch.')})"
    if value.layout is not torch.strided or value.is_meta:
        return f"a tensor without plain elements ({value.layout}, {value.device})"
    return None if tuple(value.shape) == tuple(shape) else f"shape {list(value.shape)}"


def stored_result(merged: Tensor, code: str) -> tuple[memoryview, int]:
    """A merged block, rounded once, as its bytes stand in a file.

    All NaN become the same one: which one arithmetic makes depends on the processor.

    Args:
        merged: of any shape, in any memory.
        code: element type, a key of `merger.types.DTYPES`.

    Returns:
        The bytes, and how many elements are infinite or NaN.
    """
    flat = merged.detach().reshape(-1).cpu()
    result = rounded(flat, torch_dtype(code))
    spoiled = count_non_finite(flat, result)
    if spoiled:
        result = with_one_nan(result)
    return result.contiguous().view(torch.uint8).numpy().data, spoiled


def count_non_finite(exact: Tensor, result: Tensor) -> int:
    """Infinities and NaN among numbers after rounding.

    Args:
        exact: the numbers, flat.
        result: the same rounded.
    """
    if not exact.numel() or not exact.is_floating_point():
        return 0
    exact = exact.float() if exact.element_size() == 1 else exact  # torch finds no extremes among 8-bit floats
    limit = torch.finfo(result.dtype).max
    low, high = torch.aminmax(exact)
    if -limit <= float(low) and float(high) <= limit:
        return 0
    return int(torch.isfinite(result.to(exact.dtype)).logical_not_().sum())


def with_one_nan(result: Tensor) -> Tensor:
    """The numbers with every NaN replaced by the one that torch writes for ``nan``."""
    is_nan = result.to(torch.float64).isnan()
    return torch.where(is_nan, torch.full_like(result, torch.nan), result)


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another type, each element rounded once.

    torch narrows float64 to the 16-bit types by way of float32, which rounds twice. What is beyond float8_e4m3fn, which
    has no infinities, becomes NaN, as in torch before it began to write the largest number instead.
    """
    if tensor.dtype is torch.float64 and dtype.is_floating_point and dtype.itemsize < 4:
        tensor = _to_odd_float32(tensor)
    if dtype is torch.float8_e4m3fn and tensor.dtype in (torch.float32, torch.float64):
        tensor = tensor.where(tensor.abs() <= _ROUNDED_TO_LARGEST_E4M3, torch.nan)
    return tensor.to(dtype)


def _to_odd_float32(values: Tensor) -> Tensor:
    """float64 to float32, inexact results to the neighbour whose last bit is 1.

    With more than two bits to spare, rounding such a number to nearest gives what rounding the
    original would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    narrow = values.to(torch.float32)
    back = narrow.to(torch.float64)
    inexact = (back != values) & ~values.isnan()
    outward = back.abs() > values.abs()
    bits = narrow.view(torch.int32)
    bits.sub_(outward.to(torch.int32)).bitwise_or_(inexact.to(torch.int32))
    return narrow
