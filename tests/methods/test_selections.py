"""Breadcrumbs, SCE, NearSwap, Arcee Fusion and RAM: their formulas, and cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merger.graph import BlockMerge
from merger.methods import registry
from merger.ops.importance import importance_threshold
from merger.types import BLOCK_ELEMENTS, ImmutableMap, ModelReference, TensorContext, WeightInfo
from tests.methods import dense, dense_selections
from tests.methods.driver import Blocks, Held, make_task, measure, merge

NAN, INF = math.nan, math.inf
SHAPES = [(1,), (5,), (130,), (3, 7), (2, 3, 5), ()]
share = st.one_of(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), st.floats(0, 1))


def vector(*values: float) -> Tensor:
    return torch.tensor(values)


@st.composite
def families(draw: st.DrawFn, fewest: int = 1) -> tuple[Tensor, list[Tensor]]:
    """A base and fine-tunes; coarse numbers make many magnitudes equal, as in 16-bit fine-tunes."""
    shape, models = draw(st.sampled_from(SHAPES)), draw(st.integers(fewest, 4))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    is_coarse, scale = draw(st.booleans()), draw(st.sampled_from([1.0, 1e-3]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def numbers(size: float) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return (torch.round(values * 2) / 2 if is_coarse else values) * size

    base = numbers(1.0).to(dtype)
    return base, [(base.float() + numbers(0.25 * scale)).to(dtype) for _ in range(models)]


blocks = st.sampled_from([3, 64, BLOCK_ELEMENTS])


# breadcrumbs


@given(families(), st.lists(share, min_size=4, max_size=4), st.lists(share, min_size=4, max_size=4), blocks)
@settings(max_examples=150, deadline=None)
def test_breadcrumbs_drops_the_largest_and_the_smallest(family, densities, gammas, block) -> None:
    base, tensors = family
    weights, densities, gammas = (
        [0.5, -0.3, 1.7, 0.2][: len(tensors)],
        densities[: len(tensors)],
        gammas[: len(tensors)],
    )
    changes = dense_selections.crumbs(base, tensors, densities, gammas, seed=3)
    terms = [dense.scalar(weight) * change for weight, change in zip(weights, changes, strict=True)]
    for method, mixed in (
        ("breadcrumbs", dense.in_order(terms)),
        ("breadcrumbs_ties", dense.disjoint_mean(terms, weights, normalize=False)),
    ):
        result = merge(method, tensors, base, weight=weights, density=densities, gamma=gammas, block=block, seed=3)
        assert torch.equal(result, (base.float() + mixed).to(base.dtype)), method


@pytest.mark.parametrize("method", ["breadcrumbs", "breadcrumbs_ties"])
def test_breadcrumbs_by_hand(method):
    tuned = vector(0.1, -0.9, 0.2, 0.4, 0.3, -0.5, 0.05, 0.6, 0.7, 0.8)
    result = merge(method, [tuned], torch.zeros(10), weight=[1.0], density=[0.3], gamma=[0.2])
    assert torch.equal(result, vector(0, 0, 0, 0, 0, -0.5, 0, 0.6, 0.7, 0))


@pytest.mark.parametrize("method", ["breadcrumbs", "breadcrumbs_ties"])
def test_breadcrumbs_with_gamma_zero_keeps_the_largest(method):
    tuned = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    crumbs, largest = (
        merge(name, [tuned], torch.zeros(1000), weight=[1.0], density=[0.25], parameters={"normalize": False}, **own)
        for name, own in ((method, {"gamma": [0.0]}), ("ties", {}))
    )
    assert torch.equal(crumbs, largest) and int((crumbs != 0).sum()) == 250


@pytest.mark.parametrize("method", ["breadcrumbs", "breadcrumbs_ties"])
def test_breadcrumbs_keeps_at_least_one_element(method):
    tuned = vector(0.1, -0.5, 0.2)
    result = merge(method, [tuned], torch.zeros(3), weight=[1.0], density=[0.01], gamma=[0.4])
    assert torch.equal(result, vector(0, 0, 0.2))
    one = merge(method, [vector(3.0)], vector(1.0), weight=[1.0], density=[0.5], gamma=[1.0])
    assert one.tolist() == [3.0]


@pytest.mark.parametrize("method", ["breadcrumbs", "breadcrumbs_ties"])
def test_breadcrumbs_at_density_zero_contributes_nothing_and_at_one_everything(method):
    base, tuned = vector(1.0, 2.0, 3.0), vector(5.0, 1.0, 3.5)
    assert torch.equal(merge(method, [vector(INF, 0.0, NAN)], base, weight=[1.0], density=[0.0]), base)
    assert torch.equal(merge(method, [tuned], base, weight=[1.0], density=[1.0], gamma=[0.5]), tuned)


def test_breadcrumbs_rescales_on_demand_only_to_the_l1_norm():
    tuned = torch.ones(160_000, dtype=torch.float16)
    for rescale, values in ((False, [0.0, 1.0]), (True, [0.0, 2.0])):
        result = merge(
            "breadcrumbs",
            [tuned],
            torch.zeros_like(tuned),
            weight=[1.0],
            density=[0.5],
            gamma=[0.1],
            parameters={"rescale": rescale},
        )
        assert result.unique().tolist() == values and int((result != 0).sum()) == 80_000


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [5000, BLOCK_ELEMENTS + 5000])
def test_two_cuts_take_no_more_passes_than_one(kind, count):
    """Magnitudes with more than 16 significant bits take two; others are known after the first where none follows."""
    generator = torch.Generator().manual_seed(0)
    base = (torch.randn(count, generator=generator) * 0.02).to(kind)
    tensors = [(base.float() + 1e-3 * torch.randn(count, generator=generator)).to(kind) for _ in range(2)]
    passes = {}
    for method, own in (
        ("ties", {}),
        ("breadcrumbs", {"gamma": [0.01, 0.1]}),
        ("breadcrumbs_ties", {"gamma": [0.3, 0.0]}),
    ):
        task = make_task(
            registry.get(method),
            shape=(count,),
            models=2,
            base=True,
            parameters={"rescale": False},
            per_model={"weight": [1.0, 1.0], "density": [0.5, 0.3], **own},
        )
        counted = Counted(task, [base.float(), *(tensor.float() for tensor in tensors)], 0, BLOCK_ELEMENTS)
        measure(task, counted)
        passes[method] = counted.passes
    collecting_ties = 1 if count <= BLOCK_ELEMENTS and kind == torch.bfloat16 else 0
    assert all(count <= 2 + collecting_ties for count in passes.values())
    assert kind == torch.bfloat16 or set(passes.values()) == {2}


class Counted(Blocks):
    """Counts how often the tensor is read."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


