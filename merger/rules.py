"""The rules by which one output tensor is merged, copied or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from merger.architecture import Architecture
from merger.checkpoints.base import COMPARED_BYTES, Checkpoint
from merger.errors import MethodError, Problem, foreign_code
from merger.graph import BlockMerge, MergeTensorInput, Task, check_graph
from merger.matching import KEEP_VOCABULARY, Match, Source
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.outputs import SUMMARY_FROM, Findings, Level, OutputTensor
from merger.parameters import ParameterResolver, Resolved
from merger.reading import LoadTensor
from merger.recipe import Recipe
from merger.types import DTYPE_BY_NAME, ModelReference, TensorContext, TensorSpec, WeightInfo
from merger.vocabulary import MATCHING_LATER


class TensorPlanner:
    """Applies the rules to one output tensor after another.

    Args:
        recipe: what to merge.
        method: its merge method.
        checkpoints: every model of the recipe, opened.
        strict: whether integer tensors that differ are an error.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: MergeMethod,
        checkpoints: Mapping[ModelReference, Checkpoint],
        *,
        strict: bool = False,
    ) -> None:
        self.recipe, self.method, self.checkpoints, self.strict = recipe, method, checkpoints, strict
        self.findings = Findings()
        self.shape_conflicts: Counter[tuple[ModelReference, ModelReference]] = Counter()
        self._parameters = ParameterResolver(recipe, self.findings)
        self._checked: set[Any] = set()
        primary = checkpoints[recipe.primary]
        self._architecture = Architecture.of(frozenset(primary.tensors))

    def plan(self, match: Match) -> OutputTensor | None:
        """The output tensor of a match, or None when a problem stands in the way."""
        base = match.base if match.base and match.base.spec else None
        present = [source for source in match.sources if source.spec is not None]
        every = [base, *present] if base else present
        if not every or not self._agree(match.name, every):
            return None
        first = every[0]
        if not _spec(first).is_float:
            return self._integer(match, every)
        if not prod(_spec(first).shape):
            return self._copy(match, first)
        return self._float(match, base, present)

    def problems(self) -> list[Problem]:
        """All findings so far."""
        return self.findings.problems()

    @property
    def _names_vocabulary(self) -> bool:
        """Whether the recipe says already whose tokens to keep."""
        return self.recipe.tokenizer_source is not None or bool(self.recipe.tokenizer and self.recipe.tokenizer.source)

    # What fits together

    def _agree(self, name: str, sources: Sequence[Source]) -> bool:
        first = sources[0]
        fits = True
        for other in sources[1:]:
            if _spec(other).shape != _spec(first).shape:
                self._shape_conflict(name, first, other)
                fits = False
            elif _spec(other).is_float != _spec(first).is_float:
                self.findings.tensor(
                    "error",
                    name,
                    f"{other.model} stores {_spec(other).dtype}, {first.model} stores {_spec(first).dtype}; "
                    "numbers and counters cannot be merged with each other",
                )
                fits = False
        return fits

    def _shape_conflict(self, name: str, first: Source, other: Source) -> None:
        mine, theirs = _spec(first).shape, _spec(other).shape
        self.shape_conflicts[first.model, other.model] += 1
        is_vocabulary = self._architecture.weight_info(name, mine).is_embed and mine[1:] == theirs[1:]
        if is_vocabulary:
            self.findings.tensor(
                "error",
                name,
                f"{other.model} has {theirs[0]} vocabulary rows, {first.model} has {mine[0]}",
                MATCHING_LATER if self._names_vocabulary else KEEP_VOCABULARY,
            )
            return
        count = self.shape_conflicts[first.model, other.model]
        if count == SUMMARY_FROM:
            self.findings.add(
                Problem(
                    f"many tensors of {other.model} have other shapes than in {first.model}",
                    hint="They are not fine-tunes of one model; choose models of the same architecture and size.",
                )
            )
        if count < SUMMARY_FROM:
            self.findings.tensor(
                "error",
                name,
                f"{other.model} has shape {list(theirs)}, {first.model} has {list(mine)}",
                "Choose models of the same architecture and size.",
            )

    # Tensors that are not merged

    def _integer(self, match: Match, sources: Sequence[Source]) -> OutputTensor:
        first = sources[0]
        lacking = [source for source in (match.base, *match.sources) if source and source.spec is None]
        if lacking:
            message = f"{_lacks(lacking)} it; the one of {first.model} is copied"
            self.findings.tensor("note", match.name, message)
        if len(sources) > 1:
            level: Level = "note"
            if _spec(first).nbytes > COMPARED_BYTES:
                message = f"is not a float tensor; the one of {first.model} is copied without comparing"
            elif all(self._equal_bytes(first, other) for other in sources[1:]):
                return self._copy(match, first)
            else:
                level = "error" if self.strict else "warning"
                message = f"is not a float tensor and differs; the one of {first.model} is copied"
            self.findings.tensor(level, match.name, message)
        return self._copy(match, first)

    def _equal_bytes(self, first: Source, other: Source) -> bool:
        return _spec(first).dtype == _spec(other).dtype and self._bytes(first) == self._bytes(other)

    def _bytes(self, source: Source) -> bytearray:
        return self.checkpoints[source.owner].read(_spec(source))

    def _copy(self, match: Match, source: Source) -> OutputTensor:
        spec = _spec(source)
        return OutputTensor(
            weight=self._architecture.weight_info(match.name, spec.shape),
            dtype=self._output_dtype(spec),
            shape=spec.shape,
            action="copy",
            task=self._load(source),
            sources=((source.model, spec),),
        )

    # Tensors that are merged

    def _float(self, match: Match, base: Source | None, present: list[Source]) -> OutputTensor | None:
        method = self.method
        fixed = method.max_models is not None and method.max_models == method.min_models
        lacking = [source for source in match.sources if source.spec is None]
        has_base = match.base is not None and method.base in ("required", "optional")
        if has_base and base is None:
            return self._without_base(match, present, fixed)
        if has_base and not present:
            self.findings.tensor("note", match.name, f"only {_name(base)} has it; copied")
            return self._copy(match, base) if base else None
        if fixed and len(present) < method.min_models:
            source = base or present[0]
            self.findings.tensor("note", match.name, f"{_lacks(lacking)} it; the one of {source.model} is copied")
            return self._copy(match, source)
        if lacking:
            self.findings.tensor("note", match.name, f"{_lacks(lacking)} it and is left out here")
        return self._merge(match, method, base, present)

    def _without_base(self, match: Match, present: list[Source], fixed: bool) -> OutputTensor | None:
        if len(present) == 1 or fixed:
            self.findings.tensor("note", match.name, f"the base lacks it; copied from {present[0].model}")
            return self._copy(match, present[0])
        self.findings.tensor("note", match.name, "the base lacks it; the models that have it are averaged")
        return self._merge(match, registry.get("linear"), None, present)

    def _merge(
        self, match: Match, method: MergeMethod, base: Source | None, present: list[Source]
    ) -> OutputTensor | None:
        reads_base = base is not None and method.base in ("required", "optional")
        inputs = present
        if base is not None and method.base in ("reads_first", "none") and (base.entry or method.base != "none"):
            inputs = self._in_recipe_order(base, present, first=method.base == "reads_first")
        resolved = self._parameters.resolve(match, method, inputs)
        if resolved is None:
            return None
        first = base or inputs[0]
        weight = self._architecture.weight_info(match.name, _spec(first).shape)
        base_model = base.model if base is not None and method.base != "none" else None
        own_base = base_model if reads_base else None
        if not self._check(method, weight, _spec(first).shape, resolved, inputs, own_base):
            return None
        if method.skips_zero_weight:
            inputs = [source for source in inputs if resolved.per_model[source.model].get("weight") != 0]
            if not inputs:
                return self._copy(match, first)
        read = [base, *inputs] if reads_base and base else inputs
        return self._output(method, weight, read, resolved, base_model)

    @staticmethod
    def _in_recipe_order(base: Source, present: list[Source], *, first: bool) -> list[Source]:
        """The models with the base among them: first, or where the recipe lists it."""
        if first:
            return [base, *present]
        place = sum(source.slot < base.slot for source in present)
        return [*present[:place], base, *present[place:]]

    def _output(
        self,
        method: MergeMethod,
        weight: WeightInfo,
        read: Sequence[Source],
        resolved: Resolved,
        base_model: ModelReference | None,
    ) -> OutputTensor:
        gather = MergeTensorInput(
            models=tuple(source.model for source in read),
            loads=tuple(self._load(source) for source in read),
            positions=tuple(source.position for source in read),
        )
        shape = _spec(read[0]).shape
        with foreign_code(f"merge method '{method.name()}'", weight.name):
            task = method.make_task(
                output_weight=weight,
                tensors=gather,
                parameters=resolved.shared,
                tensor_parameters=resolved.per_model,
                base_model=base_model,
                shape=shape,
            )
        if not isinstance(task, Task):
            raise MethodError(f"merge method '{method.name()}' made {task!r} instead of a Task.", where=weight.name)
        if not isinstance(task, (BlockMerge, LoadTensor)):
            check_graph(task, weight.name)
        return OutputTensor(
            weight=weight,
            dtype=self._output_dtype(_spec(read[0])),
            shape=shape,
            action="copy" if isinstance(task, LoadTensor) else "merge",
            task=task,
            sources=tuple((source.model, _spec(source)) for source in read),
            parameters=resolved.shared,
            tensor_parameters=resolved.per_model,
        )

    def _check(
        self,
        method: MergeMethod,
        weight: WeightInfo,
        shape: tuple[int, ...],
        resolved: Resolved,
        inputs: Sequence[Source],
        base_model: ModelReference | None,
    ) -> bool:
        """Ask the method about its parameters, once for each set of values."""
        models = tuple(source.model for source in inputs)
        values = tuple(resolved.per_model[model] for model in models)
        key = (method.name(), resolved.shared, values)
        if key in self._checked:
            return True
        with foreign_code(f"'check' of merge method '{method.name()}'", weight.name):
            found = method.check(TensorContext(weight, shape, resolved.shared, values, models, base_model))
        for problem in found:
            self.findings.tensor(problem.level, weight.name, problem.message, problem.hint)
        if any(problem.level == "error" for problem in found):
            return False
        self._checked.add(key)
        return True

    # Small things

    def _load(self, source: Source) -> LoadTensor:
        return LoadTensor(source.model, _spec(source), self.checkpoints[source.owner])

    def _output_dtype(self, spec: TensorSpec) -> str:
        chosen = self.recipe.out_dtype or self.recipe.dtype
        return DTYPE_BY_NAME[chosen].code if chosen and spec.is_float else spec.dtype


def _spec(source: Source) -> TensorSpec:
    assert source.spec is not None
    return source.spec


def _name(source: Source | None) -> str:
    return str(source.model) if source else "no model"


def _lacks(sources: Sequence[Source]) -> str:
    names = ", ".join(str(source.model) for source in sources)
    return f"{names} {'lacks' if len(sources) == 1 else 'lack'}"
