"""Steps on one tile: a piece of a block that stays in the processor's nearest cache.

Each is the twin of a step in `merger.ops` and gives the same bits. Numbers are cast at every step because
compiled code would otherwise widen them; arguments are contiguous arrays of equal length, or numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels.compiling import step
from merger.ops.noise import SECOND_MULTIPLIER, THIRD_MULTIPLIER, WEYL

TILE = 1024
f32, i32, u16, u32 = np.float32, np.int32, np.uint16, np.uint32
SIGN, MAGNITUDE, INFINITY = u32(0x80000000), u32(0x7FFFFFFF), u32(0x7F800000)
NOT_A_NUMBER = u32(0x7FC00000)
ROUND, ONE, HALF = u32(0x7FFF), u32(1), u32(16)
_WEYL, _SECOND, _THIRD = u32(WEYL), u32(SECOND_MULTIPLIER), u32(THIRD_MULTIPLIER)
SMALLEST = f32(np.finfo(np.float32).tiny)
UPPER_HALF, SMALLEST_STEP = f32(2.0**23), f32(2.0**-24)


@step
def widen(stored: Any, wide: Any) -> None:
    """bfloat16 bits (uint16) or float32 bits (uint32) to float32 bits."""
    if stored.dtype == np.dtype("uint16"):
        for j in range(wide.shape[0]):
            wide[j] = u32(u32(stored[j]) << HALF)
    else:
        for j in range(wide.shape[0]):
            wide[j] = u32(stored[j])


@step
def narrow(wide: Any, stored: Any) -> int:
    """float32 bits to bfloat16 (uint16), rounded to nearest even, or to float32 (uint32) bits.

    NaN become the one that torch makes.

    Returns:
        How many results are infinite or NaN.
    """
    spoiled = u32(0)
    if stored.dtype == np.dtype("uint16"):
        for j in range(wide.shape[0]):
            bits = wide[j]
            rounded = u32(u32(bits + ROUND) + u32(u32(bits >> HALF) & ONE))
            rounded = NOT_A_NUMBER if u32(bits & MAGNITUDE) > INFINITY else rounded
            spoiled = u32(spoiled + u32(u32(rounded & INFINITY) == INFINITY))
            stored[j] = u16(rounded >> HALF)
    else:
        for j in range(wide.shape[0]):
            bits = NOT_A_NUMBER if u32(wide[j] & MAGNITUDE) > INFINITY else wide[j]
            spoiled = u32(spoiled + u32(u32(bits & INFINITY) == INFINITY))
            stored[j] = bits
    return int(spoiled)


@step
def subtract(values: Any, others: Any) -> None:
    """``values -= others``."""
    for j in range(values.shape[0]):
        values[j] = values[j] - others[j]


@step
def add(values: Any, others: Any) -> None:
    """``values += others``."""
    for j in range(values.shape[0]):
        values[j] = values[j] + others[j]


@step
def scale(values: Any, factor: Any) -> None:
    """``values *= factor``; 0 gives 0 also where values are not finite."""
    if factor == f32(0):
        values[:] = f32(0)
    elif factor != f32(1):
        for j in range(values.shape[0]):
            values[j] = values[j] * factor


@step
def divide(values: Any, divisor: Any) -> None:
    """``values /= divisor``, a number."""
    if divisor != f32(1):
        for j in range(values.shape[0]):
            values[j] = values[j] / divisor


@step
def hashed(hashes: Any, first: Any, second: Any) -> None:
    """The random bits of elements that follow each other; see `merger.ops.noise`."""
    for j in range(hashes.shape[0]):
        word = u32(u32(first + u32(j)) * _WEYL)
        word = u32(word ^ second)
        word = u32(word ^ u32(word >> u32(16)))
        word = u32(word * _SECOND)
        word = u32(word ^ u32(word >> u32(15)))
        hashes[j] = i32(u32(word * _THIRD))


@step
def keep_below(bits: Any, hashes: Any, limit: Any) -> None:
    """Zero the elements whose hash is not below a limit."""
    for j in range(bits.shape[0]):
        bits[j] = bits[j] if hashes[j] < limit else u32(0)


@step
def divide_each(values: Any, divisors: Any) -> None:
    """``values /= divisors``; where that is 0 so is the value."""
    for j in range(values.shape[0]):
        divisor = divisors[j]
        values[j] = values[j] / (divisor if divisor > SMALLEST else SMALLEST)


@step
def keep_by_chance(values: Any, hashes: Any, chances: Any, divides: bool) -> None:
    """Keep each element with its own probability, divided by that if ``divides``."""
    bits = values.view(np.uint32)
    for j in range(values.shape[0]):
        uniform = f32(f32(f32(i32(hashes[j] >> i32(8))) + UPPER_HALF) * SMALLEST_STEP)
        bits[j] = bits[j] if uniform < chances[j] else u32(0)
    if divides:
        divide_each(values, chances)


@step
def keep_from(bits: Any, lowest: Any) -> None:
    """Zero the elements whose magnitude is below a bit pattern."""
    for j in range(bits.shape[0]):
        bits[j] = bits[j] if u32(bits[j] & MAGNITUDE) >= lowest else u32(0)


@step
def keep_above(bits: Any, hashes: Any, lowest: Any, tied: Any, limit: Any) -> None:
    """Zero the elements below a magnitude, except those of the ``tied`` one whose hash is below a limit."""
    for j in range(bits.shape[0]):
        magnitude = u32(bits[j] & MAGNITUDE)
        is_kept = (magnitude >= lowest) | ((magnitude == tied) & (hashes[j] < limit))
        bits[j] = bits[j] if is_kept else u32(0)


@step
def drop_above(bits: Any, hashes: Any, lowest: Any, tied: Any, limit: Any) -> None:
    """Zero the finite elements that `keep_above` would keep."""
    for j in range(bits.shape[0]):
        magnitude = u32(bits[j] & MAGNITUDE)
        is_dropped = (magnitude >= lowest) | ((magnitude == tied) & (hashes[j] < limit))
        bits[j] = u32(0) if is_dropped & (magnitude < INFINITY) else bits[j]


@step
def vote(change: Any, weight: Any, mixed: Any, divisor: Any) -> None:
    """Add a weighted change to ``mixed``, and its weight to ``divisor``, where it has the elected sign.

    Args:
        change: turned, so that the elected sign is plus.
        weight: what counts in the divisor.
        mixed: sums of changes; begins with -0, to which any number adds up to itself.
        divisor: sums of weights.
    """
    for j in range(change.shape[0]):
        mixed[j] = mixed[j] + (f32(0) if change[j] < f32(0) else change[j])
        divisor[j] = divisor[j] + (weight if change[j] > f32(0) else f32(0))


@step
def turn(values: Any, balance: Any) -> None:
    """Change the sign of values where a balance is negative; both are bits."""
    for j in range(values.shape[0]):
        values[j] = u32(values[j] ^ u32(balance[j] & SIGN))
