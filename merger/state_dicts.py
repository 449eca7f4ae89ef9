"""Merging state dicts: models that are already in memory, without files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merger.checkpoints.memory import MemoryCheckpoint
from merger.errors import CheckpointError, MethodError, Problem, RecipeError, UserError, did_you_mean
from merger.merging import run_in_memory
from merger.methods import registry
from merger.methods.base import MergeMethod
from merger.plan import Plan, make_plan, uncollected
from merger.recipe import Recipe, RunOptions
from merger.types import ModelReference, Vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor

StateDict = Mapping[str, "Tensor"]


def merge_state_dicts(
    models: Sequence[StateDict] | Mapping[str, StateDict],
    method: str | MergeMethod,
    parameters: Mapping[str, Any] | None = None,
    base: StateDict | str | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Tensor]:
    """Merge models that are in memory, with the bytes that merging their files would give.

    ``merge_state_dicts([a, b], "ties", base=c, weight=[0.6, 0.4], density=0.5)``

    Args:
        models: state dicts in the order that the method sees, or by the names that messages shall use.
        method: a method's name, or a method itself, such as a function decorated with ``merge_method``.
        parameters: settings by parameter, as recipes write them. A parameter that is per model takes one
            setting for all models, a list with a setting for each, or settings by model name. (So a
            gradient for all models is written once for each.)
        base: the base model's state dict, or its name among ``models``.
        dtype: of the result, such as ``"bfloat16"``; by default each tensor keeps its own.
        seed: of methods that draw random numbers.
        **settings: more parameters; a trailing underscore is dropped (``lambda_``).

    Returns:
        The merged tensors by name, each on the device of the base's (else the first model's) tensor. Names
        that are one tensor in every model (tied weights) are one tensor here.

    Raises:
        UserError: ``models`` or ``base`` is no state dict.
        CheckpointError: something in a state dict is no tensor that can be merged.
        MethodError: there is no such method.
        RecipeError: parameters that nobody knows, lists of another length, models that are not there; together.
        PlanError: the models do not fit together, or values are missing or out of bounds; together.
    """
    given = _Models.of(models, base)
    chosen = registry.get(method) if isinstance(method, str) else method
    if not isinstance(chosen, MergeMethod):
        raise MethodError(
            f"{chosen!r} is no merge method.", hint="Give a name, or a function decorated with @merge_method."
        )
    doubled = [name for name in settings if name.rstrip("_") in (parameters or {})]
    if doubled:
        raise RecipeError(f"'{doubled[0].rstrip('_')}' is given twice.", hint="Give it once.")
    values = {**(parameters or {}), **{name.rstrip("_"): value for name, value in settings.items()}}
    recipe = _recipe(given, chosen, values, dtype=str(dtype).removeprefix("torch.") if dtype else None, seed=seed)
    tied = given.tied()
    with uncollected:
        plan = make_plan(recipe, chosen, given.opened(tied), RunOptions())
    _warn(plan)
    merged = given.placed(run_in_memory(plan))
    twins = {name: merged[kept] for name, kept in tied.items() if kept in merged}
    return merged | twins


def _warn(plan: Plan) -> None:
    for problem in plan.problems:
        if problem.level == "warning":
            warnings.warn(str(problem), stacklevel=3)


@dataclass(frozen=True)
class _Models:
    """The state dicts of one merge.

    Attributes:
        listed: the models by name, in order.
        base: name of the base among ``every``, or None.
        every: the models by name, the base first.
    """

    listed: Mapping[str, StateDict]
    base: str | None
    every: Mapping[str, StateDict]

    @classmethod
    def of(cls, models: Sequence[StateDict] | Mapping[str, StateDict], base: StateDict | str | None) -> _Models:
        if isinstance(models, Mapping):
            listed = _by_text(models)
        else:
            listed = {f"model {number}": model for number, model in enumerate(models, 1)}
        if isinstance(base, str) and base not in listed:
            raise UserError(f"'{base}' is none of the models.", where="base", hint=did_you_mean(base, listed))
        name = base if isinstance(base, str) else None
        if base is not None and not isinstance(base, str):
            name = next((name for name, model in listed.items() if model is base), "base")
            while listed.get(name, base) is not base:
                name += "_"
        every = ({name: listed[name] if isinstance(base, str) else base} if name and base is not None else {}) | listed
        for owner, model in every.items():
            if not isinstance(model, Mapping):
                raise UserError(
                    f"it is of the type {type(model).__name__}, not a state dict.",
                    where=owner,
                    hint="Give a mapping from names to tensors, such as model.state_dict().",
                )
        return cls(listed, name, every)

    def tied(self) -> dict[str, str]:
        """Names that are the same memory as an earlier name in every model, each with that name."""
        places = [{name: _place(tensor) for name, tensor in model.items()} for model in self.every.values()]
        kept: dict[tuple[object, ...], str] = {}
        names = dict.fromkeys(name for model in self.every.values() for name in model)
        twins = {name: kept.setdefault(tuple(place.get(name) for place in places), name) for name in names}
        return {name: first for name, first in twins.items() if first != name}

    def opened(self, left_out: Mapping[str, str]) -> dict[ModelReference, MemoryCheckpoint]:
        """A checkpoint of each model.

        Raises:
            CheckpointError: with the problems of all models.
        """
        opened: dict[ModelReference, MemoryCheckpoint] = {}
        problems: list[Problem] = []
        for owner, model in self.every.items():
            reference = ModelReference(owner)
            try:
                kept = {name: tensor for name, tensor in model.items() if name not in left_out}
                opened[reference] = MemoryCheckpoint(reference, kept)
            except CheckpointError as error:
                problems += error.problems
        if problems:
            raise CheckpointError(problems)
        return opened

    def placed(self, merged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The results where the first model that has the tensor keeps it."""
        devices = {
            name: tensor.device for model in reversed(list(self.every.values())) for name, tensor in model.items()
        }
        return {name: tensor.to(devices[name]) if name in devices else tensor for name, tensor in merged.items()}


