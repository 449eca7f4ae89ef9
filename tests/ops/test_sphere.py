"""Coefficients of spherical interpolation."""

from __future__ import annotations

import math

import pytest
import torch

from merger.ops.noise import BlockNoise
from merger.ops.sphere import Gram, slerp_coefficients
from merger.types import Block


def test_half_way_between_perpendicular_vectors_keeps_the_length():
    first, second = slerp_coefficients(0.5, 1.0, 0.0, 1.0)
    assert (first, second) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


def test_directions_are_compared_whatever_the_lengths():
    assert slerp_coefficients(0.3, 4.0, 0.0, 9e-6) == pytest.approx(slerp_coefficients(0.3, 1.0, 0.0, 1.0))


@pytest.mark.parametrize("cosine", [0.9996, -0.9996, 1.0, -1.0])
def test_nearly_parallel_and_nearly_opposite_vectors_are_mixed_on_the_line(cosine):
    assert slerp_coefficients(0.3, 1.0, cosine, 1.0) == (0.7, 0.3)


def test_rounding_cannot_push_the_cosine_out_of_bounds():
    assert slerp_coefficients(0.25, 1.0, 1.0 + 1e-12, 1.0) == (0.75, 0.25)


@pytest.mark.parametrize("square", [0.0, 1e-17])
def test_a_vector_without_direction_counts_as_perpendicular(square):
    first, second = slerp_coefficients(0.5, square, 0.0, 1.0)
    assert (first, second) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


@pytest.mark.parametrize(("t", "ends"), [(0.0, (1.0, 0.0)), (1.0, (0.0, 1.0))])
def test_the_ends_are_exact(t, ends):
    assert slerp_coefficients(t, 2.0, 0.3, 5.0) == ends


def test_products_are_summed_in_float64_over_blocks_and_spans():
    generator = torch.Generator().manual_seed(0)
    base, other = (torch.randn(1000, generator=generator) for _ in range(2))
    base[3], other[7] = float("nan"), float("inf")
    gram = Gram(lambda block: (block.base, *block.tensors))
    state = gram.start()
    for start in range(0, 1000, 300):
        pieces = [vector[start : start + 300].clone() for vector in (base, other)]
        noise = BlockNoise(0, "w", [0], start, pieces[0].shape)
        state = gram.join(state, gram.add(gram.start(), Block(pieces[1:], pieces[0], noise)))
    a, b = (vector.nan_to_num(0.0, 0.0, 0.0).double() for vector in (base, other))
    assert gram.finish(state) == pytest.approx([float(a @ a), float(a @ b), float(b @ b)], rel=1e-14)


def test_the_number_of_threads_does_not_change_a_bit():
    generator = torch.Generator().manual_seed(0)
    base, other = (torch.randn((1 << 18) - 77, generator=generator) for _ in range(2))
    gram, results, threads = Gram(lambda block: (block.base, *block.tensors)), set(), torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        noise = BlockNoise(0, "w", [0], 0, base.shape)
        results.add(tuple(gram.add(gram.start(), Block([other.clone()], base.clone(), noise))))
    torch.set_num_threads(threads)
    assert len(results) == 1
