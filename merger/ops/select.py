"""The k-th largest magnitude, exactly and without sorting.

Magnitudes are compared as bit patterns, which sort as the numbers do. A pass over the data counts them
by their first 16 bits; when any has a bit set after those, another pass counts the following 16
bits of the magnitudes that share the k-th one's first bits, until all bits are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.bits import ALL, LOWEST_HASH, magnitude_bits
from merger.ops.folds import Bits, Part, PerModel
from merger.ops.scratch import scratch
from merger.ops.trim import Cut, MatchNorm, cut_of
from merger.types import BLOCK_ELEMENTS

DIGIT_BITS = 16
DIGITS = 1 << DIGIT_BITS


def largest(densities: Sequence[float], *, rescale: bool) -> PerModel | None:
    """The measurement of which elements `keep_largest` keeps; None when all or nothing is.

    Args:
        densities: per model, the share of elements to keep, in [0, 1].
        rescale: whether the kept elements shall have the L1 norm that all elements have.
    """
    if all(density in (0, 1) for density in densities):
        return None
    return PerModel(tuple(cut_of(density) or CountDigits(density, rescale) for density in densities))


@dataclass
class _Counts:
    digits: Tensor | None = None
    has_more_bits: bool = False
    shift: int = 0


@dataclass(frozen=True)
class CountDigits(Part):
    """Counts magnitudes by their next digit, among those that begin with the digits found so far.

    Attributes:
        density: share of elements to keep; at least one is kept.
        rescale: as in `largest`.
        prefix: the digits found so far, None before the first pass.
        shift: bits below this pass's digit, once known.
        rank: how many of the elements with this prefix are kept, once known.
        size: elements of the tensor, once known.
        not_finite: elements that count as zeros.
    """

    density: float
    rescale: bool
    prefix: int | None = None
    shift: int = 0
    rank: int = 0
    size: int = 0
    not_finite: int = 0

    def start(self) -> _Counts:
        return _Counts(shift=self.shift)

    def add(self, state: _Counts, delta: Tensor, bits: Bits) -> _Counts:
        magnitudes = magnitude_bits(delta).reshape(-1)
        if self.prefix is None:
            state.shift = magnitudes.element_size() * 8 - DIGIT_BITS
        if state.shift and not state.has_more_bits and magnitudes.numel():
            low = scratch("integers", magnitudes, magnitudes.dtype)
            torch.bitwise_and(magnitudes, (1 << state.shift) - 1, out=low)
            state.has_more_bits = bool(low.amax())
        values = DIGITS // 2 if self.prefix is None else DIGITS
        counted = torch.bincount(self._digits(magnitudes, state.shift), minlength=values)
        state.digits = counted if state.digits is None else state.digits.add_(counted)
        return state

    def _digits(self, magnitudes: Tensor, shift: int) -> Tensor:
        digits = magnitudes.bitwise_right_shift_(shift) if shift else magnitudes
        return digits if self.prefix is None else _below(digits.sub_(self.prefix << DIGIT_BITS), DIGITS)

    def join(self, left: _Counts, right: _Counts) -> _Counts:
        if left.digits is None or right.digits is None:
            return right if left.digits is None else left
        left.digits.add_(right.digits)
        left.has_more_bits |= right.has_more_bits
        return left

    def finish(self, state: _Counts) -> Any:
        if state.digits is None:
            return Cut()
        counts = state.digits.cpu().numpy()
        size, rank, not_finite = self.size, self.rank, self.not_finite
        if self.prefix is None:
            first = _first_not_finite(state.shift)
            not_finite, counts[first:] = int(counts[first:].sum()), 0
            size = int(counts.sum()) + not_finite
            rank = max(1, int(self.density * size))
        if not self.prefix:
            counts[0] += not_finite
        digit, rank = _locate(counts, rank)
        prefix = ((self.prefix or 0) << DIGIT_BITS) | digit
        if state.shift and state.has_more_bits:
            shift = state.shift - DIGIT_BITS
            return CountDigits(self.density, self.rescale, prefix, shift, rank, size, not_finite)
        return self._cut(prefix << state.shift, rank, int(counts[digit]), size)

    def _cut(self, threshold: int, kept: int, equal: int, size: int) -> Any:
        """The rule for the elements at the threshold: exact in small tensors, by chance in large ones."""
        if threshold and kept < equal and size <= BLOCK_ELEMENTS:
            return CollectTies(threshold, kept, self.rescale)
        ties = ALL if threshold == 0 or kept == equal else (kept << 32) // equal
        return _rescaled(Cut(threshold, ties), self.rescale)


def _first_not_finite(shift: int) -> int:
    """The first digit of infinity's bit pattern, float32 or float64."""
    return 0x7F80 if shift == DIGIT_BITS else 0x7FF0


def _locate(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """The digit of the element that is ``rank``-th from the top, and its rank among that digit's."""
    from_top = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_top, rank))
    digit = len(counts) - 1 - place
    return digit, rank - int(from_top[place] - counts[digit])


def _below(numbers: Tensor, limit: int) -> Tensor:
    """The numbers in [0, limit), in order."""
    if numbers.device.type != "cpu":
        return numbers[(numbers >= 0) & (numbers < limit)]
    unsigned = numbers.numpy().view(np.uint64 if numbers.dtype == torch.int64 else np.uint32)
    return torch.from_numpy(np.compress(unsigned < limit, numbers.numpy()))


@dataclass(frozen=True)
class CollectTies(Part):
    """Collects the hashes of the elements at the threshold, to keep exactly so many of them.

    Attributes:
        threshold: bit pattern of their magnitude.
        kept: how many of them are kept: those with the smallest hashes.
        rescale: as in `largest`.
    """

    threshold: int
    kept: int
    rescale: bool

    def start(self) -> list[Tensor]:
        return []

    def add(self, state: list[Tensor], delta: Tensor, bits: Bits) -> list[Tensor]:
        is_tie = magnitude_bits(delta) == self.threshold
        return [*state, bits()[is_tie].cpu()]

    def join(self, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        return left + right

    def finish(self, state: list[Tensor]) -> Any:
        hashes = torch.cat(state).numpy()
        last = int(np.partition(hashes, self.kept - 1)[self.kept - 1]) - LOWEST_HASH
        return _rescaled(Cut(self.threshold, last + 1), self.rescale)


def _rescaled(cut: Cut, rescale: bool) -> Any:
    return MatchNorm(cut) if rescale else cut
