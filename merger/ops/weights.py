"""Weights of models before anything is read: which are used, and whether they can be divided by their sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum

from merger.errors import Problem


def only_used(weights: Sequence[float]) -> int | None:
    """The place of the one weight that is not 0, or None when there are several or none."""
    used = [place for place, weight in enumerate(weights) if weight != 0]
    return used[0] if len(used) == 1 else None


def unused_problem(weights: Sequence[float]) -> Iterator[Problem]:
    """An error when every weight is 0."""
    if not any(weights):
        yield Problem("every weight is 0; give at least one model a weight")


def sum_problem(weights: Sequence[float], switch: str) -> Iterator[Problem]:
    """An error when the weights cannot be divided by their sum.

    Args:
        weights: of the models.
        switch: the parameter that, set to false, does without.
    """
    if any(weights) and abs(fsum(weights)) <= 1e-8 * fsum(map(abs, weights)):
        shown = ", ".join(f"{weight:g}" for weight in weights)
        yield Problem(f"the weights {shown} add up to 0 and cannot be divided by that; change one, or {switch}: false")