# sce


@given(families(fewest=2), share, blocks)
@settings(max_examples=150, deadline=None)
def test_sce_selects_calculates_and_erases(family, select_topk, block) -> None:
    base, tensors = family
    result = merge(
        "sce", tensors, base, parameters={"select_topk": select_topk}, seed=5, block=block, out=torch.float32
    )
    expected = dense_selections.sce(base, tensors, select_topk, seed=5)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-7)


def test_sce_has_no_floor_below_which_models_weigh_the_same():
    result = merge("sce", [vector(8e-4), vector(1e-4)], vector(0.0))
    assert result.tolist() == [pytest.approx((8e-4 * 64 + 1e-4) / 65, rel=1e-6)]
    assert result.tolist() == [pytest.approx(7.892e-4, rel=1e-4)]
    tiny = merge("sce", [vector(8e-24), vector(1e-24)], vector(0.0))
    assert tiny.tolist() == [pytest.approx((8e-24 * 64 + 1e-24) / 65, rel=1e-6)]


def test_sce_selects_among_deviations_whose_squares_float32_cannot_hold():
    tuned = [vector(0.0, 3e-25, 1e-25, 2e-25), vector(0.0, 0.0, 0.0, 0.0)]
    result = merge("sce", tuned, torch.zeros(4), parameters={"select_topk": 0.34})
    assert torch.equal(result, vector(0.0, 3e-25, 0.0, 0.0))


@pytest.mark.parametrize("select_topk", [1.0, 0.3, 0.0])
def test_sce_of_one_model_is_that_model_and_warns_of_a_selection(select_topk):
    task = make_task(
        registry.get("sce"), shape=(4,), models=1, base=True, parameters={"select_topk": select_topk}, per_model={}
    )
    assert isinstance(task, Held) and task.place == 1
    tuned = torch.randn(50, generator=torch.Generator().manual_seed(0))
    result = merge("sce", [tuned], torch.ones(50), parameters={"select_topk": select_topk})
    assert torch.equal(result, tuned)
    found = problems("sce", {"select_topk": select_topk}, models=1)
    assert [problem.level for problem in found] == (["warning"] if select_topk < 1 else [])
    assert problems("sce", {"select_topk": select_topk}, models=2) == []


