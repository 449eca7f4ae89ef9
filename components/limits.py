"""What visitors of a public page may name: nothing of the machine but the demo's models."""

from __future__ import annotations

import os
from collections.abc import Iterable

from components import text
from components.access import is_hosted
from components.demo import FOLDER
from merger import UserError


def check(models: Iterable[str]) -> None:
    """Insist that models may be opened here.

    Raises:
        UserError: on a public page, for a place on its machine.
    """
    if not is_hosted():
        return
    root = os.path.realpath(FOLDER) + os.sep
    for model in models:
        if not os.path.realpath(os.path.expanduser(model)).startswith(root):
            raise UserError(text.NOT_HERE.format(model=model), hint=text.NOT_HERE_HINT)
