"""Compiling loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function when it is first called, and keep the result on disk where that is possible.

    Nothing is reordered or fused: each operation rounds as it would in torch.
    """
    try:
        return _compiled(function, {"cache": True})
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return _compiled(function, {})


def step(function: Function) -> Function:
    """Compile a function that only compiled functions call, and that becomes part of them."""
    return _compiled(function, {"no_cpython_wrapper": True, "no_cfunc_wrapper": True})


def _compiled(function: Function, options: dict[str, Any]) -> Function:
    # With numpy's error model dividing by 0 gives what it gives in torch.
    made: Function = numba.njit(nogil=True, error_model="numpy", **options)(function)
    return made