def problems(method: str, parameters: dict[str, float], models: int):
    found = registry.get(method)
    defaults = {d.name: d.default_value for d in found.parameters() if not d.required}
    references = tuple(ModelReference(name) for name in "abc"[:models])
    own = tuple(ImmutableMap() for _ in references)
    return found.check(TensorContext(WeightInfo("w"), (4,), ImmutableMap(defaults | parameters), own, references))


def test_sce_that_selects_nothing_is_the_base():
    base, tuned = vector(1.0, 2.0), [vector(5.0, 2.0), vector(1.0, 3.0)]
    assert torch.equal(merge("sce", tuned, base, parameters={"select_topk": 0.0}), base)
    assert torch.equal(merge("sce", tuned, base, parameters={"select_topk": 0.4}), base)
    assert torch.equal(merge("sce", [tuned[0]] * 2, base, parameters={"select_topk": 0.9}), base)
    assert torch.equal(merge("sce", [base, base], base), base)


def test_sce_votes_without_weights():
    """Two small changes outvote no larger one: signs are elected by the plain sum, weights enter after."""
    base, tuned = torch.zeros(2), [vector(-1.0, 9.0), vector(0.6, 0.0), vector(0.6, 0.0)]
    energies = [82.0, 0.36, 0.36]
    result = merge("sce", tuned, base)
    assert result[0].item() == pytest.approx(0.6)
    assert sum(c * d[0].item() for c, d in zip(energies, tuned, strict=True)) < 0
    assert result[1].item() == pytest.approx(9.0)


