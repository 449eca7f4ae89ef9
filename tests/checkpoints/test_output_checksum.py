"""The checksum finds what can go wrong on a disk, and adds up over pieces."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merger.checkpoints.checksum import checksum, joined

CHANCE = np.random.default_rng(1)
DATA = CHANCE.integers(0, 256, 100_003, dtype=np.uint8).tobytes()


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(DATA)), max_size=6), offset=st.integers(0, 2**42))
def test_pieces_cut_anywhere_add_up_to_the_whole(cuts, offset):
    edges = [0, *sorted(cuts), len(DATA)]
    pieces = [checksum(DATA[a:b], offset + a) for a, b in itertools.pairwise(edges)]
    assert joined(*pieces) == checksum(DATA, offset)


def test_the_value_stays_the_same_over_versions():
    assert checksum(b"") == checksum(bytes(50)) == 0
    assert f"{checksum(b'mixdesk'):016x}" == "3c71c3bacb978268"
    assert f"{checksum(bytes(range(251)) * 400, 12_345):016x}" == "3f96188bd3a851ce"


def test_any_buffer_will_do():
    shifted = memoryview(bytearray(b"x" + DATA))[1:]
    assert checksum(shifted) == checksum(bytearray(DATA)) == checksum(DATA)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_found(bit):
    for place in random.Random(bit).sample(range(len(DATA)), 100):
        damaged = bytearray(DATA)
        damaged[place] ^= 1 << bit
        assert checksum(damaged) != checksum(DATA)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_two_flipped_signs_are_found(dtype):
    numbers = CHANCE.standard_normal(2000).astype(dtype)
    chance = random.Random(2)
    for _ in range(200):
        damaged = numbers.copy()
        damaged[chance.sample(range(2000), 2)] *= -1
        assert checksum(damaged.tobytes()) != checksum(numbers.tobytes())


@pytest.mark.parametrize("distance", [1, 8, 512, 4096, 8192, 16_384])
def test_swapped_and_moved_bytes_are_found(distance):
    data = np.frombuffer(DATA, np.uint8)
    assert checksum(np.roll(data, distance).tobytes()) != checksum(DATA)
    half = len(data) // 2 // distance * distance
    swapped = data.copy()
    swapped[:half] = data[:half].reshape(-1, distance)[::-1].reshape(-1)
    assert checksum(swapped.tobytes()) != checksum(DATA)


def test_the_same_bytes_elsewhere_have_another_checksum():
    assert len({checksum(DATA, 4096 * place) for place in range(200)}) == 200
