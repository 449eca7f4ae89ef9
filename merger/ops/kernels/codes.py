"""What kernels are told in numbers.  Unlike them, this needs no numba."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Stored = NDArray[Any]
"""Inputs (``[inputs, elements]``, the base first) or results as their bits: uint16 for bfloat16, uint32 for float32."""

KEEP_ALL, DROP_ALL, DROP_AT_RANDOM, CUT, DROP_BY_CHANCE = range(5)
"""What is done to a model's changes."""

SUM, ELECT = range(2)
"""How changes are mixed: all of them, or those that have the elected sign."""

NEVER = 0xFFFFFFFF
"""A bit pattern that no magnitude has or exceeds."""

FIRST_PASS, UNUSED = -1, -2
"""In place of the first bits of a magnitude."""