def _by_text(models: Mapping[Any, StateDict]) -> dict[str, StateDict]:
    """The models by their names as text.

    Raises:
        UserError: two names are the same text, such as 1 and '1'.
    """
    listed = {str(name): model for name, model in models.items()}
    if len(listed) < len(models):
        raise UserError("two models have names that are the same text.", where="models", hint="Name them apart.")
    return listed


def _place(tensor: object) -> object:
    """Equal for tensors that are the same memory; None for what holds none."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or not tensor.numel():
        return object()
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _recipe(models: _Models, method: MergeMethod, values: Mapping[str, Any], *, dtype: str | None, seed: int) -> Recipe:
    """The recipe that says the same.

    Raises:
        RecipeError: with everything that is wrong with the values.
    """
    own = {definition.name for definition in method.tensor_parameters()}
    shared: dict[str, Any] = {}
    per_model: dict[str, dict[str, Any]] = {name: {} for name in models.listed}
    problems: list[Problem] = []
    for parameter, value in values.items():
        # Numbers of torch and NumPy become Python's.
        plain = value.tolist() if hasattr(value, "tolist") else value
        if parameter in own and _is_split(plain):
            problems += _split(parameter, plain, per_model)
        else:
            shared[parameter] = plain
    names = frozenset(definition.name for definition in method.parameters())
    try:
        recipe = Recipe.build(
            method.name(),
            [(ModelReference(name), settings) for name, settings in per_model.items()],
            base=ModelReference(models.base) if models.base else None,
            parameters=shared,
            vocabulary=Vocabulary({method.name(): (names, frozenset(own))}),
            dtype=dtype,
            seed=seed,
        )
    except RecipeError as error:
        raise RecipeError([*problems, *error.problems]) from None
    if problems:
        raise RecipeError(problems)
    return recipe


def _is_split(value: Any) -> bool:
    """Whether a per-model parameter is given for each model; lines with filters are one setting for all."""
    if isinstance(value, Mapping):
        return "value" not in value
    return isinstance(value, (list, tuple)) and not any(isinstance(item, Mapping) for item in value)


def _split(parameter: str, value: Any, per_model: Mapping[str, dict[str, Any]]) -> Iterator[Problem]:
    """Give each model its own; tells what fits no model."""
    if not isinstance(value, Mapping):
        if len(value) != len(per_model):
            yield Problem(f"{len(value)} values are given for {len(per_model)} models.", parameter)
            return
        value = dict(zip(per_model, value, strict=True))
    for model, setting in value.items():
        if model not in per_model:
            yield Problem(f"'{model}' is none of the models.", parameter, did_you_mean(str(model), per_model))
        else:
            per_model[model][parameter] = setting
