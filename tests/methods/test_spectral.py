"""Methods that work on the singular directions of whole matrices: TSV-Merge, Iso-C and Iso-CTS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import merger
from merger import Recipe, RunOptions
from tests.methods.driver import merge

f64 = torch.float64
SPECTRAL = ["iso_c", "iso_cts", "tsv_m"]
every_spectral_method = pytest.mark.parametrize("method", SPECTRAL)
shapes = st.tuples(st.integers(1, 24), st.integers(1, 24))
seeds = st.integers(0, 2**31)


def matrices(shape: Sequence[int], seed: int, models: int = 3) -> tuple[Tensor, list[Tensor]]:
    """A base of zeros, so that nothing is lost when changes are added to it, and fine-tunes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.zeros(*shape), [torch.randn(*shape, generator=generator) for _ in range(models)]


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.linalg.svd(matrix.to(f64), full_matrices=False)


def orthogonalised(matrix: Tensor) -> Tensor:
    left, _, right = svd(matrix)
    return left @ right


def iso_c(changes: Sequence[Tensor]) -> Tensor:
    left, values, right = svd(sum(change.to(f64) for change in changes))
    return values.mean() * left @ right


def tsv_m(changes: Sequence[Tensor]) -> Tensor:
    kept = min(changes[0].shape) // len(changes)
    parts = [(left[:, :kept], values[:kept], right[:kept]) for left, values, right in map(svd, changes)]
    lefts, values, rights = zip(*parts, strict=True)
    return (orthogonalised(torch.cat(lefts, 1)) * torch.cat(values)) @ orthogonalised(torch.cat(rights))


