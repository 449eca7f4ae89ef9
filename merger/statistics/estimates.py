"""From sums over rows to figures with 95 % intervals.  Numbers only; knows neither models nor files.

A sampled tensor's total is the weighted sum over its rows.  Rows are drawn one from each run of
neighbours, so the variance of a total comes from the differences of successive rows (Wolter, Introduction
to Variance Estimation, 2007, chapter 8), which stays on the safe side when the runs differ.
Figures are smooth functions of totals; their variance follows by linearisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

ROUGH_BELOW = 8
"""Sampled rows below which no interval is given."""

OUTLIER_ROW = 20.0
OUTLIER_SHARE = 1 / 16
"""Squared norm that a single row which the sample missed may have: 20 mean rows, or a sixteenth of the tensor.

Trained weights have such rows: one row in five hundred that holds 5 % of the squared norm.
A sample that missed it cannot know, so the interval of every norm allows for one.
"""

MODEL_SUMS = ("elements", "base", "delta", "zero", "non_finite", "kept", "kept_of")
PAIR_SUMS = ("dot", "left", "right")
TENSOR_SUMS = (
    *("both", "agree", "change", "survived"),
    *("merged", "merged_base", "merged_of", "merged_non_finite", "opposite"),
)
SQUARES = frozenset({"base", "delta", "left", "right", "merged", "merged_base"})


class Layout:
    """Where each sum stands in a row of sums.

    Args:
        models: number of models without the reference.
    """

    def __init__(self, models: int) -> None:
        self.models = models
        self.pairs = list(combinations(range(models), 2))
        names: list[tuple[str, int]] = [(name, i) for name in MODEL_SUMS for i in range(models)]
        names += [(name, i) for name in PAIR_SUMS for i in range(len(self.pairs))]
        names += [(name, 0) for name in TENSOR_SUMS]
        self._columns = {name: column for column, name in enumerate(names)}
        self.squares = np.array([self._columns[name] for name in names if name[0] in SQUARES], np.int64)
        products = list(self._products())
        self._products_of = {product: place for place, product in enumerate(products)}
        self.left, self.right = np.array(products, np.int64).T
        self.square_products = np.array([self.product(column, column) for column in self.squares], np.int64)

    @property
    def size(self) -> int:
        """Length of a row of sums."""
        return len(self._columns)

    def column(self, name: str, index: int = 0) -> int:
        """Place of one sum; ``index`` is a model or a pair of models."""
        return self._columns[name, index]

    def product(self, first: int, second: int) -> int:
        """Place of the covariance of two sums."""
        return self._products_of[min(first, second), max(first, second)]

    def _products(self) -> Iterable[tuple[int, int]]:
        """The covariances that the figures need."""
        column = self.column
        together = [("zero", "elements"), ("kept", "kept_of"), ("delta", "base")]
        groups = [[column(name, i) for name in names] for names in together for i in range(self.models)]
        groups += [[column(name, i) for name in PAIR_SUMS] for i in range(len(self.pairs))]
        groups += [[column(name) for name in names] for names in (("agree", "both"), ("survived", "change"))]
        groups += [[column("merged"), column("merged_base")]]
        for group in groups:
            yield from ((min(a, b), max(a, b)) for a in group for b in group if a <= b)


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over each looked-at row of tensors of which equally many rows were looked at.

    Attributes:
        sums: ``[tensors, rows, sums]``.
        weights: ``[tensors, rows]`` how many rows of the tensor each stands for.
        shares: ``[tensors]`` of the elements that were looked at.
    """

    sums: Floats
    weights: Floats
    shares: Floats


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure for each of several tensors or groups; NaN where it is undefined or unknown."""

    value: Floats
    low: Floats
    high: Floats

    def only(self, where: Booleans) -> Estimate:
        """Unknown elsewhere."""
        return Estimate(*(np.where(where, values, np.nan) for values in (self.value, self.low, self.high)))

    def otherwise(self, value: float, where: Booleans) -> Estimate:
        """A fixed value where it is undefined."""
        undefined = where & np.isnan(self.value)
        return Estimate(*(np.where(undefined, value, values) for values in (self.value, self.low, self.high)))


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over whole tensors, or groups of them, and how uncertain they are.

    Attributes:
        layout: where each sum stands.
        sums: ``[tensors, sums]``.
        covariances: ``[tensors, products]``; zero where nothing was left out.
        rows: ``[tensors]`` sampled rows; 0 where nothing was left out.
        shares: ``[tensors]`` of the elements that were looked at.
        is_rough: ``[tensors]`` whether too few rows were looked at for an interval.
    """

    layout: Layout
    sums: Floats
    covariances: Floats
    rows: Integers
    shares: Floats
    is_rough: Booleans

    @classmethod
    def of(cls, layout: Layout, tensors: Sequence[RowSums]) -> Totals:
        """The totals of tensors, in their order, from the sums over their rows."""
        if not tensors:
            tensors = [RowSums(np.zeros((0, 1, layout.size)), np.zeros((0, 1)), np.zeros(0))]
        sums = [np.einsum("tr,trs->ts", group.weights, group.sums) for group in tensors]
        covariances = [_covariances(layout, group, total) for group, total in zip(tensors, sums, strict=True)]
        shares = np.concatenate([group.shares for group in tensors])
        rows = np.concatenate([np.full(len(group.shares), group.weights.shape[1]) for group in tensors])
        rows = np.where(shares < 1, rows, 0)
        is_rough = (shares < 1) & (rows < ROUGH_BELOW)
        return cls(layout, np.concatenate(sums), np.concatenate(covariances), rows, shares, is_rough)

    def taken(self, order: Integers) -> Totals:
        """The tensors at these places."""
        return Totals(
            self.layout,
            self.sums[order],
            self.covariances[order],
            self.rows[order],
            self.shares[order],
            self.is_rough[order],
        )

    def grouped(self, groups: Sequence[int], count: int) -> Totals:
        """The totals of groups of tensors.

        Args:
            groups: the group of each tensor.
            count: number of groups.
        """
        index = np.asarray(groups, np.int64)
        tensors = np.bincount(index, minlength=count)
        return Totals(
            self.layout,
            _grouped(self.sums, index, count),
            _grouped(self.covariances, index, count),
            np.bincount(index, self.rows, count).astype(np.int64),
            np.bincount(index, self.shares, count) / np.maximum(tensors, 1),
            np.bincount(index, self.is_rough, count) > 0,
        )

    def sum_of(self, name: str, index: int = 0) -> Floats:
        """One sum, for every tensor."""
        return self.sums[:, self.layout.column(name, index)]

    def norm(self, name: str, index: int = 0) -> Estimate:
        """Root of a sum of squares."""
        column = self.layout.column(name, index)
        square = self.sums[:, column]
        relative = quotient(self._covariance(column, column), 4 * square * square)
        return self._positive(np.sqrt(square), relative)

    def norm_ratio(self, name: str, other: str, index: int = 0) -> Estimate:
        """Root of the quotient of two sums of squares."""
        a, b = self.layout.column(name, index), self.layout.column(other, index)
        top, bottom = self.sums[:, a], self.sums[:, b]
        relative = (
            quotient(self._covariance(a, a), top * top)
            - 2 * quotient(self._covariance(a, b), top * bottom)
            + quotient(self._covariance(b, b), bottom * bottom)
        ) / 4
        return self._positive(np.sqrt(quotient(top, bottom)), relative)

    def share(self, name: str, of: str, index: int = 0) -> Estimate:
        """Quotient of two sums that lies in [0, 1], with Wilson's interval for the effective number of rows."""
        a, b = self.layout.column(name, index), self.layout.column(of, index)
        value = np.clip(quotient(self.sums[:, a], self.sums[:, b]), 0, 1)
        return self._wilson(value, self._share_variance(a, b, value))

    def survival(self) -> Estimate:
        """Share of the weighted change that survives the election.

        What is dropped before the election is itself estimated: a cut that keeps more lets more changes
        meet, so the lost share carries the relative uncertainty of the kept shares as well.
        """
        column = self.layout.column
        a, b = column("survived"), column("change")
        value = np.clip(quotient(self.sums[:, a], self.sums[:, b]), 0, 1)
        kept = np.zeros_like(value)  # relative standard errors, added up as if they went together
        for model in range(self.layout.models):
            top, bottom = column("kept", model), column("kept_of", model)
            share = quotient(self.sums[:, top], self.sums[:, bottom])
            kept += np.nan_to_num(quotient(np.sqrt(self._share_variance(top, bottom, share)), share))
        return self._wilson(value, self._share_variance(a, b, value) + ((1 - value) * kept) ** 2)

    def _share_variance(self, a: int, b: int, value: Floats) -> Floats:
        bottom = self.sums[:, b]
        spread = self._covariance(a, a) - 2 * value * self._covariance(a, b) + value**2 * self._covariance(b, b)
        return np.maximum(quotient(spread, bottom * bottom), 0)

    def _wilson(self, value: Floats, variance: Floats) -> Estimate:
        """Wilson's interval for as many trials as the variance stands for, and for few events Garwood's."""
        unseen = np.maximum(1 - self.shares, 1e-12)
        trials = np.where(variance > 0, quotient(value * (1 - value), variance), self.rows / unseen)
        trials = np.maximum(trials, 1e-12)
        quantile = self._quantile()
        t = quantile**2 / trials
        middle, half = (value + t / 2) / (1 + t), np.sqrt(t * value * (1 - value) + t * t / 4) / (1 + t)
        rare_low, rare_high = (share * _fewest(share * trials, quantile) for share in (value, 1 - value))
        low = np.where(value < 0.5, np.minimum(middle - half, rare_low), middle - half)
        high = np.where(value > 0.5, np.maximum(middle + half, 1 - rare_high), middle + half)
        return self._interval(value, np.clip(low, 0, value), np.clip(high, value, 1))

    def cosine(self, pair: int) -> Estimate:
        """Cosine of the changes of two models, with an interval on Fisher's scale."""
        d, a, b = (self.layout.column(name, pair) for name in PAIR_SUMS)
        dot, left, right = self.sums[:, d], self.sums[:, a], self.sums[:, b]
        scale = np.sqrt(left * right)
        value = np.clip(quotient(dot, scale), -1, 1)
        gradient = {
            d: quotient(np.ones_like(scale), scale),
            a: -quotient(value, 2 * left),
            b: -quotient(value, 2 * right),
        }
        variance = sum(gradient[i] * gradient[j] * self._covariance(i, j) for i in gradient for j in gradient)
        middle = np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12))
        with np.errstate(invalid="ignore"):
            half = self._quantile() * quotient(np.sqrt(np.maximum(variance, 0)), 1 - np.tanh(middle) ** 2)
            return self._interval(value, np.tanh(middle - half), np.tanh(middle + half))

    def _covariance(self, first: int, second: int) -> Floats:
        return self.covariances[:, self.layout.product(first, second)]

    def _positive(self, value: Floats, relative_variance: Floats) -> Estimate:
        with np.errstate(over="ignore", invalid="ignore"):
            factor = np.exp(self._quantile() * np.sqrt(np.maximum(relative_variance, 0)))
            low, high = value / factor, value * factor
        return self._interval(value, np.where(value == 0, 0.0, low), np.where(value == 0, 0.0, high))

    def _interval(self, value: Floats, low: Floats, high: Floats) -> Estimate:
        low = np.where(self.rows > 0, low, value)
        high = np.where(self.rows > 0, high, value)
        return Estimate(value, np.where(self.is_rough, np.nan, low), np.where(self.is_rough, np.nan, high))

    def _quantile(self) -> Floats:
        """Student's t at 97.5 %; differences of successive rows carry about 2/3 of a degree of freedom each."""
        return student_quantile(np.maximum((self.rows - 1) * 2 / 3, 1))


