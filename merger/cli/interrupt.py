"""Ctrl-C and SIGTERM: a merge stops at the next block and keeps its journal, anything else stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Both signals go to ``handler``; only a program's main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = [signal.signal(number, handler) for number in SIGNALS]
    try:
        yield
    finally:
        for number, old in zip(SIGNALS, previous, strict=True):
            signal.signal(number, old)


@contextmanager
def stop_at_once() -> Iterator[threading.Event]:
    """Either signal raises KeyboardInterrupt, and sets the event for those who meet what became of it.

    A library whose import is interrupted may swallow the exception or raise another instead.
    """
    asked = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        asked.set()
        _stop(number, frame)

    with _handled(handler):
        yield asked


@contextmanager
def cancel_on_signal() -> Iterator[threading.Event]:
    """The first signal sets the event that a merge watches, the second raises KeyboardInterrupt."""
    cancel = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            _stop(number, frame)
        cancel.set()

    with _handled(handler):
        yield cancel
