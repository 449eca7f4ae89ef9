"""Compares merges from cold files with plain input and output of the same bytes: how near is a merge to the disk?

    python tests/benchmarks/io_bound.py [--pairs 3] [--only linear] [--layers 64] [--keep]

In turns with each merge, every input byte that the merge needs is read once into one buffer of 8 MiB, one file after
the other, and as many bytes as the merge writes are written from such a buffer and synced, as the merge's are.  Before
either, the inputs are dropped from the page cache and earlier results deleted.  The merge's time is the ``seconds`` of
its last event: everything between the finished plan and the result in its final place, reading it back included.  The
rest of the process (start of Python, imports, headers and plan) stands in a column of its own.  What is loaded later,
which is numba where compiled kernels are used, counts as part of the merge; how long that takes is said beforehand.

Files: 64 layers make 1.6 GB a model, so 4.7 GB go into linear, 6.3 GB into task_arithmetic; passthrough stacks the
layers of three models, 4.5 GB.  They are deleted at the end, unless ``--keep``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints import make_family
from processes import forget, read_plainly, write_plainly
from recipes import models_read, recipe
from workplace import (
    Table,
    add_work,
    fresh_output,
    log_of,
    open_work,
    print_machine,
    run_mixdesk,
    weight_files,
    write_recipe,
)

TARGET = 1.3
METHODS = ("linear", "task_arithmetic", "passthrough")


@dataclass(frozen=True)
class Turn:
    """One merge and the same bytes moved plainly: seconds, and bytes."""

    merge: float
    start_up: float
    plain: float
    bytes_in: int
    bytes_out: int

    @property
    def ratio(self) -> float:
        return self.merge / self.plain


class Race:
    """The files of the comparison."""

    def __init__(self, work: Path, layers: int) -> None:
        self.work, self.layers = work, layers
        self.folder = work / f"checkpoints-{layers}"
        self.base, self.experts = make_family(self.folder, layers)

    def run(self, method: str, pairs: int) -> list[Turn]:
        """Turns in which now the one begins, now the other."""
        _, _, bytes_in, bytes_out = self.merge(method)  # does not count: it fills the caches of libraries
        turns = []
        for number in range(pairs):
            if number % 2:
                plain = self.move_plainly(method, bytes_in, bytes_out)
                merge, start_up, *_ = self.merge(method)
            else:
                merge, start_up, *_ = self.merge(method)
                plain = self.move_plainly(method, bytes_in, bytes_out)
            turns.append(Turn(merge, start_up, plain, bytes_in, bytes_out))
        return turns

    def merge(self, method: str) -> tuple[float, float, int, int]:
        """Seconds of the merge and of the rest of its process, bytes read and written."""
        config = write_recipe(self.work, f"io-{method}", self.recipe(method))
        out = self.start_cold(method)
        usage = run_mixdesk(self.work, config, out)
        events = {event["event"]: event for event in map(json.loads, log_of(config).read_text().splitlines())}
        seconds = events["Merged"]["seconds"]
        return seconds, usage.wall - seconds, events["Planned"]["bytes_in"], events["Planned"]["bytes_out"]

    def move_plainly(self, method: str, bytes_in: int, bytes_out: int) -> float:
        """Seconds for as many bytes of the same files, and as many to the same disk."""
        out = self.start_cold(method)
        started = time.monotonic()
        if read_plainly(self.files(method), bytes_in) != bytes_in:
            raise RuntimeError("the files are smaller than what the merge read")
        out.mkdir()
        write_plainly(out / "model.safetensors", bytes_out)
        return time.monotonic() - started

    def start_cold(self, method: str) -> Path:
        """A place for a result, when neither inputs nor earlier results are in memory."""
        out = fresh_output(self.work, "io-bound")
        forget(self.files(method))
        return out

    def files(self, method: str) -> list[Path]:
        return weight_files(self.experts if method == "passthrough" else models_read(method, self.base, self.experts))

    def recipe(self, method: str) -> dict[str, Any]:
        if method != "passthrough":
            return recipe(method, self.base, self.experts)
        sources = [{"model": str(expert), "layer_range": [0, self.layers]} for expert in self.experts]
        slices = [{"sources": [source]} for source in sources]
        return {"merge_method": method, "slices": slices, "dtype": "bfloat16"}


def numba_seconds() -> str:
    """How long it takes to import numba after torch."""
    code = "import torch, time; began = time.monotonic(); import numba; print(f'{time.monotonic() - began:.1f} s')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "absent"


def add_row(table: Table, method: str, turns: Sequence[Turn]) -> None:
    """Medians, and the spread of the ratio over the turns."""
    ratios = [turn.ratio for turn in turns]
    table.add(
        method,
        f"{turns[0].bytes_in / 1e9:.1f} / {turns[0].bytes_out / 1e9:.1f}",
        *(f"{statistics.median(getattr(turn, name) for turn in turns):.1f}" for name in ("plain", "merge", "start_up")),
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each contestant per method (default 3)")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD", help="some methods")
    parser.add_argument("--layers", type=int, default=64, help="layers of the generated models (default 64)")
    parser.add_argument("--keep", action="store_true", help="leave the generated models where they are")
    add_work(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    work = open_work(arguments.work)
    race = Race(work, arguments.layers)
    print_machine(
        layers=arguments.layers, pairs=arguments.pairs, target=f"at most {TARGET}", loading_numba=numba_seconds()
    )
    table = Table("method         ", "GB in / out", "plain s", "merge s", "start-up s", "merge / plain   ")
    try:
        for method in arguments.only:
            add_row(table, method, race.run(method, arguments.pairs))
    finally:
        shutil.rmtree(work / "out", ignore_errors=True)
        if not arguments.keep:
            shutil.rmtree(race.folder)


if __name__ == "__main__":
    main()
