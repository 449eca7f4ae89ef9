"""From the steps of a merge function to one pass of a kernel over its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from merger.ops.bits import ALL, LOWEST_HASH
from merger.ops.deferred import Input, Step
from merger.ops.deltas import divisor_of
from merger.ops.kernels import codes
from merger.ops.kernels.codes import NEVER, Stored
from merger.ops.sparsify import line_of
from merger.ops.trim import NO_CEILING, Cut, cut_of

Keys = NDArray[np.uint32]
"""``[models, 2]``: what the hash of the first element begins with; see `merger.ops.noise.HashKeys`."""

DIVIDE_BY_CHANCE = 0.0
"""A divisor that says: each element by its own probability."""

LEAST, MOST = 2.0**-150, 2.0**127
"""Numbers between are neither 0 nor infinite as float32."""


class Formula(Protocol):
    """What a merge function computes, in a form that a kernel takes in one pass."""

    def run(self, stored: Stored, row: int, keys: Keys, result: Stored) -> int:
        """Compute one block.

        Args:
            stored: ``[inputs, elements]``, the base first.
            row: elements of a row, where rows stay together.
            keys: of the block's noise.
            result: ``[elements]``, overwritten.

        Returns:
            How many results are infinite or NaN.
        """
        ...


def formula_of(expression: Any) -> Formula | None:
    """The formula that a merge function's deferred result stands for, None when no kernel knows it."""
    if not isinstance(expression, Step):
        return None
    arguments = expression.arguments
    if expression.name == "weighted_sum":
        return _weighted_sum(arguments["tensors"], arguments["coefficients"])
    if expression.name == "add_to_base" and isinstance(arguments["base"], Input):
        return _changed_base(arguments["mixed"], arguments["factor"])
    return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and _stays_itself(value) for value in values)


def _stays_itself(value: float) -> bool:
    """Whether float32 makes no 0 or infinity of a number: torch asks for them before it rounds, kernels afterwards."""
    return value == 0 or LEAST < abs(value) < MOST


# Weighted sums


@dataclass(frozen=True)
class WeightedSum:
    """``c_1 x_1 + c_2 x_2 + ...``; a term whose coefficient is 0 is left out.

    Attributes:
        coefficients: one per input, in order.
    """

    coefficients: tuple[float, ...]

    def run(self, stored: Stored, row: int, keys: Keys, result: Stored) -> int:
        from merger.ops.kernels import mixing

        return mixing.weighted_sum(stored, self._coefficients, result)

    @cached_property
    def _coefficients(self) -> NDArray[np.float32]:
        return np.array(self.coefficients, np.float32)


def _weighted_sum(inputs: Any, coefficients: Sequence[Any]) -> WeightedSum | None:
    in_order = isinstance(inputs, list) and inputs == [Input(row) for row in range(len(inputs))]
    if not in_order or not _are_numbers(coefficients) or not any(coefficients):
        return None
    return WeightedSum(tuple(map(float, coefficients)))


# Changes added to a base


@dataclass(frozen=True)
class Rule:
    """What becomes of one model's change before it is mixed.

    Attributes:
        kind: as `merger.ops.kernels.codes` numbers them.
        limits, cut: as `merger.ops.kernels.mixing.changed_base` takes them.
        divisor, factor: applied to what is kept.
        density, epsilon: of `drop_by_rank`.
    """

    kind: int = codes.KEEP_ALL
    limits: tuple[int, int] = (0, 0)
    cut: tuple[int, int, int, int] = (0, 0, 0, 0)
    divisor: float = 1.0
    factor: float = 1.0
    density: float = 1.0
    epsilon: float = 0.0


@dataclass(frozen=True)
class ChangedBase:
    """``base + factor * mixed``, where the mixed change is made from the models' sparsified changes.

    Attributes:
        rules: one per model.
        weights: one per model.
        elects: whether changes against the elected sign are dropped.
        divisor: of the sum; 0 for the weights that take part.
        factor: of the mixed change.
    """

    rules: tuple[Rule, ...]
    weights: tuple[float, ...]
    elects: bool
    divisor: float
    factor: float

    def run(self, stored: Stored, row: int, keys: Keys, result: Stored) -> int:
        from merger.ops.kernels import mixing

        kinds, limits, cuts, factors, numbers = self._arrays
        chances = self._chances(stored, row)
        mode = codes.ELECT if self.elects else codes.SUM
        return mixing.changed_base(stored, kinds, keys, limits, cuts, chances, factors, mode, numbers, result)

    @cached_property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        weighted = zip(self.rules, self.weights, strict=True)
        return (
            np.array([rule.kind for rule in self.rules], np.int64),
            np.array([rule.limits for rule in self.rules], np.int32),
            np.array([rule.cut for rule in self.rules], np.uint32),
            np.array([(rule.divisor, rule.factor, weight) for rule, weight in weighted], np.float32),
            np.array([self.divisor, self.factor], np.float32),
        )

    def _chances(self, stored: Stored, row: int) -> NDArray[np.float32]:
        from merger.ops.kernels import ranking

        by_rank = [rule.kind == codes.DROP_BY_CHANCE for rule in self.rules]
        if not any(by_rank):
            return _NO_CHANCES
        chances = np.empty((len(by_rank), stored.shape[1]), np.float32)
        lines = [line_of(rule.density, rule.epsilon, float(row)) for rule in self.rules]
        ranking.chances_by_rank(stored, row, np.array(lines, np.float32), np.array(by_rank), chances)
        return chances