def iso_cts(changes: Sequence[Tensor], fraction: float = 0.8) -> Tensor:
    rank, models = min(changes[0].shape), len(changes)
    own = min(round((rank - int(rank * fraction)) / models), rank // models)
    common = rank - own * models
    left, values, right = (part for part in svd(sum(change.to(f64) for change in changes)))
    left, values, right = left[:, :common], values[:common], right[:common]
    rests = [svd(change.to(f64) - left @ left.T @ change.to(f64)) for change in changes]
    lefts = torch.cat([*(u[:, :own] for u, _, _ in rests), left], 1)
    rights = torch.cat([*(v[:own] for _, _, v in rests), right])
    mean = torch.cat([*(s[:own] for _, s, _ in rests), values]).mean()
    return mean * orthogonalised(lefts) @ orthogonalised(rights)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert float((found.to(f64) - expected.to(f64)).norm()) <= tolerance * (1e-30 + float(expected.norm()))


def outer(left: Sequence[float], right: Sequence[float], size: float = 1.0) -> Tensor:
    return size * torch.outer(torch.tensor(left), torch.tensor(right))


# Iso-C


@settings(deadline=None, max_examples=40)
@given(shapes, seeds)
def test_iso_c_is_the_sum_with_the_mean_of_its_singular_values(shape, seed):
    base, tuned = matrices(shape, seed)
    assert_close(merge("iso_c", tuned, base), iso_c(tuned), 1e-3)


def test_iso_c_makes_orthogonal_changes_equally_strong():
    first, second = outer([1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], 3.0), outer([0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    merged = merge("iso_c", [first, second], torch.zeros(3, 4))
    expected = torch.zeros(3, 4)
    expected[0, 1] = expected[1, 0] = 2.0
    torch.testing.assert_close(merged, expected)


def test_iso_c_keeps_the_sum_of_the_singular_values():
    base, tuned = matrices((20, 30), 1)
    merged = merge("iso_c", tuned, base)
    assert float(svd(merged)[1].sum()) == pytest.approx(float(svd(sum(tuned))[1].sum()), rel=1e-6)


def test_iso_c_leaves_directions_alone_that_no_model_changes():
    change = outer([3.0, 4.0, 0.0], [0.0, 0.0, 1.0, 0.0])
    base = torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(merge("iso_c", [base + change], base), base + change)


def test_iso_c_of_changes_that_cancel_is_the_base():
    base, (change,) = matrices((5, 7), 2, models=1)
    assert torch.equal(merge("iso_c", [change, -change], base), base)


# TSV-Merge


@settings(deadline=None, max_examples=40)
@given(st.tuples(st.integers(3, 24), st.integers(3, 24)), seeds)
def test_tsv_m_joins_the_orthogonalised_first_singular_directions(shape, seed):
    base, tuned = matrices(shape, seed)
    assert_close(merge("tsv_m", tuned, base), tsv_m(tuned), 1e-3)


def test_tsv_m_of_one_model_is_that_model():
    base, tuned = matrices((9, 14), 3, models=1)
    assert torch.equal(merge("tsv_m", tuned, base), tuned[0])


def test_tsv_m_adds_changes_of_rank_one_that_are_orthogonal():
    first, second = outer([0.6, 0.8], [1.0, 0.0, 0.0], 5.0), outer([0.8, -0.6], [0.0, 0.0, 1.0], 2.0)
    torch.testing.assert_close(merge("tsv_m", [first, second], torch.zeros(2, 3)), first + second)


def test_tsv_m_averages_changes_in_the_same_direction():
    direction = outer([0.6, 0.8], [0.0, 1.0, 0.0])
    merged = merge("tsv_m", [3 * direction, 5 * direction], torch.zeros(2, 3))
    torch.testing.assert_close(merged, 4 * direction)


def test_tsv_m_keeps_as_many_directions_as_asked():
    base, (change,) = matrices((8, 12), 4, models=1)
    left, values, right = svd(change)
    merged = merge("tsv_m", [change], base, parameters={"rank_fraction": 0.25})
    assert_close(merged, (left[:, :2] * values[:2]) @ right[:2])


def test_tsv_m_of_many_models_keeps_at_least_one_direction_each():
    base, tuned = matrices((2, 3), 5, models=5)
    assert float((merge("tsv_m", tuned, base) - base).abs().max()) > 0.01


def test_tsv_m_turns_directions_apart_that_nearly_coincide():
    angle = torch.tensor(0.2)
    first, second = outer([1.0, 0.0], [1.0, 0.0]), outer([float(angle.cos()), float(angle.sin())], [0.0, 1.0])
    merged = merge("tsv_m", [first, second], torch.zeros(2, 2)).to(f64)
    torch.testing.assert_close(merged.T @ merged, torch.eye(2, dtype=f64), rtol=1e-5, atol=1e-6)
    assert float(merged[0, 0]) == pytest.approx(float(merged[1, 1])) != pytest.approx(1.0)


# Iso-CTS


@settings(deadline=None, max_examples=40)
@given(st.tuples(st.integers(4, 24), st.integers(4, 24)), seeds, st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_iso_cts_has_common_and_own_directions_of_equal_strength(shape, seed, fraction):
    base, tuned = matrices(shape, seed)
    merged = merge("iso_cts", tuned, base, parameters={"common_space_fraction": fraction})
    assert_close(merged, iso_cts(tuned, fraction), 1e-3)


def test_iso_cts_of_one_model_is_iso_c():
    base, tuned = matrices((15, 10), 6, models=1)
    assert_close(merge("iso_cts", tuned, base), iso_c(tuned))


def test_iso_cts_with_a_common_space_of_all_is_iso_c():
    base, tuned = matrices((10, 15), 7)
    whole = merge("iso_cts", tuned, base, parameters={"common_space_fraction": 1.0})
    assert_close(whole, iso_c(tuned))


def test_iso_cts_of_identical_models_has_no_directions_but_theirs():
    change = outer([0.6, 0.8, 0.0], [0.0, 1.0, 0.0])
    merged = merge("iso_cts", [change] * 3, torch.zeros(3, 3))
    torch.testing.assert_close(merged, 3 * change)


# What all three have in common


@every_spectral_method
def test_weights_belong_to_the_changes_and_lambda_to_the_result(method):
    base, tuned = matrices((12, 9), 8)
    weighted = merge(method, tuned, base, weight=[2.0, -1.0, 0.5], parameters={"lambda": 3.0})
    scaled = merge(method, [2 * tuned[0], -tuned[1], tuned[2] / 2], base)
    torch.testing.assert_close(weighted, 3 * scaled, rtol=1e-4, atol=1e-5)


@every_spectral_method
def test_without_any_weight_the_base_comes_out(method):
    base, tuned = matrices((6, 4), 9)
    assert torch.equal(merge(method, tuned, base + 1, weight=[0.0] * 3), base + 1)


@every_spectral_method
def test_tiny_changes_are_treated_like_large_ones(method):
    base, tuned = matrices((16, 20), 10)
    small, large = (merge(method, [scale * t for t in tuned], base) for scale in (1e-12, 1.0))
    assert_close(small / 1e-12, large)


@every_spectral_method
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (3, 2, 2, 2)], ids=str)
def test_what_is_not_a_matrix_is_merged_by_task_arithmetic(method, shape):
    base, tuned = matrices(shape, 11)
    plain = merge("task_arithmetic", tuned, base, weight=[0.5, 0.25, 1.0], parameters={"lambda": 0.5})
    assert torch.equal(merge(method, tuned, base, weight=[0.5, 0.25, 1.0], parameters={"lambda": 0.5}), plain)


@pytest.mark.parametrize("method", ["iso_c", "tsv_m"])
def test_a_transposed_matrix_gives_the_transposed_result(method):
    base, tuned = matrices((11, 17), 12)
    across = merge(method, [t.T.contiguous() for t in tuned], base.T.contiguous())
    torch.testing.assert_close(across.T, merge(method, tuned, base), rtol=1e-5, atol=1e-6)


# The engine


TENSORS = {
    "model.embed_tokens.weight": (40, 24),
    "model.layers.0.self_attn.q_proj.weight": (24, 24),
    "model.layers.0.mlp.up_proj.weight": (60, 24),
    "model.layers.0.mlp.down_proj.weight": (24, 60),
    "model.layers.0.input_layernorm.weight": (24,),
    "lm_head.weight": (40, 24),
}


def family(folder: Path) -> tuple[str, list[str]]:
    generator = torch.Generator().manual_seed(0)
    base = {name: torch.randn(shape, generator=generator) for name, shape in TENSORS.items()}
    folders = []
    for name in ("base", "a", "b", "c"):
        (folder / name).mkdir()
        change = 0.0 if name == "base" else 0.01
        tuned = {key: t + change * torch.randn(t.shape, generator=generator) for key, t in base.items()}
        save_file(tuned, folder / name / "model.safetensors")
        folders.append(str(folder / name))
    return folders[0], folders[1:]


def merged_files(folder: Path, method: str, workers: int, **parameters: float) -> dict[str, Tensor]:
    base, tuned = str(folder / "base"), [str(folder / name) for name in "abc"]
    recipe = Recipe.build(method, [(model, {"weight": 0.5}) for model in tuned], base=base, parameters=parameters)
    for _ in merger.merge(recipe, folder / "out", RunOptions(workers=workers, overwrite=True)):
        pass
    return load_file(folder / "out" / "model.safetensors")


@every_spectral_method
def test_any_number_of_workers_gives_the_same_bytes(tmp_path, method):
    family(tmp_path)
    alone, *others = (merged_files(tmp_path, method, workers) for workers in (1, 2, 5))
    for other in others:
        assert all(torch.equal(tensor, other[name]) for name, tensor in alone.items())


@every_spectral_method
def test_embeddings_and_heads_are_merged_by_task_arithmetic(tmp_path, method):
    family(tmp_path)
    merged, plain = merged_files(tmp_path, method, 1), merged_files(tmp_path, "task_arithmetic", 1)
    same = {name for name, tensor in merged.items() if torch.equal(tensor, plain[name])}
    assert same == {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"}
