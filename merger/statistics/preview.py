"""Preview numbers: what a merge will change, per tensor, layer and model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Union

import numpy as np
import pandas as pd
import torch

from merger.errors import UserError
from merger.plan import Plan
from merger.recipe import RunOptions
from merger.statistics.estimates import Estimate, Floats, RowSums, Totals, quotient
from merger.statistics.evaluation import can_sample, evaluate_tensor
from merger.statistics.inputs import Study, TensorInputs
from merger.statistics.stripes import Stripes, choose_stripes, share_of, whole

DEFAULT_SHARE = 0.05
OUTSIDE = "outside layers"
EVERYTHING = "whole model"

FACTS = ("layer", "role", "elements", "sampled")
MODEL_FIGURES = ("base_norm", "delta_norm", "relative_delta", "zero_share", "kept_share")

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Part:
    """One tensor, or a group of tensors that are counted together.

    Attributes:
        name: of the tensor or group.
        layer: index of its layer, None outside of layers.
        role: what it does in its layer.
        elements: its size.
        sampled: elements of it that were looked at, in each model.
    """

    name: str
    layer: int | None
    role: str
    elements: int
    sampled: int


@dataclass(frozen=True, eq=False)
class Preview:
    """What a merge will do, in numbers; measured on all weights or estimated from a sample of rows.

    Figures are about changes: a model's difference from the reference, and the merged model's.
    Estimated figures stand with the ends of their 95 % interval in columns ``_low`` and ``_high``; both are
    NaN, and ``rough`` is True, where fewer than 8 rows were looked at.  A figure that is not defined
    (a quotient of zeros, a method that cannot be sampled) is NaN.

    Attributes:
        reference: what changes are measured from: the base, else the first model.
        model_names: the models without the reference, each name once, in the recipe's order.
        parts: the tensors, in the order of the output.
        totals: their sums.
        left_out: tensors without figures and why.
        exact_only: tensors whose merge cannot be sampled; their merged figures are NaN.
    """

    reference: str
    model_names: tuple[str, ...]
    parts: tuple[Part, ...]
    totals: Totals
    left_out: tuple[tuple[str, str], ...] = ()
    exact_only: tuple[str, ...] = ()

    @cached_property
    def models(self) -> pd.DataFrame:
        """One row per tensor and model that has it.

        Columns: tensor, model, layer, role, elements, sampled; base_norm, delta_norm, relative_delta
        (norm of the change relative to the reference's norm), zero_share (elements that are not
        changed), kept_share (elements that the method's sparsification keeps), each with ``_low`` and ``_high``;
        non_finite (elements, in what was looked at), rough.
        """
        columns = ["tensor", "model", *FACTS, *_with_ends(MODEL_FIGURES), "non_finite", "rough"]
        return _stacked([self._model_table(place) for place in range(len(self.model_names))], columns)

    @cached_property
    def tensors(self) -> pd.DataFrame:
        """One row per tensor.

        Columns: tensor, layer, role, elements, sampled; sign_agreement (of the elements that at least
        two models change, the share where all changes have one sign), surviving_share (of the weighted
        change, the share that survives the sign election), merged_norm and merged_relative (norm of
        the merged change, and relative to the reference's norm), each with ``_low`` and ``_high``;
        opposite_share (of the elements, those of vectors that are too nearly opposite for an arc between them and
        are mixed on the straight line), non_finite (elements of the merged tensor, in what was looked at), rough.
        """
        totals = self.totals
        is_known = totals.sum_of("merged_of") > 0
        figures = {
            "sign_agreement": totals.share("agree", "both"),
            "surviving_share": totals.survival().otherwise(1.0, is_known),
            "merged_norm": totals.norm("merged").only(is_known),
            "merged_relative": totals.norm_ratio("merged", "merged_base"),
        }
        table = self._table(figures)
        table["opposite_share"] = quotient(totals.sum_of("opposite"), totals.sum_of("merged_of"))
        table["non_finite"] = totals.sum_of("merged_non_finite").round().astype(np.int64)
        return table.assign(rough=totals.is_rough)

    @cached_property
    def cosines(self) -> pd.DataFrame:
        """One row per tensor and pair of models that have it.

        Columns: tensor, layer, role, model_a, model_b; cosine of their changes with ``_low`` and
        ``_high``; rough.
        """
        columns = ["tensor", "layer", "role", "model_a", "model_b", *_with_ends(("cosine",)), "rough"]
        return _stacked([self._cosine_table(place) for place in range(len(self.totals.layout.pairs))], columns)

    def by_layer(self) -> Preview:
        """The same figures with the tensors of each layer counted together."""
        layers = sorted({part.layer for part in self.parts}, key=lambda layer: (layer is not None, layer or 0))
        names = [OUTSIDE if layer is None else f"layer {layer}" for layer in layers]
        place = {layer: index for index, layer in enumerate(layers)}
        return self._grouped([place[part.layer] for part in self.parts], names, layers)

    def overall(self) -> Preview:
        """The same figures with all tensors counted together."""
        return self._grouped([0] * len(self.parts), [EVERYTHING], [None])

    def summary(self) -> dict[str, Any]:
        """The few numbers that describe the whole merge.

        Returns:
            ``tensors``, ``elements``, ``sampled_share``, ``relative_delta``, ``kept_share`` (each by
            model), ``cosine`` (by pair of models), ``sign_agreement``, ``surviving_share``,
            ``merged_relative``, ``non_finite``.
        """
        whole = self.overall()
        models, tensors, cosines = whole.models, whole.tensors, whole.cosines
        elements = sum(part.elements for part in self.parts)
        by_model = models.set_index("model")
        return {
            "tensors": len(self.parts),
            "elements": elements,
            "sampled_share": sum(part.sampled for part in self.parts) / elements if elements else 1.0,
            **{name: by_model[name].to_dict() for name in ("relative_delta", "kept_share")},
            "cosine": {
                (a, b): c for a, b, c in zip(cosines["model_a"], cosines["model_b"], cosines["cosine"], strict=True)
            },
            **{name: float(tensors[name].iloc[0]) for name in ("sign_agreement", "surviving_share", "merged_relative")},
            "non_finite": int(models["non_finite"].sum() + tensors["non_finite"].sum()),
        }

    def to_csv(self, path: PathLike) -> None:
        """Write all figures as one table; the column ``table`` says which of the three a row is from.

        Text that a spreadsheet would take for a formula gets a quote in front.
        """
        named = (("models", self.models), ("tensors", self.tensors), ("cosines", self.cosines))
        tables = [table.assign(table=name) for name, table in named if len(table)]
        joined = pd.concat(tables) if tables else self.tensors.assign(table="tensors")
        joined.insert(0, "table", joined.pop("table"))
        text = joined.select_dtypes(include=["object", "string"]).columns
        joined.assign(**{name: joined[name].map(_harmless) for name in text}).to_csv(path, index=False)

    def _table(self, figures: Mapping[str, Estimate]) -> pd.DataFrame:
        columns: dict[str, Any] = {
            "tensor": [part.name for part in self.parts],
            "layer": pd.array([part.layer for part in self.parts], dtype="Int64"),
            "role": [part.role for part in self.parts],
            "elements": np.array([part.elements for part in self.parts], np.int64),
            "sampled": np.array([part.sampled for part in self.parts], np.int64),
        }
        for name, figure in figures.items():
            columns |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        return pd.DataFrame(columns)

    def _model_table(self, model: int) -> pd.DataFrame:
        totals = self.totals
        figures = {
            "base_norm": totals.norm("base", model),
            "delta_norm": totals.norm("delta", model),
            "relative_delta": totals.norm_ratio("delta", "base", model),
            "zero_share": totals.share("zero", "elements", model),
            "kept_share": totals.share("kept", "kept_of", model),
        }
        table = self._table(figures).assign(model=self.model_names[model], rough=totals.is_rough)
        table["non_finite"] = totals.sum_of("non_finite", model).round().astype(np.int64)
        return table[totals.sum_of("elements", model) > 0]

    def _cosine_table(self, pair: int) -> pd.DataFrame:
        a, b = self.totals.layout.pairs[pair]
        table = self._table({"cosine": self.totals.cosine(pair)})
        table = table.assign(model_a=self.model_names[a], model_b=self.model_names[b], rough=self.totals.is_rough)
        return table[(self.totals.sum_of("elements", a) > 0) & (self.totals.sum_of("elements", b) > 0)]

    def _grouped(self, groups: Sequence[int], names: Sequence[str], layers: Sequence[int | None]) -> Preview:
        parts = [
            Part(
                name,
                layer,
                "",
                sum(part.elements for part, at in zip(self.parts, groups, strict=True) if at == group),
                sum(part.sampled for part, at in zip(self.parts, groups, strict=True) if at == group),
            )
            for group, (name, layer) in enumerate(zip(names, layers, strict=True))
        ]
        return Preview(self.reference, self.model_names, tuple(parts), self.totals.grouped(groups, len(names)))


def preview_plan(plan: Plan, *, sample: float | None = None, exact: bool = False, seed: int = 0) -> Preview:
    """The preview of a plan that is free of errors.

    Args:
        plan: what will be merged.
        sample: share of each tensor to read, in whole rows: at least 16 and at most 2^20 elements of a tensor;
            tensors up to 2^14 elements are read whole. 5 % by default.
        exact: read everything instead.
        seed: chooses the rows.

    Raises:
        UserError: ``sample`` is not in (0, 1].
    """
    share = DEFAULT_SHARE if sample is None else sample
    if not 0 < share <= 1:
        raise UserError(
            f"a sample of {share:g} cannot be taken.", hint="Give a share above 0 and up to 1, such as 0.05."
        )
    is_exact = exact or share == 1
    study = Study.of(plan)
    chosen = [None if is_exact else _stripes(inputs, share, seed) for inputs in study.tensors]
    evaluate = partial(evaluate_tensor, study.layout, study.places, plan.recipe.seed)
    with ThreadPoolExecutor(RunOptions().worker_count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        rows = list(pool.map(evaluate, study.tensors, chosen))
    return build_preview(study, chosen, rows)


def _stripes(inputs: TensorInputs, share: float, seed: int) -> Stripes:
    shape = inputs.output.shape
    return choose_stripes(shape, share_of(shape, share), seed, inputs.output.weight.name)


def build_preview(study: Study, chosen: Sequence[Stripes | None], rows: Sequence[Floats]) -> Preview:
    """The preview from sums over rows.

    Args:
        study: what was looked at.
        chosen: the rows of each tensor, None for all.
        rows: ``[rows, sums]`` of each tensor.
    """
    looked_at = [stripes or whole(inputs.output.shape) for inputs, stripes in zip(study.tensors, chosen, strict=True)]
    sums = [
        RowSums(found[None], stripes.weights[None], np.array([stripes.sampled / stripes.elements]))
        for stripes, found in zip(looked_at, rows, strict=True)
    ]
    parts = [
        Part(weight.name, weight.layer, weight.role, stripes.elements, stripes.sampled)
        for weight, stripes in zip((inputs.output.weight for inputs in study.tensors), looked_at, strict=True)
    ]
    exact_only = [
        part.name
        for part, inputs in zip(parts, study.tensors, strict=True)
        if part.sampled < part.elements and not can_sample(inputs.output.task)
    ]
    return Preview(
        study.reference,
        study.model_names,
        tuple(parts),
        Totals.of(study.layout, sums),
        study.left_out,
        tuple(exact_only),
    )


def _with_ends(figures: Sequence[str]) -> list[str]:
    return [f"{figure}{end}" for figure in figures for end in ("", "_low", "_high")]


def _stacked(tables: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """One table from one per model, ordered by tensor."""
    if not tables:
        return pd.DataFrame(columns=list(columns))
    return pd.concat(tables).sort_index(kind="stable").reset_index(drop=True)[list(columns)]


def _harmless(cell: Any) -> Any:
    """Text as a spreadsheet may see it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
