"""Bytes to numbers and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from merger.errors import UserError
from merger.ops.convert import stored_result, torch_dtype, view_bytes, working_dtype
from merger.types import DTYPES


def _bytes_of(tensor: torch.Tensor, code: str) -> memoryview:
    return stored_result(tensor, code)[0]


@pytest.mark.parametrize(
    ("written", "dtype"), [("BF16", torch.bfloat16), ("float16", torch.float16), ("I64", torch.int64)]
)
def test_types_are_known_by_code_and_by_name(written, dtype):
    assert torch_dtype(written) is dtype


def test_an_unknown_type_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'float15' is not an element type.*bfloat16"):
        torch_dtype("float15")


def test_arithmetic_is_float32_unless_an_input_is_float64():
    assert working_dtype(["BF16", "F32", "F16"]) is torch.float32
    assert working_dtype(["BF16", "F64"]) is torch.float64


def test_a_view_shares_the_buffers_memory():
    buffer = bytearray(np.arange(4, dtype=np.float32).tobytes())
    view = view_bytes(memoryview(buffer), "F32")
    view[2] = 7.0
    assert np.frombuffer(buffer, np.float32).tolist() == [0.0, 1.0, 7.0, 3.0]
    assert view_bytes(bytearray(), "BF16").numel() == 0


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_bytes_survive_the_way_to_a_tensor_and_back(code):
    raw = bytes(range(0, 64)) if code != "BOOL" else bytes([0, 1] * 32)
    assert bytes(_bytes_of(view_bytes(bytearray(raw), code), code)) == raw


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        # just above the middle of two neighbours, by less than float32 can tell
        (1 + 2**-8 + 2**-40, "BF16", 1 + 2**-7),
        (1 + 2**-11 + 2**-40, "F16", 1 + 2**-10),
        # just below it
        (1 + 3 * 2**-8 - 2**-40, "BF16", 1 + 2**-7),
        (-(1 + 2**-8 + 2**-40), "BF16", -(1 + 2**-7)),
        # exactly in the middle: to even
        (1 + 2**-8, "BF16", 1.0),
        (1 + 3 * 2**-8, "BF16", 1 + 2**-6),
        (1e300, "BF16", float("inf")),
        (-1e-300, "F16", -0.0),
    ],
)
def test_float64_is_rounded_once(value, code, expected):
    result = view_bytes(bytearray(_bytes_of(torch.tensor([value], dtype=torch.float64), code)), code)
    assert result.double().tolist() == [expected]


def test_float32_is_rounded_to_the_nearest_even():
    values = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.3895e38, float("nan")])
    result = view_bytes(bytearray(_bytes_of(values, "BF16")), "BF16").float()
    assert result[:3].tolist() == [1.0, 1 + 2**-6, 3.3895313892515355e38]
    assert result[3].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_beyond_an_8_bit_type_is_counted(dtype):
    """Some torch write 448 for it, also for an infinity, others NaN."""
    values = torch.tensor([448.0, -464.0, 465.0, -1e30, torch.inf, torch.nan, 1.0], dtype=dtype)
    data, spoiled = stored_result(values, "F8_E4M3")
    result = view_bytes(bytearray(data), "F8_E4M3").float()
    assert spoiled == 4 and result[2:6].isnan().all() and result[[0, 1, 6]].tolist() == [448.0, -448.0, 1.0]
    data, spoiled = stored_result(values * 1000, "F8_E5M2")
    result = view_bytes(bytearray(data), "F8_E5M2").float()
    assert spoiled == 6 and result.isnan().sum() == 1 and result[6] == 1024.0


def test_random_float64_numbers_round_as_exact_arithmetic_does():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, generator=generator, dtype=torch.float64)
    # most of these lie next to the middle of two bfloat16 numbers
    near = values.to(torch.bfloat16).double() * (1 + 2**-8) + torch.randn(20_000, generator=generator).double() * 1e-12
    result = view_bytes(bytearray(_bytes_of(near, "BF16")), "BF16").double()
    neighbours = [result, *(_next_bfloat16(result, step) for step in (-1, 1))]
    best = torch.stack([(near - neighbour).abs() for neighbour in neighbours]).min(0).values
    assert torch.equal((near - result).abs(), best)


def _next_bfloat16(values: torch.Tensor, step: int) -> torch.Tensor:
    return (values.to(torch.bfloat16).view(torch.int16) + step).view(torch.bfloat16).double()
