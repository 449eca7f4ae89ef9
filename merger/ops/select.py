"""Elements of given ranks by magnitude, exactly and without sorting.

Magnitudes are compared as bit patterns, which sort as the numbers do. A pass over the data counts them
by their first 16 bits, and apart those that have a bit set after these. A wanted one that is not among
those is known; otherwise another pass counts the following 16 bits of the magnitudes that begin as it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.bits import INFINITY_BITS, magnitude_bits
from merger.ops.folds import Bits, Part
from merger.ops.scratch import scratch

DIGIT_BITS = 16
DIGITS = 1 << DIGIT_BITS
COLLECTED = 1 << 17
"""Magnitudes that are rather collected than counted once more, when their number shows to be this small."""


class Group(NamedTuple):
    """The element of a wanted rank, as far as it is known.

    Attributes:
        bits: the first bits of its magnitude; in the end all of them.
        rank: its place among the elements whose magnitudes begin with them, from 1 for the largest.
        size: how many those are.
    """

    bits: int
    rank: int
    size: int


class Selection(ABC):
    """Which ranks are wanted, and what is made of them.

    Attributes:
        collects: whether the last candidates are collected to save passes, because a block of
            magnitudes costs much to compute.
    """

    collects: bool = False

    @abstractmethod
    def ranks(self, size: int, changed: int) -> Sequence[int]:
        """The wanted ranks, from 1 for the largest; none is allowed.

        Args:
            size: of the tensor.
            changed: its elements that are not zero, nor so small that their first 16 bits are (below 2^-133
                in float32); elements that are not finite count as zeros.
        """

    @abstractmethod
    def found(self, groups: Sequence[Group], size: int) -> Any:
        """The value, or the next part; ``groups`` are those of `ranks`, each of equal magnitudes."""


@dataclass
class Counts:
    """What one pass has counted so far.

    Attributes:
        digits: for each beginning, how many magnitudes have it and then each of the 65,536 next digits.
        more: the same for magnitudes that have a bit set after that digit.
        shift: bits after this pass's digit.
        infinity: first digit of what is not finite; of use in the first pass.
    """

    digits: dict[int, Tensor] = field(default_factory=dict)
    more: dict[int, Tensor] = field(default_factory=dict)
    shift: int = 0
    infinity: int = 0


@dataclass(frozen=True)
class CountDigits(Part):
    """Counts magnitudes by their next digit, among those that begin as the wanted ones do.

    Attributes:
        selection: what is wanted.
        groups: the wanted elements, as far as they are known; none before the first pass.
        shift: bits below this pass's digit, once known.
        size: elements of the tensor, 0 before the first pass.
        not_finite: elements that count as zeros.
    """

    selection: Selection
    groups: tuple[Group, ...] = ()
    shift: int = 0
    size: int = 0
    not_finite: int = 0

    @property
    def prefixes(self) -> tuple[int, ...]:
        """The different beginnings under which this pass counts."""
        return tuple(dict.fromkeys(group.bits for group in self.groups)) if self.size else (0,)

    def start(self) -> Counts:
        return Counts(shift=self.shift)

    def add(self, state: Counts, delta: Tensor, bits: Bits) -> Counts:
        magnitudes = magnitude_bits(delta).reshape(-1)
        if not self.size:
            state.shift = magnitudes.element_size() * 8 - DIGIT_BITS
            state.infinity = INFINITY_BITS[delta.dtype] >> state.shift
        digits, with_more = _split(magnitudes, state.shift)
        for prefix in self.prefixes:
            _count(state.digits, prefix, self._following(digits, prefix))
            if with_more is not None:
                _count(state.more, prefix, self._following(with_more, prefix))
        return state

    def _following(self, digits: Tensor, prefix: int) -> Tensor:
        """The next digit of the magnitudes that begin with ``prefix``."""
        if not self.size:
            return digits
        return _below(torch.sub(digits, prefix << DIGIT_BITS, out=scratch("integers", digits, digits.dtype)), DIGITS)

    def join(self, left: Counts, right: Counts) -> Counts:
        if not left.digits or not right.digits:
            return left if left.digits else right
        for mine, others in ((left.digits, right.digits), (left.more, right.more)):
            for prefix, counted in others.items():
                mine[prefix] = mine[prefix].add_(counted) if prefix in mine else counted
        return left

    def finish(self, state: Counts) -> Any:
        counts = {prefix: digits.cpu().numpy() for prefix, digits in state.digits.items()}
        now = self if self.size else self._first_pass(counts, state.infinity)
        if 0 in counts and self.size:
            counts[0][0] += now.not_finite
        groups = tuple(_narrowed(group, counts[group.bits]) for group in now.groups)
        whole = [_whole(group, state) for group in groups]
        settled = [group for group in whole if group is not None]
        if len(settled) == len(groups):
            return now.selection.found(settled, now.size)
        if now.selection.collects and sum(group.size for group in groups) <= COLLECTED:
            return CollectMembers(now.selection, groups, state.shift, now.size, now.not_finite)
        return replace(now, groups=groups, shift=state.shift - DIGIT_BITS)

    def _first_pass(self, counts: dict[int, NDArray[np.int64]], infinity: int) -> CountDigits:
        """This part with what the first pass says of the tensor; digits from infinity's on become zeros."""
        if not counts:
            return self
        digits = counts[0]
        not_finite, digits[infinity:] = int(digits[infinity:].sum()), 0
        digits[0] += not_finite
        size, unchanged = int(digits.sum()), int(digits[0])
        ranks = self.selection.ranks(size, size - unchanged) if size else ()
        return replace(self, groups=tuple(Group(0, rank, size) for rank in ranks), size=size, not_finite=not_finite)


