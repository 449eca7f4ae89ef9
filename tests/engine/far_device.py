"""A device with memory of its own, in name: what a GPU refuses is refused here, and everything is computed here too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from tests.engine.late_device import LateLanes

FAR = torch.device("meta")
"""A device type that torch always knows; tensors on it would have no elements, were they not `FarTensor`."""


class FarTensor(Tensor):
    """A tensor that is elsewhere: it mixes with its like and with single numbers only."""

    near: Tensor
    is_meta = False

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, near.size(), strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype, device=FAR
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"FarTensor({self.near})"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor on another device to numpy; use Tensor.cpu() first")

    def tolist(self) -> Any:
        return self.near.tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return FarTensor(self.near.new_tensor(data, **options))


class FarConstants(TorchFunctionMode):
    """Sends numbers that become tensors to the far device where that is wanted."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu") == FAR:
            return FarTensor(torch.tensor(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


class FarMode(TorchDispatchMode):
    """Sends what is made on the far device there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation where its tensors are."""
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    is_far = any(isinstance(tensor, FarTensor) for tensor in tensors)
    target = kwargs.get("device", FAR if is_far else None)
    copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if is_far and not copies:
        for tensor in tensors:
            if not isinstance(tensor, FarTensor) and tensor.dim():
                raise RuntimeError(f"{func}: expected all tensors to be on one device, found {FAR} and cpu")
    if target is not None and torch.device(target).type == FAR.type:
        kwargs = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
        found = func(*tree_map(_near, args), **tree_map(_near, kwargs))
        return _same_or_far(func, args, kwargs, found)
    return func(*tree_map(_near, args), **tree_map(_near, kwargs))


def _same_or_far(func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> Any:
    """Results far away; what was written into is given back as the tensor that it was."""
    written = {id(_near(value)): value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)}

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return written[id(value)] if id(value) in written else FarTensor(value)

    return tree_map(placed, found)


def _near(value: Any) -> Any:
    return value.near if isinstance(value, FarTensor) else value


class FarLanes(LateLanes):
    """Late lanes between the processor's memory and the far one."""

    device = str(FAR)

    def __init__(self, log: list[str]) -> None:
        super().__init__(log)
        FarMode().__enter__()
        FarConstants().__enter__()
