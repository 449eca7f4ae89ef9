"""Counting infinities and NaN in bytes as they are stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from merger.types import DTYPES

_LARGEST: Mapping[str, tuple[int, int]] = {
    "F64": (0x7FFF_FFFF_FFFF_FFFF, 0x7FEF_FFFF_FFFF_FFFF),
    "F32": (0x7FFF_FFFF, 0x7F7F_FFFF),
    "F16": (0x7FFF, 0x7BFF),
    "BF16": (0x7FFF, 0x7F7F),
    "F8_E4M3": (0x7F, 0x7E),
    "F8_E5M2": (0x7F, 0x7B),
}
"""Of each type of floating-point numbers: the bits of a magnitude, and those of the largest finite one."""


def count_non_finite(data: memoryview, code: str) -> int:
    """Infinities and NaN among stored elements; 0 for types that have none.

    Args:
        data: contiguous bytes of whole elements.
        code: element type, a key of `merger.types.DTYPES`.
    """
    if code not in _LARGEST:
        return 0
    magnitude, largest = _LARGEST[code]
    # Compared as whole numbers, which sort as magnitudes do.
    values = np.frombuffer(data, dtype=f"<u{DTYPES[code].itemsize}")
    magnitudes = values & values.dtype.type(magnitude)
    if not magnitudes.size or magnitudes.max() <= largest:
        return 0
    return int(np.count_nonzero(magnitudes > largest))
