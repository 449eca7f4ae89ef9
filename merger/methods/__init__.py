"""Merge methods, one file each; a file that is put here is found by itself.

``merger.methods()`` lists what they are called, need and accept.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from merger.methods.base import MethodFacts


class _Methods(ModuleType):
    """A package that answers when it is called."""

    def __call__(self) -> list[MethodFacts]:
        from merger.methods.registry import describe_all

        return describe_all()


sys.modules[__name__].__class__ = _Methods
