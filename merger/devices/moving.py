"""Moving values that hold tensors from one device to another."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def moved(value: Any, device: str) -> Any:
    """The value with every tensor in it on ``device``.

    Looked into are dictionaries, lists, tuples and dataclasses; anything else stays as it is.
    """
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, device) for item in value]
    if isinstance(value, tuple):
        items = [moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return _moved_fields(value, device) if is_dataclass(value) and not isinstance(value, type) else value


def _moved_fields(value: Any, device: str) -> Any:
    before = {item.name: getattr(value, item.name) for item in fields(value)}
    changed = {name: item for name, old in before.items() if (item := moved(old, device)) is not old}
    if not changed:
        return value
    result = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(result, name, item)
    return result