def student_quantile(freedom: Floats) -> Floats:
    """The 97.5 % quantile of Student's t, by the expansion of Fisher and Cornish (1960).

    Args:
        freedom: degrees of freedom; good to 1 % from 4 on.
    """
    z = 1.959963984540054
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _fewest(events: Floats, quantile: Floats) -> Floats:
    """Lower end of an interval for a number of rare events, as a share of it (Wilson and Hilferty's formula)."""
    events = np.maximum(events, 1e-12)
    return np.maximum(1 - 1 / (9 * events) - quantile / (3 * np.sqrt(events)), 0) ** 3


def _covariances(layout: Layout, tensors: RowSums, totals: Floats) -> Floats:
    """``[tensors, products]``; zero where nothing was left out or too few rows were looked at."""
    rows = tensors.weights.shape[1]
    if rows < ROUGH_BELOW:
        return np.zeros((len(totals), len(layout.left)))
    steps = np.diff(tensors.sums * tensors.weights[:, :, None], axis=1)
    found = np.einsum("trp,trp->tp", steps[:, :, layout.left], steps[:, :, layout.right]) * (rows / (2 * (rows - 1)))
    outlier = np.minimum(OUTLIER_ROW / tensors.weights.sum(1, keepdims=True), OUTLIER_SHARE)
    found[:, layout.square_products] += (outlier * totals[:, layout.squares]) ** 2
    return np.asarray(found * (1 - tensors.shares[:, None]))


def _grouped(values: Floats, groups: Integers, count: int) -> Floats:
    result = np.zeros((count, values.shape[1]))
    np.add.at(result, groups, values)
    return result


def quotient(top: Floats, bottom: Floats) -> Floats:
    """Elementwise; NaN where nothing can be divided."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)
