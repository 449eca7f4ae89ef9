"""What a device must offer so that blocks can be computed on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Deliver = Callable[[memoryview, int], None]
"""Takes a block's bytes as they stand in a file, and how many of its elements are infinite or NaN."""


@dataclass(frozen=True)
class Stored:
    """A run of elements of one input, as it is stored.

    Attributes:
        code: element type, a key of `merger.types.DTYPES`.
        nbytes: size.
        fill: fills a buffer of that size.
    """

    code: str
    nbytes: int
    fill: Callable[[memoryview], None]


class Transport(ABC):
    """Carries one thread's blocks to its device and the results back.

    Attributes:
        device: torch's name of the device.
    """

    device: str

    @abstractmethod
    def inputs(self, blocks: Iterable[Sequence[Stored]], dtype: torch.dtype) -> Iterator[list[Tensor]]:
        """Each block's inputs on the device: flat, widened to ``dtype``, free to be overwritten.

        They are valid until the next block is asked for.  Later blocks may be on their way meanwhile.
        """

    @abstractmethod
    def output(self, merged: Tensor, code: str, deliver: Deliver) -> None:
        """Round a result once to the type ``code`` and deliver it, at the latest in `finish`; results keep their order.

        Args:
            merged: of any shape.
            code: element type of the output, a key of `merger.types.DTYPES`.
            deliver: receives the bytes, which are valid until it returns.
        """

    def finish(self) -> None:
        """Deliver what is still on its way."""

    def settle(self) -> None:
        """Wait until nothing is on its way any more; what was not delivered never will be."""


class Device(ABC):
    """A place where blocks are computed.

    Attributes:
        name: torch's name of it.
    """

    name: str

    @abstractmethod
    def transport(self) -> Transport:
        """A new transport for the calling thread, which from now on computes on this device."""
