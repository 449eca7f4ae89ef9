"""Random numbers as a hash of where they are used: the same for every cut, thread and order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merger.ops.scratch import scratch
from merger.types import BLOCK_ELEMENTS

# The odd multipliers of Wellons' 32-bit hash "triple32". Every step can be undone, so two elements of a
# tensor of at most 2^32 never share a hash.
WEYL, SECOND_MULTIPLIER, THIRD_MULTIPLIER = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB
_HIGH_WORD = 0x9E3779B9
_WORD = 0xFFFFFFFF
_BASE_POSITION = -1


def tensor_key(seed: int, name: str, model: int) -> int:
    """The 64-bit key of one output tensor's noise for one model.

    Args:
        seed: the recipe's seed.
        name: the output tensor's name.
        model: the model's position among the recipe's non-base models.
    """
    text = f"{seed}\0{model}\0{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _tensor_key_at(seed: int, name: str, position: int | None) -> int:
    return tensor_key(seed, name, _BASE_POSITION if position is None else position)


class HashKeys:
    """What the hashes of one output tensor's elements begin with, for every model.

    Args:
        seed: the recipe's seed.
        name: the output tensor's name.
        positions: as for `BlockNoise`.
    """

    def __init__(self, seed: int, name: str, positions: Sequence[int | None]) -> None:
        self._keys = [_tensor_key_at(seed, name, position) for position in positions]

    def at(self, start: int) -> NDArray[np.uint32]:
        """``[models, 2]`` words for a run of elements that begins at a flat index and crosses no multiple of 2^32."""
        upper = (start >> 32) * _HIGH_WORD
        words = [((start + key) & _WORD, ((key >> 32) + upper) & _WORD) for key in self._keys]
        return np.array(words, np.uint32).reshape(-1, 2)


class BlockNoise:
    """The noise of one block: of ``shape`` elements that follow each other from ``start``.

    Args:
        seed: the recipe's seed.
        name: the output tensor's name.
        positions: of each of the block's tensors, the model's position among the recipe's
            non-base models; None for the base.
        start: flat index of the block's first element in the output tensor.
        shape: the block's shape.
        device: where the numbers are wanted.
    """

    def __init__(
        self,
        seed: int,
        name: str,
        positions: Sequence[int | None],
        start: int,
        shape: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self._seed, self._names, self._positions = seed, [name], positions
        self._shape, self._device = torch.Size(shape), torch.device(device)
        self._start, stop = start, start + self._shape.numel()
        self._indices: Tensor | None = None
        if start >> 32 != (stop - 1) >> 32:
            self._indices = torch.arange(start, stop, device=self._device).view(self._shape)

    @classmethod
    def at(cls, seed: int, name: str | Sequence[str], positions: Sequence[int | None], indices: Tensor) -> BlockNoise:
        """The same numbers for sampled elements.

        Args:
            seed: the recipe's seed.
            name: the output tensor's name, or one name for each row of ``indices``.
            positions: as for a block.
            indices: int64 flat indices, of any shape; ``[tensors, samples]`` with several names.
        """
        noise = cls(seed, "", positions, 0, indices.shape, indices.device)
        noise._names = [name] if isinstance(name, str) else list(name)
        noise._indices = indices
        return noise

    def bits(self, model: int) -> Tensor:
        """Fresh int32 tensor of random numbers, any of the 2^32 equally likely, for ``tensors[model]``."""
        keys = [_tensor_key_at(self._seed, name, self._positions[model]) for name in self._names]
        first, second = [key & _WORD for key in keys], [key >> 32 for key in keys]
        if self._indices is not None:
            return self._scattered(self._indices, first, second)
        offset = _signed((self._start + first[0]) * WEYL)
        weyl = _weyl_sequence(self._shape.numel(), self._device).view(self._shape)
        return _mixed(weyl + offset, _signed(second[0] + (self._start >> 32) * _HIGH_WORD))

    def uniform(self, model: int) -> Tensor:
        """Fresh float32 tensor of multiples of 2^-24 in [0, 1): the upper bits of ``bits(model)``."""
        upper = self.bits(model).bitwise_right_shift_(8).to(torch.float32)
        return upper.add_(2.0**23).mul_(2.0**-24)

    def _scattered(self, indices: Tensor, first: list[int], second: list[int]) -> Tensor:
        low = (indices.to(torch.int32) + self._column(first)).mul_(_signed(WEYL))
        high = (indices >> 32).to(torch.int32).mul_(_signed(_HIGH_WORD))
        return _mixed(low, high.add_(self._column(second)))

    def _column(self, words: list[int]) -> int | Tensor:
        if len(words) == 1:
            return _signed(words[0])
        return torch.tensor([_signed(word) for word in words], dtype=torch.int32, device=self._device).unsqueeze(1)


def _mixed(weyl: Tensor, key: int | Tensor) -> Tensor:
    """The hash of ``(index + first key) * WEYL`` under the second key, in place."""
    weyl.bitwise_xor_(key)
    _fold_down(weyl, 16).mul_(_signed(SECOND_MULTIPLIER))
    return _fold_down(weyl, 15).mul_(_signed(THIRD_MULTIPLIER))


def _fold_down(mixed: Tensor, shift: int) -> Tensor:
    """``mixed ^= mixed >>> shift`` in place; torch shifts signed numbers, hence the mask."""
    shifted = torch.bitwise_right_shift(mixed, shift, out=scratch("hash", mixed, torch.int32))
    return mixed.bitwise_xor_(shifted.bitwise_and_((1 << (32 - shift)) - 1))


def _signed(word: int) -> int:
    """The low 32 bits as the int32 that has them."""
    return ((word + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _weyl_sequence(count: int, device: torch.device) -> Tensor:
    """``index * WEYL`` modulo 2^32 for the first ``count`` indices."""
    if count > BLOCK_ELEMENTS:
        return torch.arange(count, dtype=torch.int32, device=device).mul_(_signed(WEYL))
    return _weyl_block(device)[:count]


@cache
def _weyl_block(device: torch.device) -> Tensor:
    return torch.arange(BLOCK_ELEMENTS, dtype=torch.int32, device=device).mul_(_signed(WEYL))