_NO_CHANCES = np.empty((0, 0), np.float32)


def _changed_base(mixed: Any, factor: Any) -> ChangedBase | None:
    if not isinstance(mixed, Step) or not _are_numbers([factor]) or not mixed.arguments.get("weighs_votes", True):
        return None
    given = mixed.arguments
    weights = given["coefficients"] if mixed.name == "weighted_sum" else given.get("weights", [None])
    rules = _rules(given["tensors"] if mixed.name == "weighted_sum" else given.get("deltas"))
    if rules is None or not _are_numbers(weights):
        return None
    elects, divisor = mixed.name == "disjoint_merge", 1.0
    if given.get("normalize", False):
        divisor = 0.0 if elects else float(divisor_of(weights))
    return ChangedBase(rules, tuple(map(float, weights)), elects, divisor, float(factor))


def _rules(changes: Any) -> tuple[Rule, ...] | None:
    """What is done to each model's change, None when a kernel does not know it."""
    if not isinstance(changes, Step):
        return None
    given = changes.arguments
    if changes.name == "task_vectors":
        inputs, base = given["tensors"], given["base"]
        in_order = base == Input(0) and inputs == [Input(row + 1) for row in range(len(inputs))]
        return tuple(Rule() for _ in inputs) if in_order else None
    make_rules = _SPARSIFYING.get(changes.name)
    is_plain = make_rules and _are_numbers(given["densities"]) and _rules(given["deltas"]) is not None
    return make_rules(given) if make_rules and is_plain else None


def _chance_rules(given: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(_chance_rule(density, given["rescale"]) for density in given["densities"])


def _rank_rules(given: Mapping[str, Any]) -> tuple[Rule, ...]:
    pairs = zip(given["densities"], given["epsilons"], strict=True)
    return tuple(_rank_rule(density, epsilon, given["rescale"]) for density, epsilon in pairs)


def _cut_rules(given: Mapping[str, Any]) -> tuple[Rule, ...] | None:
    cuts = given["cuts"] or [cut_of(density) for density in given["densities"]]
    return tuple(map(_cut_rule, cuts)) if all(cut is not None and _are_numbers(cut) for cut in cuts) else None


_SPARSIFYING: Mapping[str, Callable[[Mapping[str, Any]], tuple[Rule, ...] | None]] = {
    "drop_at_random": _chance_rules,
    "drop_by_rank": _rank_rules,
    "keep_largest": _cut_rules,
}


def _chance_rule(density: float, rescale: bool) -> Rule:
    if density == 1:
        return Rule()
    if density == 0:
        return Rule(codes.DROP_ALL)
    limit = int(density * 2.0**32) + LOWEST_HASH
    return Rule(codes.DROP_AT_RANDOM, (limit, 0), divisor=density if rescale else 1.0)


def _rank_rule(density: float, epsilon: float, rescale: bool) -> Rule:
    if density in (0, 1):
        return Rule(codes.DROP_ALL if density == 0 else codes.KEEP_ALL)
    divisor = DIVIDE_BY_CHANCE if rescale else 1.0
    return Rule(codes.DROP_BY_CHANCE, divisor=divisor, density=density, epsilon=epsilon)


def _cut_rule(cut: Cut) -> Rule:
    if cut.factor == 0:
        return Rule(codes.DROP_ALL)
    if cut.threshold == 0 and cut.ceiling == NO_CEILING:
        return Rule(factor=float(cut.factor))
    lower, upper = _boundary(cut.threshold, cut.ties), _boundary(cut.ceiling, cut.ceiling_ties)
    return Rule(codes.CUT, (lower[2], upper[2]), (*lower[:2], *upper[:2]), factor=float(cut.factor))


def _boundary(threshold: Any, ties: Any) -> tuple[int, int, int]:
    """The bit pattern from which magnitudes are above a boundary, that of ties, and the limit of the ties' hashes."""
    if threshold > NEVER:
        return NEVER, NEVER, 0
    if ties in (0, ALL):
        return int(threshold) + (ties == 0), NEVER, 0
    return int(threshold) + 1, int(threshold), int(ties) + LOWEST_HASH
