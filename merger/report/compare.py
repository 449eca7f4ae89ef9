"""What stands between the tensors of two models, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from merger.architecture import (
    is_embedding,
    is_head,
    model_kind,
    prefix_between,
    prefix_difference,
    tied_source,
)
from merger.checkpoints.base import COMPARED_BYTES, Checkpoint
from merger.errors import Problem
from merger.kinship import SHOWN, Kin, listed, more, prefix_note, stranger_problem, tied_note
from merger.matching import KEEP_VOCABULARY, SAME_FAMILY
from merger.report.facts import ModelFacts
from merger.types import DTYPE_BY_NAME, TensorSpec


@dataclass(frozen=True)
class Pair:
    """Two models to compare; tensors of the second stand under the names that the first would use.

    Attributes:
        first: the model that others are compared with.
        second: the other one.
        first_facts, second_facts: what they are.
        renamed: tensors of the second model.
    """

    first: Checkpoint
    second: Checkpoint
    first_facts: ModelFacts
    second_facts: ModelFacts
    renamed: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, first: Checkpoint, second: Checkpoint, first_facts: ModelFacts, second_facts: ModelFacts) -> Pair:
        """Align the names of two models."""
        rename = prefix_between(first.tensors, second.tensors) or str
        renamed = {rename(name): spec for name, spec in second.tensors.items()}
        return cls(first, second, first_facts, second_facts, renamed)

    @property
    def names(self) -> tuple[str, str]:
        """What the two are called in sentences."""
        if self.first_facts.name == self.second_facts.name:
            return self.first_facts.reference, self.second_facts.reference
        return self.first_facts.name, self.second_facts.name


def tensor_findings(pair: Pair) -> Iterator[Problem]:
    """Everything about the tensors of two relatives, one sentence per kind of difference."""
    yield from _kinds(pair)
    yield from _prefix(pair)
    yield from _layers(pair)
    yield from _shapes(pair)
    yield from _only_one_has(pair)
    yield from _dtypes(pair)
    yield from _whole_numbers(pair)


def strangers(pair: Pair) -> Problem | None:
    """One sentence for models that cannot be merged whatever their single tensors are."""
    a, b = pair.names
    return stranger_problem(Kin(a, pair.first.tensors, pair.first.config), Kin(b, pair.renamed, pair.second.config))


def _kinds(pair: Pair) -> Iterator[Problem]:
    a, b = pair.names
    kinds = model_kind(pair.first.config), model_kind(pair.second.config)
    if None not in kinds and kinds[0] != kinds[1]:
        message = f"{b} is saved as a {kinds[1]}, {a} as a {kinds[0]}; their tensors have the same names."
        yield Problem(message, hint="Make sure that both come from one base.", level="warning")


def _prefix(pair: Pair) -> Iterator[Problem]:
    difference = prefix_difference(pair.first.tensors, pair.second.tensors)
    if difference is not None:
        yield prefix_note(*pair.names, difference)


def _layers(pair: Pair) -> Iterator[Problem]:
    a, b = pair.names
    if pair.first_facts.layers != pair.second_facts.layers:
        message = f"{b} has {pair.second_facts.layers} layers, {a} has {pair.first_facts.layers}."
        yield Problem(message, hint="Choose the layers with 'slices', or models of equal depth.", level="warning")


def _shapes(pair: Pair) -> Iterator[Problem]:
    a, b = pair.names
    differing = [name for name, spec in pair.renamed.items() if pair.first.tensors.get(name, spec).shape != spec.shape]
    rows = sorted(name for name in differing if _is_vocabulary(pair, name))
    if rows:
        mine, theirs = pair.first.tensors[rows[0]].shape[0], pair.renamed[rows[0]].shape[0]
        message = f"{b} has {theirs} vocabulary rows, {a} has {mine} ({listed(rows)})."
        yield Problem(message, hint=KEEP_VOCABULARY)
    others = [name for name in differing if name not in rows]
    if others:
        shown = "; ".join(
            f"{name} is {_shape(pair.renamed[name])} and {_shape(pair.first.tensors[name])}" for name in others[:SHOWN]
        )
        message = f"{len(others)} {_tensors(others)} of {b} and {a} differ in shape: {shown}{more(others)}."
        yield Problem(message, hint=SAME_FAMILY)


def _is_vocabulary(pair: Pair, name: str) -> bool:
    """Whether only the number of tokens differs."""
    return (is_embedding(name) or is_head(name)) and pair.first.tensors[name].shape[1:] == pair.renamed[name].shape[1:]


def _only_one_has(pair: Pair) -> Iterator[Problem]:
    a, b = pair.names
    missing = [name for name in pair.first.tensors if name not in pair.renamed]
    extra = [name for name in pair.renamed if name not in pair.first.tensors]
    tied_b = [name for name in missing if tied_source(name, pair.renamed, pair.second.config)]
    tied_a = [name for name in extra if tied_source(name, pair.first.tensors, pair.first.config)]
    for owner, other, tied in ((a, b, tied_b), (b, a, tied_a)):
        if tied:
            yield tied_note(other, tied, owner)
    for owner, names in ((a, [n for n in missing if n not in tied_b]), (b, [n for n in extra if n not in tied_a])):
        if names and pair.first_facts.layers == pair.second_facts.layers:
            message = f"Of {a} and {b} only {owner} has {listed(names)}."
            hint = "What only some models have is merged from those models or copied; the plan says which."
            yield Problem(message, hint=hint, level="note")


def _dtypes(pair: Pair) -> Iterator[Problem]:
    a, b = pair.names
    if pair.first_facts.dtype != pair.second_facts.dtype:
        message = f"{b} is stored as {pair.second_facts.dtype}, {a} as {pair.first_facts.dtype}."
        hint = "The result is stored as the base (or the first model) is, unless the recipe gives a dtype."
        yield Problem(message, hint=hint, level="note")
    method = (pair.second.config or {}).get("quantization_config")
    if isinstance(method, Mapping) and not DTYPE_BY_NAME[pair.second_facts.dtype].is_float:
        message = f"{b} is quantised ({method.get('quant_method', 'unknown method')}): its weights are packed numbers."
        yield Problem(message, hint="Merge the model in full precision and quantise the result.")


def _whole_numbers(pair: Pair) -> Iterator[Problem]:
    """Tensors without arithmetic, such as position indices, that are not the same in both models."""
    a, b = pair.names
    differing = []
    for name, theirs in pair.renamed.items():
        mine = pair.first.tensors.get(name)
        if mine is None or mine.is_float or mine.shape != theirs.shape or mine.nbytes > COMPARED_BYTES:
            continue
        if mine.dtype != theirs.dtype or pair.first.read(mine) != pair.second.read(theirs):
            differing.append(name)
    if differing:
        message = f"{listed(differing)} holds whole numbers that differ between {b} and {a}."
        yield Problem(message, hint="The base's (or the first model's) are kept.", level="warning")


def _tensors(names: Sequence[str]) -> str:
    return "tensor" if len(names) == 1 else "tensors"


def _shape(spec: TensorSpec) -> str:
    return " x ".join(map(str, spec.shape)) or "a scalar"
