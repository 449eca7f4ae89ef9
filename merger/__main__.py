"""``python -m merger``."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from merger.cli import main


def open_missing_streams() -> None:
    """Put the null device where a standard stream is closed, or the next file to be opened would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)
            if place != number:
                os.dup2(place, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def leave(code: int) -> NoReturn:
    """End the process at once: torch takes half a second to tear down, and nothing is left to save."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 1
        except OSError:
            code = code or 2
    os._exit(code)


def start_lightly() -> None:
    """Spare what only costs time here: collecting garbage while modules load, and threads of numpy that wait busily."""
    gc.set_threshold(100_000, 20, 20)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


if __name__ == "__main__":
    start_lightly()
    open_missing_streams()
    leave(main())
