"""PCB-Merging: elements compete inside each model and between the models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.methods.driver import merge

f64 = torch.float64


def normed(product: Tensor) -> Tensor:
    return (product - product.min()) / (product.max() - product.min())


def softmax(values: Tensor) -> Tensor:
    return values.exp() / values.exp().sum()


def balanced(changes: list[Tensor], density: float) -> Tensor:
    """The paper's formula in float64, the softmax as it is written."""
    shares = []
    for change in changes:
        intra = softmax(len(changes) * normed(change * change))
        inter = sum(softmax(normed(change * other)) for other in changes)
        score = intra * inter
        kept = max(1, int(density * score.numel()))
        shares.append(score * (score >= score.sort(descending=True).values[kept - 1]))
    whole = sum(shares)
    mixed = sum(share * change for share, change in zip(shares, changes, strict=True))
    return torch.where(whole > 0, mixed / whole, torch.zeros_like(whole))


def changes(seed: int, models: int = 3, size: int = 400) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * 1e-3 for _ in range(models)]


@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("models", [2, 3, 5])
def test_it_is_the_formula_of_the_paper(density, models):
    tensors = changes(models, models)
    merged = merge("pcb", tensors, torch.zeros(400), density=[density] * models)
    expected = balanced([tensor.to(f64) for tensor in tensors], density)
    torch.testing.assert_close(merged.to(f64), expected, rtol=1e-4, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_it_does_not_matter_how_large_all_changes_are(seed):
    tensors = changes(seed)
    large = merge("pcb", [tensor * 1024 for tensor in tensors], torch.zeros(400), density=[1.0] * 3)
    torch.testing.assert_close(large, merge("pcb", tensors, torch.zeros(400), density=[1.0] * 3) * 1024)


def test_of_one_model_the_largest_changes_are_kept():
    (tensor,) = changes(0, models=1)
    kept = merge("pcb", [tensor], torch.zeros(400), density=[0.2])
    torch.testing.assert_close(kept, merge("ties", [tensor], torch.zeros(400), weight=[1.0], density=[0.2]))


def test_where_one_model_alone_is_left_its_change_is_taken_whole():
    first, second = torch.tensor([4.0, 0.0, 0.0, 0.1]), torch.tensor([0.0, 0.0, 8.0, 0.1])
    merged = merge("pcb", [first, second], torch.zeros(4), density=[0.25, 0.25])
    torch.testing.assert_close(merged, torch.tensor([4.0, 0.0, 8.0, 0.0]))


def test_the_model_to_which_an_element_matters_more_wins():
    first, second = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([-0.5, 2.0, 2.0, 2.0])
    merged = merge("pcb", [first, second], torch.zeros(4), density=[1.0, 1.0])
    assert float(merged[0]) > 0.25


def test_identical_models_come_out_where_their_changes_are_kept():
    (tensor,) = changes(1, models=1)
    merged = merge("pcb", [tensor] * 3, torch.zeros(400), density=[0.5] * 3, parameters={"lambda": 2.0})
    kept = merged != 0
    assert int(kept.sum()) == 200
    torch.testing.assert_close(merged[kept], 2 * tensor[kept])


def test_weights_scale_what_a_model_contributes_but_not_its_standing():
    tensors = changes(2)
    plain = merge("pcb", tensors, torch.zeros(400))
    doubled = merge("pcb", tensors, torch.zeros(400), weight=[2.0] * 3)
    torch.testing.assert_close(doubled, 2 * plain)


def test_a_density_of_zero_takes_a_model_out_of_the_mix():
    tensors = changes(3, models=2)
    merged = merge("pcb", tensors, torch.zeros(400), density=[1.0, 0.0])
    torch.testing.assert_close(merged, tensors[0])


def test_a_tensor_that_no_model_changes_stays():
    base = torch.linspace(-1.0, 1.0, 50)
    assert torch.equal(merge("pcb", [base, base], base), base)
