"""Showing the events of a merge: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from merger.cli.report import counted, print_json, print_problems, say, size_text, time_text
from merger.errors import printable
from merger.events import Event, Merged, Planned, RecipeBegun, ShardWritten, TensorMerged, Verified, Working

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0
BAR_WIDTH = 20
NAME_WIDTH = 40


class Reporter(Protocol):
    """Shows events to someone."""

    def show(self, event: Event) -> None:
        """Show one event."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def make_reporter(as_json: bool, label: str = "") -> Reporter:
    """The reporter that fits where the output goes.

    Args:
        as_json: whether a program reads it.
        label: name of the merge when several run one after the other.
    """
    if as_json:
        return JsonLines(label)
    return Bar() if sys.stderr.isatty() else Lines()


def consume(events: Iterable[Event], reporter: Reporter) -> Merged:
    """Run a merge to its end while its events are shown.

    Raises:
        MergerError: whatever stops the merge.
    """
    result: Merged | None = None
    try:
        for event in events:
            reporter.show(event)
            result = event if isinstance(event, Merged) else result
    finally:
        reporter.close()
    assert result is not None, "a merge ends with Merged or raises"
    return result


class JsonLines:
    """One event per line on standard output."""

    def __init__(self, label: str = "") -> None:
        self._extra: dict[str, Any] = {"merge": label} if label else {}
        self._stream = sys.stdout

    def show(self, event: Event) -> None:
        if isinstance(event, RecipeBegun):
            self._extra = {"merge": event.name}
        print_json({**event.to_json(), **self._extra}, self._stream)

    def close(self) -> None:
        pass


class Lines:
    """What is planned and checked, and a line every few seconds in between."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def show(self, event: Event) -> None:
        if isinstance(event, RecipeBegun):
            print_begun(event)
        elif isinstance(event, Planned):
            print_plan(event)
        elif isinstance(event, Working) and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            left = "" if event.seconds_left is None else f", {time_text(event.seconds_left)} left"
            done = f"{size_text(event.bytes_done)} of {size_text(event.bytes_out)}"
            say(f"{done}, {size_text(event.bytes_per_second)}/s{left}: {event.tensor}")
        elif isinstance(event, Verified):
            print_verified(event)

    def close(self) -> None:
        pass


class Bar:
    """A progress bar with rate, time left and the tensor at work."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def show(self, event: Event) -> None:
        if isinstance(event, RecipeBegun):
            print_begun(event)
        elif isinstance(event, Planned):
            print_plan(event)
            self._start(event)
        elif self._progress is not None and self._task is not None:
            if isinstance(event, Working):
                self._move(event)
            elif isinstance(event, TensorMerged):
                self._progress.update(self._task, tensor=_fitted(event.name))
            elif isinstance(event, ShardWritten):
                self._progress.update(self._task, tensor=f"{event.file} is complete")
        if isinstance(event, Verified):
            self.close()
            print_verified(event)

    def _start(self, event: Planned) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
        from rich.table import Column

        self._progress = Progress(
            BarColumn(BAR_WIDTH),
            DownloadColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            TextColumn(
                "{task.fields[tensor]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=event.bytes_out, completed=event.bytes_done, rate="", tensor="")
        self._progress.start()

    def _move(self, event: Working) -> None:
        assert self._progress is not None and self._task is not None
        left = "" if event.seconds_left is None else f", {time_text(event.seconds_left)} left"
        rate = f"{size_text(event.bytes_per_second)}/s{left}"
        self._progress.update(self._task, completed=event.bytes_done, rate=rate, tensor=_fitted(event.tensor))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _fitted(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else "..." + name[3 - NAME_WIDTH :]


def print_begun(event: RecipeBegun) -> None:
    """Which recipe of several begins, or that its result stands already."""
    name = f"'{printable(event.name)}'" if event.name else "the result"
    what = f"is unchanged in {printable(event.path)}" if event.reused else f"goes to {printable(event.path)}"
    say(f"Recipe {event.number} of {event.total}: {name} {what}.")


def print_plan(event: Planned) -> None:
    """The plan's warnings and notes, and how much work it is."""
    print_problems(event.problems)
    resumed = f", {size_text(event.bytes_done)} of it from before" if event.bytes_done else ""
    read, written = size_text(event.bytes_in), size_text(event.bytes_out)
    say(f"{counted(event.tensors, 'tensor')}, reading {read}, writing {written}{resumed}")


def print_verified(event: Verified) -> None:
    """That the output was read back, and where it is not finite."""
    if event.non_finite:
        count = sum(event.non_finite.values())
        names = ", ".join(list(event.non_finite)[:3]) + (", ..." if len(event.non_finite) > 3 else "")
        where = f"{counted(len(event.non_finite), 'tensor')} ({names})"
        say(
            f"warning: {counted(count, 'value')} in {where} infinite or NaN. "
            "When float16 is too narrow, --out-dtype bfloat16 helps; --strict refuses such results."
        )
