"""A fast checksum that tells bytes and their positions apart, and adds up over pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
_ROW_WORDS = 1024
_ROW_BYTES = _ROW_WORDS * _WORD_BYTES
_ROWS_AT_ONCE = 128
_MASK = (1 << 64) - 1


def checksum(data: memoryview | bytes | bytearray, offset: int = 0) -> int:
    """A 64-bit checksum of bytes that stand at ``offset`` of something larger.

    Checksums add up: those of the pieces of a tensor, each taken at its own offset and cut
    anywhere, give modulo 2**64 the checksum of the whole.  See `joined`.

    The data are read as 64-bit words; each word and each word's upper half is multiplied by
    an odd number that depends on its position, and all products are summed.  (The upper half
    counts a second time because a product modulo 2**64 forgets most of the upper bits.)
    It finds damage, not forgery.

    Args:
        data: contiguous bytes.
        offset: position of the first byte.
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    row, lead = divmod(offset, _ROW_BYTES)
    head = min(-lead % _ROW_BYTES, len(octets))
    body = (len(octets) - head) // _ROW_BYTES * _ROW_BYTES
    total = 0
    if head:
        total += _rows_sum(_padded(octets[:head], lead), row)
        row += 1
    if body:
        total += _rows_sum(octets[head : head + body].view("<u8").reshape(-1, _ROW_WORDS), row)
        row += body // _ROW_BYTES
    if head + body < len(octets):
        total += _rows_sum(_padded(octets[head + body :], 0), row)
    return total & _MASK


def joined(*checksums: int) -> int:
    """The checksum of neighbouring pieces together."""
    return sum(checksums) & _MASK


def _multipliers(start: int, count: int) -> NDArray[np.uint64]:
    """Odd numbers that look random: the output function of SplitMix64 (Steele et al., 2014)."""
    words = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: NDArray[np.uint64] = (words ^ (words >> np.uint64(31))) | np.uint64(1)
    return odd


_WHOLE = _multipliers(0, _ROW_WORDS)
_UPPER = _multipliers(1 << 60, _ROW_WORDS)
_FIRST_ROW = 1 << 61


def _rows_sum(rows: NDArray[np.uint64], first: int) -> int:
    scratch = np.empty((min(len(rows), _ROWS_AT_ONCE), _ROW_WORDS), dtype=np.uint64)
    total = 0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        upper = np.right_shift(some, np.uint64(32), out=scratch[: len(some)])
        sums = np.einsum("ij,j->i", some, _WHOLE) + np.einsum("ij,j->i", upper, _UPPER)
        sums *= _multipliers(_FIRST_ROW + first + start, len(some))
        total += int(sums.sum(dtype=np.uint64))
    return total


def _padded(octets: NDArray[np.uint8], lead: int) -> NDArray[np.uint64]:
    row = np.zeros(_ROW_BYTES, dtype=np.uint8)
    row[lead : lead + len(octets)] = octets
    return row.view("<u8").reshape(1, _ROW_WORDS)