def _split(magnitudes: Tensor, shift: int) -> tuple[Tensor, Tensor | None]:
    """The digits above ``shift``, in place, and a copy of those that bits follow, or None."""
    if not shift or not magnitudes.numel():
        return magnitudes, None
    rest = scratch("integers", magnitudes, magnitudes.dtype)
    torch.bitwise_and(magnitudes, (1 << shift) - 1, out=rest)
    digits = magnitudes.bitwise_right_shift_(shift)
    return digits, digits[rest != 0] if bool(rest.amax()) else None


def _whole(group: Group, state: Counts) -> Group | None:
    """The group with all bits of its magnitude, where it is among the elements that no bits follow; else None."""
    counted = state.more.get(group.bits >> DIGIT_BITS)
    larger = 0 if counted is None else int(counted[group.bits % DIGITS])
    if group.rank <= larger:
        return None
    return Group(group.bits << state.shift, group.rank - larger, group.size - larger)


def _count(counts: dict[int, Tensor], prefix: int, digits: Tensor) -> None:
    counted = torch.bincount(digits, minlength=DIGITS)
    counts[prefix] = counts[prefix].add_(counted) if prefix in counts else counted


def _narrowed(group: Group, counts: NDArray[np.int64]) -> Group:
    """The group with one more digit known.

    Args:
        group: what is sought.
        counts: of each next digit among the magnitudes that begin as it does.
    """
    from_top = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_top, group.rank))
    digit = len(counts) - 1 - place
    size = int(counts[digit])
    return Group((group.bits << DIGIT_BITS) | digit, group.rank - int(from_top[place]) + size, size)


def _below(numbers: Tensor, limit: int) -> Tensor:
    """The numbers in [0, limit), in order."""
    if numbers.device.type != "cpu":
        return numbers[(numbers >= 0) & (numbers < limit)]
    unsigned = numbers.numpy().view(np.uint64 if numbers.dtype == torch.int64 else np.uint32)
    return torch.from_numpy(np.compress(unsigned < limit, numbers.numpy()))


@dataclass(frozen=True)
class CollectMembers(Part):
    """Collects the magnitudes that begin as the wanted ones do.

    Attributes:
        selection, groups, size, not_finite: as in `CountDigits`.
        shift: bits below those that are known.
    """

    selection: Selection
    groups: tuple[Group, ...]
    shift: int
    size: int
    not_finite: int

    def start(self) -> list[Tensor]:
        return []

    def add(self, state: list[Tensor], delta: Tensor, bits: Bits) -> list[Tensor]:
        magnitudes = magnitude_bits(delta).reshape(-1)
        for prefix in {group.bits for group in self.groups}:
            lowest = prefix << self.shift
            rest = torch.sub(magnitudes, lowest, out=scratch("integers", magnitudes, magnitudes.dtype))
            state.append(_below(rest, 1 << self.shift).add_(lowest).cpu())
        return state

    def join(self, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        return left + right

    def finish(self, state: list[Tensor]) -> Any:
        members = torch.cat(state).numpy()
        return self.selection.found([self._settled(group, members) for group in self.groups], self.size)

    def _settled(self, group: Group, members: NDArray[Any]) -> Group:
        """The group of the one magnitude, out of those that begin with the known bits."""
        own = members[members >> self.shift == group.bits]
        if group.bits == 0:
            own = np.concatenate([own, np.zeros(self.not_finite, own.dtype)])
        place = len(own) - group.rank
        magnitude = np.partition(own, place)[place]
        larger, equal = int((own > magnitude).sum()), int((own == magnitude).sum())
        return Group(int(magnitude), group.rank - larger, equal)
