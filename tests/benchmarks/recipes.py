"""One recipe for every method that both tools have, in the vocabulary that both of them read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """What a method wants in its recipe.

    Attributes:
        base: whether it works on changes to a base.
        most: how many fine-tunes it takes at most.
        base_is_listed: whether the base is one of the models that are mixed.
        weighted: whether each fine-tune has a weight.
        per_model, parameters: further values, for each fine-tune and for all.
    """

    base: bool = True
    most: int = 99
    base_is_listed: bool = False
    weighted: bool = True
    per_model: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)


_HALF = {"density": 0.5}
METHODS = {
    "linear": Case(base=False),
    "slerp": Case(most=1, base_is_listed=True, weighted=False, parameters={"t": 0.4}),
    "nuslerp": Case(most=2),
    "multislerp": Case(),
    "karcher": Case(base=False, weighted=False),
    "model_stock": Case(weighted=False),
    "passthrough": Case(base=False, most=1, weighted=False),
    "task_arithmetic": Case(),
    "ties": Case(per_model=_HALF),
    "dare_linear": Case(per_model=_HALF),
    "dare_ties": Case(per_model=_HALF),
    "breadcrumbs": Case(per_model={**_HALF, "gamma": 0.01}),
    "breadcrumbs_ties": Case(per_model={**_HALF, "gamma": 0.01}),
    "della": Case(per_model={**_HALF, "epsilon": 0.15}),
    "della_linear": Case(per_model={**_HALF, "epsilon": 0.15}),
    "sce": Case(weighted=False, parameters={"select_topk": 0.5}),
    "nearswap": Case(most=1, base_is_listed=True, weighted=False, parameters={"t": 0.0001}),
    "arcee_fusion": Case(most=1, base_is_listed=True, weighted=False),
    "ram": Case(weighted=False),
    "ramplus_tl": Case(weighted=False),
}


def models_read(method: str, base: Path, experts: Sequence[Path]) -> list[Path]:
    """The models whose weights a merge reads."""
    case = METHODS[method]
    return [*([base] if case.base else []), *experts[: case.most]]


def recipe(method: str, base: Path, experts: Sequence[Path], layers: int | None = None) -> dict[str, Any]:
    """The recipe of one merge.

    Args:
        method: its name.
        base: folder of the base.
        experts: folders of the fine-tunes; the first of them where the method takes fewer.
        layers: merge only that many of the layers; None merges whole models.
    """
    case = METHODS[method]
    chosen = experts[: case.most]
    listed = [{"model": str(base)}] if case.base_is_listed else []
    entries = [*listed, *(_entry(case, expert, rank, len(chosen)) for rank, expert in enumerate(chosen))]
    if layers is None:
        what: dict[str, Any] = {"models": entries}
    else:
        what = {"slices": [{"sources": [{**entry, "layer_range": [0, layers]} for entry in entries]}]}
    return {
        "merge_method": method,
        **({"base_model": str(base)} if case.base else {}),
        **what,
        **({"parameters": dict(case.parameters)} if case.parameters else {}),
        "dtype": "bfloat16",
    }


def _entry(case: Case, expert: Path, rank: int, count: int) -> dict[str, Any]:
    """Weights fall from model to model and add up to one."""
    weight = {"weight": round(2 * (count - rank) / (count * (count + 1)), 4)} if case.weighted else {}
    parameters = {**weight, **case.per_model}
    return {"model": str(expert), **({"parameters": parameters} if parameters else {})}
