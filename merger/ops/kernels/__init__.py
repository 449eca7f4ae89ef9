"""Compiled loops for the steps that take the most time.

They give the same bits as torch, and only save time; without numba everything works as well. The environment
variable ``MIXDESK_KERNELS`` says when they are used: ``auto`` (the default) where loading them pays off, ``always``
or ``never``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

from merger.errors import UserError

SETTING = "MIXDESK_KERNELS"
WORTHWHILE_ELEMENTS = 1_000_000_000
"""Elements to be read, from which on kernels save more time than it takes to load them."""

DEMANDING = 10
"""How many elements of a plain sum cost what one element costs of a method that measures or draws random numbers."""


def load() -> None:
    """Import them; compiling, or reading what was compiled before, waits for the first call."""
    for name in ("counting", "mixing", "products", "ranking"):
        importlib.import_module(f"{__name__}.{name}")


def are_wanted(elements: int) -> bool:
    """Whether to use kernels for work that reads so many elements.

    Raises:
        UserError: they are demanded but cannot be loaded, or the setting means nothing.
    """
    setting = os.environ.get(SETTING, "auto").lower()
    if setting not in ("auto", "always", "never"):
        raise UserError(f"{SETTING} is '{setting}'", where="environment", hint="Say auto, always or never.")
    is_there = importlib.util.find_spec("numba") is not None
    if setting == "always" and not is_there:
        raise UserError(f"{SETTING} is 'always' but numba is not installed", hint="Run: pip install numba.")
    return setting == "always" or (setting == "auto" and is_there and elements >= WORTHWHILE_ELEMENTS)
