"""Models of one architecture that differ only in what stands before every name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

MOST = 0.8
"""Share of the smaller model's names that a prefix must bring together."""

DEEPEST_PREFIX = 3


@dataclass(frozen=True)
class PrefixChange:
    """Turns the names of one model into those of another.

    Attributes:
        strip: what is taken away from the beginning.
        add: what is put there instead.
        modules: first parts of the names that ``add`` is for; heads stand outside of the prefix.
        known: names of the other model, which are never changed.
    """

    strip: str
    add: str
    modules: frozenset[str]
    known: frozenset[str]

    def __call__(self, name: str) -> str:
        if self.strip:
            return name.removeprefix(self.strip)
        if name in self.known or name.split(".", 1)[0] not in self.modules:
            return name
        return self.add + name


def prefix_difference(reference: Collection[str], names: Collection[str]) -> tuple[str, str] | None:
    """What to strip from and add to ``names`` so that they are those of ``reference``.

    Returns:
        ``(strip, add)``, one of them empty, such as ``("", "bert.")``; None when no prefix is the
        only difference, or there is no difference.
    """
    theirs, ours = frozenset(reference), frozenset(names)
    smaller = min(len(theirs), len(ours))
    shared = len(theirs & ours)
    if shared * 2 > smaller:
        return None
    add, added = _best_prefix(theirs, ours)
    strip, stripped = _best_prefix(ours, theirs)
    if max(added, stripped) < max(MOST * smaller, shared + 1):
        return None
    return ("", add) if added >= stripped else (strip, "")


def prefix_between(reference: Collection[str], names: Collection[str]) -> PrefixChange | None:
    """A function from ``names`` to the naming of ``reference``; None when there is nothing to change."""
    difference = prefix_difference(reference, names)
    if difference is None:
        return None
    strip, add = difference
    known = frozenset(reference)
    inside = (name[len(add) :].split(".", 1)[0] for name in known if name.startswith(add))
    return PrefixChange(strip, add, frozenset(inside), known)


def _best_prefix(longer: frozenset[str], shorter: frozenset[str]) -> tuple[str, int]:
    """The prefix that makes most names of ``shorter`` names of ``longer``, and how many."""
    counts = {prefix: sum(prefix + name in longer for name in shorter) for prefix in _common_prefixes(longer)}
    best = max(sorted(counts), key=lambda prefix: counts[prefix], default="")
    return best, counts.get(best, 0)


def _common_prefixes(names: frozenset[str]) -> list[str]:
    """What at least half of the names begin with, whole parts only."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".", DEEPEST_PREFIX)[:-1]
        counts.update(".".join(parts[: depth + 1]) + "." for depth in range(len(parts)))
    return [prefix for prefix, count in counts.items() if count * 2 >= len(names)]
