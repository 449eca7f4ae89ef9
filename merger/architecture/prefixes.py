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
            inside = name.startswith(self.strip) and name not in self.known
            return self.add + name[len(self.strip) :] if inside else name
        if name in self.known or name.split(".", 1)[0] not in self.modules:
            return name
        return self.add + name


def prefix_difference(reference: Collection[str], names: Collection[str]) -> tuple[str, str] | None:
    """What to strip from and add to ``names`` so that they are those of ``reference``.

    Returns:
        ``(strip, add)``, such as ``("", "bert.")`` or ``("transformer.", "model.")``; None when no
        prefix is the only difference, or there is no difference.
    """
    theirs, ours = frozenset(reference), frozenset(names)
    smaller = min(len(theirs), len(ours))
    shared = len(theirs & ours)
    if shared * 2 > smaller:
        return None
    changes = [(strip, add) for strip in ("", *_common_prefixes(ours)) for add in ("", *_common_prefixes(theirs))]
    matched = {change: _brought_together(theirs, ours, *change) for change in changes if change[0] != change[1]}
    best = min(matched, key=lambda change: (-matched[change], len("".join(change)), change), default=("", ""))
    return best if matched.get(best, 0) >= max(MOST * smaller, shared + 1) else None


def prefix_between(reference: Collection[str], names: Collection[str]) -> PrefixChange | None:
    """A function from ``names`` to the naming of ``reference``; None when there is nothing to change."""
    difference = prefix_difference(reference, names)
    if difference is None:
        return None
    strip, add = difference
    known = frozenset(reference)
    inside = (name[len(add) :].split(".", 1)[0] for name in known if name.startswith(add))
    return PrefixChange(strip, add, frozenset(inside), known)


def _brought_together(theirs: frozenset[str], ours: frozenset[str], strip: str, add: str) -> int:
    """How many names become those of the other model; what stands outside of both prefixes stays as it is."""
    if not strip:
        return sum(add + name in theirs for name in ours)
    return sum((add + name[len(strip) :] if name.startswith(strip) else name) in theirs for name in ours)


def _common_prefixes(names: frozenset[str]) -> list[str]:
    """What at least half of the names begin with, whole parts only."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".", DEEPEST_PREFIX)[:-1]
        counts.update(".".join(parts[: depth + 1]) + "." for depth in range(len(parts)))
    return [prefix for prefix, count in counts.items() if count * 2 >= len(names)]
