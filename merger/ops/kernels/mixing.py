"""Merging a block in one go: from stored inputs to the stored result, one tile after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from merger.ops.kernels import tiles
from merger.ops.kernels.codes import CUT, DROP_ALL, DROP_AT_RANDOM, DROP_BY_CHANCE, ELECT, NEVER
from merger.ops.kernels.compiling import compiled, step
from merger.ops.kernels.tiles import TILE, f32, u32


@compiled
def weighted_sum(stored: Any, coefficients: Any, result: Any) -> int:
    """``c_1 x_1 + c_2 x_2 + ...``, a coefficient of 0 leaving its input out.

    Args:
        stored: ``[inputs, elements]`` bits.
        coefficients: float32, one per input; not all 0.
        result: ``[elements]`` bits of the result.

    Returns:
        How many results are infinite or NaN.
    """
    scratch = np.empty((2, TILE), np.float32)
    spoiled = 0
    for start in range(0, stored.shape[1], TILE):
        stop = min(start + TILE, stored.shape[1])
        total, term = scratch[0, : stop - start], scratch[1, : stop - start]
        is_first = True
        for i in range(stored.shape[0]):
            if coefficients[i] == f32(0):
                continue
            values = total if is_first else term
            tiles.widen(stored[i, start:stop], values.view(np.uint32))
            tiles.scale(values, coefficients[i])
            if not is_first:
                tiles.add(total, term)
            is_first = False
        spoiled += tiles.narrow(total.view(np.uint32), result[start:stop])
    return spoiled


@step
def needs_hashes(rule: int, cut: Any) -> bool:
    """Whether a rule looks at random numbers: a cut does so only where it divides equal magnitudes."""
    is_divided = cut[1] != u32(NEVER) or cut[3] != u32(NEVER)
    return rule in (DROP_AT_RANDOM, DROP_BY_CHANCE) or (rule == CUT and is_divided)


@step
def sparsify(bits: Any, rule: int, limits: Any, cut: Any, hashes: Any) -> None:
    """Zero what one model's rule does not keep."""
    if rule == DROP_AT_RANDOM:
        tiles.keep_below(bits, hashes, limits[0])
    elif rule == CUT:
        if cut[1] == u32(NEVER):
            tiles.keep_from(bits, cut[0])
        else:
            tiles.keep_above(bits, hashes, cut[0], cut[1], limits[0])
        if cut[2] != u32(NEVER) or cut[3] != u32(NEVER):
            tiles.drop_above(bits, hashes, cut[2], cut[3], limits[1])


@step
def add_up(scratch: Any, models: int, size: int, factors: Any) -> None:
    """The sum of the changes whose weight is not 0, after the changes and the base in ``scratch``."""
    mixed = scratch[models + 1, :size]
    mixed[:] = -f32(0)
    is_empty = True
    for i in range(models):
        if factors[i, 2] != f32(0):
            tiles.add(mixed, scratch[i, :size])
            is_empty = False
    if is_empty:
        mixed[:] = f32(0)


@step
def elect(scratch: Any, models: int, size: int, factors: Any, divides: bool) -> None:
    """The sum of the changes that have the sign of the sum of all; the twin of `disjoint_merge`.

    Args:
        scratch: the weighted changes, the base, room for the result and for two more.
        models: how many changes there are.
        size: elements of the tile.
        factors: as for `changed_base`.
        divides: whether to divide by the sum of |weight| of those that take part.
    """
    mixed, balance, divisor = scratch[models + 1, :size], scratch[models + 2, :size], scratch[models + 3, :size]
    balance[:] = scratch[0, :size]
    for i in range(1, models):
        tiles.add(balance, scratch[i, :size])
    mixed[:] = -f32(0)
    divisor[:] = f32(0)
    for i in range(models):
        change = scratch[i, :size]
        tiles.turn(change.view(np.uint32), balance.view(np.uint32))
        tiles.vote(change, f32(abs(factors[i, 2])), mixed, divisor)
    tiles.turn(mixed.view(np.uint32), balance.view(np.uint32))
    if divides:
        tiles.divide_each(mixed, divisor)


@compiled
def changed_base(
    stored: Any,
    rules: Any,
    words: Any,
    limits: Any,
    cuts: Any,
    chances: Any,
    factors: Any,
    mixing: Any,
    numbers: Any,
    result: Any,
) -> int:
    """The base plus a factor times the mixed, sparsified changes of the models.

    Args:
        stored: ``[1 + models, elements]`` bits, the base first.
        rules: per model, what is done to its changes; see `merger.ops.kernels.codes`.
        words: uint32 ``[models, 2]`` that the hash of the first element begins with.
        limits: int32 ``[models, 2]``: of `DROP_AT_RANDOM`, hashes below the first are kept; of `CUT`, of the elements
            at the lower and at the upper boundary those with a smaller hash are above it.
        cuts: uint32 ``[models, 4]``: bit patterns from which magnitudes are above the lower boundary, of those at it,
            and the same of the upper one; kept is what is above the lower and not above the upper.
        chances: float32 ``[models, elements]``: of `DROP_BY_CHANCE`, the probability of keeping each element;
            otherwise of any shape.
        factors: float32 ``[models, 3]``: divisor (of `DROP_BY_CHANCE`, 0 for each probability), factor
            and weight of each model's change.
        mixing: `SUM` or `ELECT`.
        numbers: float32: divisor of the sum, 0 for the weights that take part; factor of the mixed change.
        result: ``[elements]`` bits of the result.

    Returns:
        How many results are infinite or NaN.
    """
    models = stored.shape[0] - 1
    scratch = np.empty((models + 4, TILE), np.float32)
    hashes = np.empty(TILE, np.int32)
    spoiled = 0
    for start in range(0, stored.shape[1], TILE):
        stop = min(start + TILE, stored.shape[1])
        size = stop - start
        base = scratch[models, :size]
        tiles.widen(stored[0, start:stop], base.view(np.uint32))
        for i in range(models):
            change = scratch[i, :size]
            if rules[i] == DROP_ALL:
                change[:] = f32(0)
            else:
                tiles.widen(stored[i + 1, start:stop], change.view(np.uint32))
                tiles.subtract(change, base)
                if needs_hashes(rules[i], cuts[i]):
                    tiles.hashed(hashes[:size], u32(words[i, 0] + u32(start)), words[i, 1])
                if rules[i] == DROP_BY_CHANCE:
                    keep = chances[i, start:stop]
                    tiles.keep_by_chance(change, hashes[:size], keep, factors[i, 0] == f32(0))
                else:
                    sparsify(change.view(np.uint32), rules[i], limits[i], cuts[i], hashes[:size])
                    tiles.divide(change, factors[i, 0])
                tiles.scale(change, factors[i, 1])
            if mixing == ELECT or factors[i, 2] != f32(0):
                tiles.scale(change, factors[i, 2])
        mixed = scratch[models + 1, :size]
        if mixing == ELECT:
            elect(scratch, models, size, factors, numbers[0] == f32(0))
        else:
            add_up(scratch, models, size, factors)
            tiles.divide(mixed, numbers[0])
        tiles.scale(mixed, numbers[1])
        tiles.add(mixed, base)
        spoiled += tiles.narrow(mixed.view(np.uint32), result[start:stop])
    return spoiled
