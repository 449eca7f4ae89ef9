"""Small families of models in memory, and recipes over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import merger
from merger.checkpoints.base import Checkpoint
from merger.checkpoints.memory import MemoryCheckpoint
from merger.types import ModelReference

SHAPES = {
    "embed.weight": (300, 64),
    "layers.0.q.weight": (64, 64),
    "layers.0.norm.weight": (64,),
    "layers.1.q.weight": (640, 96),
    "layers.1.norm.weight": (64,),
    "head.bias": (20_000,),
}
EXPERTS = {"code": {"weight": 0.7}, "law": {"weight": 0.5}, "math": {"weight": -0.2}}


@dataclass(frozen=True)
class Family:
    """Models in memory: tensors and checkpoints."""

    models: Mapping[str, Mapping[str, torch.Tensor]]
    checkpoints: Mapping[ModelReference, Checkpoint]

    def delta(self, model: str, name: str, base: str = "base") -> torch.Tensor:
        """What a model changed, flat, float32."""
        return (self.models[model][name].float() - self.models[base][name].float()).reshape(-1)

    def plan(self, recipe: merger.Recipe) -> merger.Plan:
        """The plan of a recipe over these models."""
        plan = merger.make_plan(recipe, checkpoints=self.checkpoints)
        plan.require()
        return plan

    def merged(self, recipe: merger.Recipe) -> dict[str, torch.Tensor]:
        """The merge itself."""
        return merger.merge_in_memory(recipe, checkpoints=self.checkpoints)

    def bytes_read(self) -> int:
        """Tensor bytes read from all models so far."""
        return sum(checkpoint.bytes_read for checkpoint in self.checkpoints.values())

    def weight_bytes(self) -> int:
        """Bytes of all tensors of all models."""
        return sum(checkpoint.weight_bytes for checkpoint in self.checkpoints.values())


def family_of(models: Mapping[str, Mapping[str, torch.Tensor]]) -> Family:
    """Models in memory, called as the recipe will call them."""
    checkpoints = {ModelReference(name): MemoryCheckpoint(ModelReference(name), dict(models[name])) for name in models}
    return Family(models, checkpoints)


def four_models() -> Family:
    """A base and three bfloat16 fine-tunes that leave some elements as they were."""
    generator = torch.Generator().manual_seed(3)
    base = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    models = {"base": base}
    for name in EXPERTS:
        models[name] = {key: w + 0.01 * torch.randn(w.shape, generator=generator) for key, w in base.items()}
    return family_of({name: {key: w.bfloat16() for key, w in model.items()} for name, model in models.items()})


def recipe(
    method: str,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    base: str | None = "base",
    seed: int = 0,
    **parameters: Any,
) -> merger.Recipe:
    """A recipe over a base and models, by default those of `four_models`.

    Args:
        method: the merge method.
        models: per-model parameters by model.
        base: the base model.
        seed: of the noise.
        **parameters: for the whole merge.
    """
    chosen = list((models or EXPERTS).items())
    return merger.Recipe.build(method, chosen, base=base, parameters=parameters, dtype="float32", seed=seed)


PAIR = {"code": {"weight": 0.7}, "law": {"weight": 0.4}}
THREE = PAIR | {"math": {"weight": 0.9}}
ON_THE_SPHERE = (
    recipe("nuslerp", PAIR),
    recipe("nuslerp", PAIR, base=None),
    recipe("nuslerp", PAIR, nuslerp_flatten=False),
    recipe("nuslerp", PAIR, nuslerp_flatten=False, nuslerp_row_wise=True),
    recipe("multislerp", THREE),
    recipe("multislerp", THREE, base=None, normalize_weights=False),
    recipe("karcher", THREE, base=None),
    recipe("karcher", {"code": {}, "law": {}, "math": {}}, base=None, max_iter=3),
    recipe("model_stock", {"code": {}, "law": {}, "math": {}}),
    recipe("model_stock", {"code": {}, "law": {}, "math": {}}, filter_wise=True),
)
"""Recipes whose coefficients follow from dot products."""
