"""Lets a preview see what a method mixes, while the method's function stays the formula it is.

The shared steps report here; outside of `watching` that costs nothing and does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from merger.ops.columns import Number


@dataclass
class Seen:
    """What one `combine` reported.

    Attributes:
        unchanged: per model, the chance that an element without a change is kept; None when nothing is dropped.
        deltas: per model, the task vector after sparsifying; None when no task vectors were mixed.
        weights: per model, what it was mixed with.
        elects: whether changes of the minority's sign are dropped.
        weighs_votes: whether weights take part in the election.
        opposite: share of the vectors that are too nearly opposite for an arc between them.
    """

    unchanged: list[Number] | None = None
    deltas: list[Tensor] | None = None
    weights: Sequence[Number] = ()
    elects: bool = False
    weighs_votes: bool = True
    opposite: Number = 0.0


class _Current(threading.local):
    seen: Seen | None = None


_current = _Current()


@contextmanager
def watching() -> Iterator[Seen]:
    """Collect what this thread's merge functions report."""
    before, _current.seen = _current.seen, Seen()
    try:
        yield _current.seen
    finally:
        _current.seen = before


def note_sparsified(unchanged: Sequence[Number]) -> None:
    """Report that elements are dropped, and with which chance those without a change are kept."""
    if _current.seen is not None:
        _current.seen.unchanged = list(unchanged)


def note_mixed(deltas: Sequence[Tensor], weights: Sequence[Number], *, elects: bool, weighs_votes: bool = True) -> None:
    """Report the task vectors as they are mixed; they are copied."""
    if _current.seen is not None:
        _current.seen.deltas = [delta.clone() for delta in deltas]
        _current.seen.weights, _current.seen.elects = list(weights), elects
        _current.seen.weighs_votes = weighs_votes


def note_partly_taken(deltas: Callable[[], Sequence[Tensor]], weights: Sequence[Number]) -> None:
    """Report the parts of task vectors that a method takes over, which are made when somebody looks."""
    if _current.seen is not None:
        _current.seen.deltas, _current.seen.weights, _current.seen.elects = list(deltas()), list(weights), False


def note_opposite(share: Callable[[], Number]) -> None:
    """Report the share of vectors that are too nearly opposite for an arc between them, counted when somebody looks."""
    if _current.seen is not None:
        _current.seen.opposite = share()
