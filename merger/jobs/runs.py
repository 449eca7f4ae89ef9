"""One try at a merge: in a child process, or in this one when it is small."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from merger.errors import Cancelled, MergerError, Problem, UserError
from merger.jobs.folder import JobFolder, open_private
from merger.jobs.orphans import remember_child
from merger.recipe import RunOptions

ENGINE_COMMAND = (sys.executable, "-m", "merger", "run")
NICENESS = 10
_CANCELLED_EXIT = 130
_LOG_TAIL = 4096
STRAY = "stdout: "
"""Begins lines of the log that the child printed among its events; they are never its last words."""


class Run(Protocol):
    """One try; made, iterated once to its end, and perhaps stopped from another thread."""

    def events(self) -> Generator[dict[str, Any], None, None]:
        """Merge, and yield each event as plain values.

        Raises:
            Cancelled: it was stopped.
            Killed: the system ended the process; trying again goes on from there.
            MergerError: it failed, and why.
        """

    def stop(self) -> None:
        """Ask it to end soon; safe to call at any time."""


class Killed(MergerError):
    """The merge was ended by the system, not by an error of its own."""


class ThreadRun:
    """A merge in this process, for outputs so small that a child costs more than it protects."""

    def __init__(self, folder: JobFolder, options: RunOptions) -> None:
        self._folder = folder
        self._cancel = threading.Event()
        self._options = replace(options, cancel=self._cancel)

    def events(self) -> Generator[dict[str, Any], None, None]:
        from merger import api  # heavy: it brings torch

        recipe = api.load_recipe(self._folder.recipe)
        for event in api.merge(recipe, self._folder.output, self._options):
            yield event.to_json()

    def stop(self) -> None:
        self._cancel.set()


class ChildRun:
    """A merge in a child process with its own process group and low priority.

    Args:
        command: program and first arguments; recipe, output and options are appended.
        grace: seconds between asking the child to stop and killing it.
    """

    def __init__(self, command: Sequence[str], folder: JobFolder, options: RunOptions, grace: float) -> None:
        self._command = [*command, str(folder.recipe), str(folder.output), "--json", *_arguments(options)]
        self._folder = folder
        self._grace = grace
        self._lock = threading.Lock()
        self._stopped = False
        self._process: subprocess.Popen[str] | None = None
        self._deadline: threading.Timer | None = None

    def events(self) -> Generator[dict[str, Any], None, None]:
        last: dict[str, Any] = {}
        with open(self._folder.log, "w", 1, encoding="utf-8", opener=open_private) as log:
            process = self._start(log.fileno())
            try:
                self._settle_in(process.pid)
                for line in process.stdout or ():
                    event = _event(line)
                    if event is None:
                        log.write(STRAY + line)
                    elif event["event"] == "Cancelled":
                        _signal_group(process, signal.SIGKILL)  # all is written; taking torch apart can last seconds
                    elif event["event"] != "Failed":
                        yield event
                    last = event or last
            except BaseException:  # nobody listens any more
                self.stop()
                raise
            finally:
                self._end(process)
        self._judge(process.returncode, last)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._process is not None and self._deadline is None:
                _signal_group(self._process, signal.SIGTERM)
                self._deadline = threading.Timer(self._grace, _signal_group, (self._process, signal.SIGKILL))
                self._deadline.daemon = True
                self._deadline.start()

    def _start(self, log: int) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise Cancelled("The merge was stopped.")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                errors="replace",
                env=_environment(),
                start_new_session=True,
            )
            return self._process

    def _settle_in(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            os.setpriority(os.PRIO_PGRP, pid, NICENESS)
        remember_child(self._folder.pid, pid)

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        with self._lock:
            self._process = None
        if self._deadline is not None:
            self._deadline.cancel()
        if process.stdout is not None:
            process.stdout.close()
        self._folder.pid.unlink(missing_ok=True)

    def _judge(self, code: int, last: dict[str, Any]) -> None:
        if code == 0:
            return
        stopped = code in (_CANCELLED_EXIT, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
        if stopped or self._stopped or last.get("event") == "Cancelled":
            raise Cancelled("The merge was stopped.")
        if last.get("event") == "Failed" and last.get("problems"):
            raise UserError([Problem(**problem) for problem in last["problems"]])
        if code == -signal.SIGKILL:
            raise Killed(
                "The merge was killed by the system, most likely because memory ran out.",
                hint="Resume goes on from where it stopped.",
            )
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        raise MergerError(f"The merge stopped unexpectedly ({how}). {_last_line(self._folder.log)}".rstrip())


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it ended in this moment
            os.killpg(process.pid, number)


def _arguments(options: RunOptions) -> list[str]:
    values: dict[str, Any] = {"--device": options.device, "--shard-size": options.shard_size}
    if options.workers is not None:
        values["--workers"] = options.workers
    switches = {"--strict": options.strict, "--resume": options.resume}
    named = [text for name, value in values.items() for text in (name, str(value))]
    return named + [name for name, on in switches.items() if on]


def _environment() -> dict[str, str]:
    """This process's environment, with the engine found wherever it was imported from."""
    engine = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (engine, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _event(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith(STRAY)), "")