def test_sce_keeps_the_exact_share_of_many_equal_deviations():
    count = 10_000
    tuned = torch.full((count,), 0.5)
    tuned[: count // 2] = 0.0
    result = merge("sce", [tuned, torch.zeros(count)], torch.zeros(count), parameters={"select_topk": 0.3})
    assert int((result != 0).sum()) == int(0.3 * count / 2) and bool((result[: count // 2] == 0).all())


# nearswap


@given(families().map(lambda family: (family[0], family[1][0])), st.sampled_from([1e-4, 0.02, 0.3, 5.0]))
@settings(max_examples=100, deadline=None)
def test_nearswap_moves_no_further_than_t(family, t) -> None:
    base, tuned = family
    delta = tuned.float() - base.float()
    share = (dense.scalar(t) / delta.abs().clamp(min=1e-6)).clamp(0, 1)
    assert torch.equal(
        merge("nearswap", [tuned], base, parameters={"t": t}), (base.float() + share * delta).to(base.dtype)
    )


def test_nearswap_by_hand():
    result = merge("nearswap", [vector(1.5, 3.0, -3.0, 1.0)], torch.ones(4), parameters={"t": 0.5})
    assert result.tolist() == [1.5, 1.5, 0.5, 1.0]
    base = vector(-0.0, 1.0)
    same = merge("nearswap", [vector(NAN, 5.0)], base, parameters={"t": 0.0})
    assert torch.equal(same.view(torch.int32), base.view(torch.int32))


def test_nearswap_needs_a_distance():
    (problem,) = problems("nearswap", {"t": -0.1}, models=1)
    assert problem.level == "error" and "t is -0.1" in problem.message
    (problem,) = problems("nearswap", {}, models=1)
    assert "t is needed" in problem.message


# arcee_fusion


@given(families().map(lambda family: (family[0], family[1][0])), blocks)
@settings(max_examples=150, deadline=None)
def test_arcee_fusion_takes_over_what_is_important(family, block) -> None:
    base, tuned = family
    wide = (base.reshape(1) if base.ndim == 0 else base), (tuned.reshape(1) if tuned.ndim == 0 else tuned)
    importances = dense_selections.importance(*wide)
    result = merge("arcee_fusion", [wide[1]], wide[0], block=block)
    expected = dense_selections.arcee_fusion(*wide)
    ascending = importances.reshape(-1).sort().values
    lower, median, upper = (float(ascending[int(q * (len(ascending) - 1))]) for q in (0.25, 0.5, 0.75))
    at_the_fence = (importances - (median + 1.5 * (upper - lower))).abs() <= 1e-9 * importances.abs().max()
    assert torch.equal(torch.where(at_the_fence, wide[0], result), torch.where(at_the_fence, wide[0], expected))
    assert bool(((result == wide[0]) | (result == wide[1])).all())


def test_arcee_fusion_quartiles_are_those_of_all_elements():
    """A million elements, of which a sample would tell another fence."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1000, 1000, generator=generator) * 0.02
    tuned = base + 1e-3 * torch.randn(1000, 1000, generator=generator)
    tuned[::7] += 0.01
    task = make_task(registry.get("arcee_fusion"), shape=(1000, 1000), models=1, base=True, parameters={}, per_model={})
    assert isinstance(task, BlockMerge)
    counted = Counted(task, [base, tuned], 0, BLOCK_ELEMENTS)
    found = measure(task, counted)
    ascending = dense_selections.importance(base, tuned).reshape(-1).sort().values
    lower, median, upper = (float(ascending[int(q * (10**6 - 1))]) for q in (0.25, 0.5, 0.75))
    assert found == pytest.approx(median + 1.5 * (upper - lower), rel=1e-12)
    assert counted.passes <= 3
    result = merge("arcee_fusion", [tuned], base)
    assert torch.equal(result, dense_selections.arcee_fusion(base, tuned))
    assert 0 < int((result != base).sum()) < 10**6 / 4


def test_arcee_fusion_of_a_model_that_equals_the_base_is_the_base():
    base = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert torch.equal(merge("arcee_fusion", [base], base), base)


def test_arcee_fusion_takes_a_vector_as_one_row():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(301, generator=generator)
    tuned = base + torch.randn(301, generator=generator) ** 3
    flat, row = (merge("arcee_fusion", [tuned.view(shape)], base.view(shape), block=64) for shape in ((301,), (1, 301)))
    assert torch.equal(flat, row.view(-1)) and torch.equal(flat, dense_selections.arcee_fusion(base, tuned))


def test_what_is_not_finite_does_not_spoil_its_row_for_arcee_fusion():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 50, generator=generator)
    tuned = base + 0.1 * torch.randn(6, 50, generator=generator)
    broken = tuned.clone()
    broken[2, 3] = NAN
    result = merge("arcee_fusion", [broken], base)
    assert result[2, 3].isnan() and int(result.isnan().sum()) == 1
    assert int((result != base).sum()) > 1


# ram


@given(families(), st.sampled_from([1e-5, 1e-3, 0.2]), blocks)
@settings(max_examples=150, deadline=None)
def test_ram_keeps_own_changes_and_averages_shared_ones(family, epsilon, block) -> None:
    base, tensors = family
    result = merge("ram", tensors, base, parameters={"epsilon": epsilon}, block=block, out=torch.float32)
    expected = dense_selections.ram(base, tensors, epsilon)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)
    plus = {"epsilon": epsilon, "r": 0.3, "alpha": 0.7}
    result = merge("ramplus_tl", tensors, base, parameters=plus, block=block, out=torch.float32)
    expected = dense_selections.ram(base, tensors, **plus)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


def test_ram_by_hand():
    base, tuned = torch.ones(4), [vector(2.0, 3.0, 1.0, 1.0), vector(1.0, 2.0, 1.0 + 2**-20, 1.0)]
    assert merge("ram", tuned, base).tolist() == [2.0, 2.5, 1.0, 1.0]
    plus = merge("ramplus_tl", tuned, base).tolist()
    assert plus == [pytest.approx(1 + 1.02), 2.5, 1.0, 1.0], "one shared for one own is more than alpha = 0.2"


def test_ram_plus_of_models_that_share_nothing_is_ram():
    tuned = [vector(2.0, 0.0, 0.0), vector(0.0, -3.0, 0.0)]
    assert merge("ramplus_tl", tuned, torch.zeros(3)).tolist() == [2.0, -3.0, 0.0]


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_ram_plus_of_models_without_own_changes_is_the_mean(epsilon):
    tuned = [vector(2.0, 4.0), vector(4.0, -4.0)]
    assert merge("ramplus_tl", tuned, torch.zeros(2), parameters={"epsilon": epsilon}).tolist() == [3.0, 0.0]


def test_the_fence_of_no_elements_is_nowhere():
    fold = importance_threshold()
    assert fold.finish(fold.start()) == 0.0
