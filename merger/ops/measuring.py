"""Taking a fold's measurement with a kernel, from inputs as they are stored."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from merger.ops.bits import INFINITY_BITS
from merger.ops.folds import Part, PerModel
from merger.ops.gram import Gram
from merger.ops.kernels.codes import FIRST_PASS, UNUSED, Stored
from merger.ops.select import DIGIT_BITS, DIGITS, CountDigits, Counts
from merger.types import Fold


class Measurement(Protocol):
    """A fold's state while blocks are added to it."""

    def add(self, stored: Stored) -> None:
        """Add elements that follow the ones before; the base comes first."""
        ...

    def end_block(self) -> None:
        """Say that a block of the tensor is complete."""
        ...

    def state(self) -> Any:
        """The state, as the fold itself would have it."""
        ...


def measurement_of(fold: Fold, inputs: int, has_base: bool) -> Measurement | None:
    """The measurement of a fold from nothing on, None when no kernel knows it.

    Args:
        fold: what to measure.
        inputs: how many, the base among them.
        has_base: whether there is one.
    """
    if type(fold) is Gram:
        return _Products(fold.deltas and has_base, inputs)
    if type(fold) is not PerModel or not has_base:
        return None
    unfinished = [part for part in fold.parts if isinstance(part, Part)]
    return _Digits(fold) if all(type(part) is CountDigits for part in unfinished) else None


class _Products:
    """Dot products for a `Gram` fold."""

    def __init__(self, of_changes: bool, inputs: int) -> None:
        vectors = inputs - of_changes
        self._of_changes, self._totals = of_changes, np.zeros(vectors * (vectors + 1) // 2)
        self._state: list[float] = []

    def add(self, stored: Stored) -> None:
        from merger.ops.kernels import products

        products.gram(stored, self._of_changes, self._totals)

    def end_block(self) -> None:
        block: list[float] = self._totals.tolist()
        self._state = [a + b for a, b in zip(self._state, block, strict=True)] if self._state else block
        self._totals[:] = 0.0

    def state(self) -> list[float]:
        return self._state


class _Digits:
    """Counts for a `PerModel` fold of which every unfinished part is a `CountDigits`."""

    def __init__(self, fold: PerModel) -> None:
        self._parts = [part if isinstance(part, CountDigits) else None for part in fold.parts]
        sought = max((len(part.prefixes) for part in self._parts if part), default=1)
        self._prefixes = np.full((len(self._parts), sought), UNUSED, np.int64)
        for model, part in enumerate(self._parts):
            if part:
                prefixes = part.prefixes if part.size else (FIRST_PASS,)
                self._prefixes[model, : len(prefixes)] = prefixes
        self._counts = np.zeros((len(self._parts), sought, DIGITS), np.int32)

    def add(self, stored: Stored) -> None:
        from merger.ops.kernels import counting

        counting.count_changes(stored, self._prefixes, self._counts)

    def end_block(self) -> None:
        """Nothing: whole numbers may be added in any order."""

    def state(self) -> list[Counts | None]:
        return [self._counted(model, part) if part else None for model, part in enumerate(self._parts)]

    def _counted(self, model: int, part: CountDigits) -> Counts:
        if part.size:
            counted = zip(part.prefixes, self._counts[model], strict=False)
            found = {prefix: torch.from_numpy(counts.astype(np.int64)) for prefix, counts in counted}
            return Counts(found, shift=part.shift)
        ending, going_on = self._counts[model, 0].reshape(-1, 2).astype(np.int64).T
        digits, more = torch.from_numpy(ending + going_on), torch.from_numpy(going_on.copy())
        shift = 32 - DIGIT_BITS
        return Counts({0: digits}, {0: more}, shift, INFINITY_BITS[torch.float32] >> shift)
