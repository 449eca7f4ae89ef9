"""The compatibility report: facts of every model and what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from merger.checkpoints.base import Checkpoint
from merger.errors import Problem, UserError
from merger.report.companions import companion_findings
from merger.report.compare import Pair, strangers, tensor_findings
from merger.report.facts import ModelFacts, facts_of
from merger.report.lineage import suggest_base
from merger.types import ModelReference

LEVELS = ("error", "warning", "note")
MARKS = {"error": "x", "warning": "!", "note": "-"}
UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True)
class Report:
    """Whether models fit together.

    Attributes:
        models: facts of each, in the order given.
        findings: what differs, errors first; each is a sentence that names the models.
        base: the given model that the others come from, or None.
    """

    models: tuple[ModelFacts, ...]
    findings: tuple[Problem, ...]
    base: ModelReference | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing stands against merging the models as they are."""
        return all(problem.level != "error" for problem in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "fits": self.fits,
            "models": [asdict(model) for model in self.models],
            "findings": [asdict(problem) for problem in self.findings],
            "base": None if self.base is None else str(self.base),
        }

    def to_text(self) -> str:
        """A table of the models and one line per finding."""
        lines = [*_table([_row(model) for model in self.models]), ""]
        if len(self.models) > 1:
            lines.append("The models fit together." if self.fits else "The models do not fit together as they are.")
        return "\n".join([*lines, *(f"{MARKS[problem.level]} {problem}" for problem in self.findings)]).rstrip()


def build_report(checkpoints: Sequence[Checkpoint]) -> Report:
    """Compare opened models.

    Args:
        checkpoints: one or more; they stay open.

    Raises:
        UserError: no model is given.
    """
    if not checkpoints:
        raise UserError("There is nothing to inspect.", hint="Name one model or more.")
    facts = [facts_of(checkpoint) for checkpoint in checkpoints]
    base, findings = suggest_base(checkpoints)
    order = sorted(range(len(checkpoints)), key=lambda place: checkpoints[place].reference != base)
    findings += _differences([checkpoints[place] for place in order], [facts[place] for place in order])
    ranked = sorted(dict.fromkeys(findings), key=lambda problem: LEVELS.index(problem.level))
    return Report(tuple(facts), tuple(ranked), base)


def _differences(checkpoints: Sequence[Checkpoint], facts: Sequence[ModelFacts]) -> list[Problem]:
    """What stands between the first model and each other one."""
    findings: list[Problem] = []
    relatives = [0]
    for place in range(1, len(checkpoints)):
        pair = Pair.of(checkpoints[0], checkpoints[place], facts[0], facts[place])
        stranger = strangers(pair)
        findings += [stranger] if stranger else tensor_findings(pair)
        relatives += [] if stranger else [place]
    kin = [checkpoints[place] for place in relatives]
    return findings + companion_findings(kin, [facts[place] for place in relatives])


HEADINGS = ("model", "architecture", "layers", "width", "vocabulary", "parameters", "dtype", "size", "licence")


def _row(model: ModelFacts) -> tuple[str, ...]:
    vocabulary = "" if model.vocab_size is None else f"{model.vocab_size}{' tied' if model.tied else ''}"
    return (
        model.name,
        model.architecture or "",
        str(model.layers or ""),
        str(model.hidden_size or ""),
        vocabulary,
        _short(model.parameters),
        model.dtype,
        f"{_short(model.bytes)}B",
        model.licence or "",
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns; those that are empty everywhere are left out."""
    columns = [
        (heading, *cells) for heading, *cells in zip(HEADINGS, *rows, strict=True) if any(cell for cell in cells)
    ]
    widths = [max(map(len, column)) for column in columns]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in zip(*columns, strict=True)]


def _short(count: int) -> str:
    """A count with three digits and a unit."""
    for size, unit in UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} "
