"""Compares merges here with the same merges in mergekit: wall time, processor time, anonymous memory.

    python tests/benchmarks/compare.py [--pairs 3] [--cold] [--without-kernels] [--only linear ties] [--layers 16]

Makes what it needs under ``.benchmarks/``: a virtual environment with mergekit, and generated bfloat16 checkpoints
(16 layers: 246 million parameters each).  The tools run in turns on the same files, so that a change of the machine's
load meets all of them; who begins changes from turn to turn.  Start-up counts, as it does for people.  Prints a
Markdown table of medians, with lowest and highest ratio in brackets, and writes ``.benchmarks/results.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from checkpoints import make_family
from processes import Usage, forget, measure, warm
from recipes import METHODS, models_read, recipe
from safetensors import safe_open
from workplace import (
    REPOSITORY,
    WITHOUT_KERNELS,
    Table,
    add_work,
    fresh_output,
    machine,
    open_work,
    print_machine,
    weight_files,
    write_recipe,
)

PEER = "mergekit==0.1.5"


@dataclass(frozen=True)
class Tool:
    """A competitor: its program, to which a recipe and an output folder are added, and options after those."""

    name: str
    program: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def peer(work: Path) -> Tool:
    """mergekit in a virtual environment of its own, with the torch that we run on."""
    environment = work / "mergekit-venv"
    program = environment / "bin" / "mergekit-yaml"
    if not program.exists():
        venv.create(environment, with_pip=True, clear=True)
        for requirement in (f"torch=={version('torch').partition('+')[0]}", PEER):
            subprocess.run([environment / "bin" / "pip", "install", "--quiet", requirement], check=True)
    return Tool("mergekit", (str(program),), ("--quiet",))


def ours(without_kernels: bool) -> Iterator[Tool]:
    """Mixdesk, and when asked for a second time on torch alone."""
    program = (sys.executable, "-m", "merger", "run")
    yield Tool("mixdesk", program)
    if without_kernels:
        yield Tool("mixdesk (torch only)", program, environment=WITHOUT_KERNELS)


@dataclass(frozen=True)
class Turn:
    """One run of each tool on the same files, one right after the other."""

    method: str
    cold: bool
    usages: dict[str, Usage]

    def ratio(self, tool: str, quantity: str) -> float:
        return float(getattr(self.usages["mergekit"], quantity) / getattr(self.usages[tool], quantity))


class Comparison:
    """The files of one comparison and the tools; mergekit is the first of them."""

    def __init__(self, work: Path, layers: int, without_kernels: bool) -> None:
        self.work = work
        self.base, self.experts = make_family(work / f"checkpoints-{layers}", layers)
        self.tools = (peer(work), *ours(without_kernels))

    def get_ready(self, method: str) -> None:
        """Fill the caches of libraries and compiled kernels with runs that do not count."""
        log = self.work / "help.log"
        measure([*self.tools[0].program, "--help"], cwd=self.work, log=log)
        for tool in self.tools[1:]:
            self.run(tool, method)

    def take_turn(self, method: str, *, cold: bool, first: int) -> Turn:
        order = [*self.tools[first % len(self.tools) :], *self.tools[: first % len(self.tools)]]
        files = weight_files(models_read(method, self.base, self.experts))
        size = sum(file.stat().st_size for file in files)
        usages = {}
        for tool in order:
            fresh_output(self.work, f"{tool.name}-{method}")
            (forget if cold else warm)(files)
            usages[tool.name] = usage = self.run(tool, method)
            _warn_if_not(cold, usage.disk / size, f"{tool.name} {method}")
        return Turn(method, cold, usages)

    def run(self, tool: Tool, method: str) -> Usage:
        config = write_recipe(self.work, method, recipe(method, self.base, self.experts))
        out = fresh_output(self.work, f"{tool.name}-{method}")
        environment = {"HF_HUB_OFFLINE": "1", **tool.environment}
        command = [*tool.program, str(config), str(out), *tool.options]
        log = self.work / f"{tool.name}-{method}.log"
        return measure(command, cwd=REPOSITORY, log=log, environment=environment)

    def difference(self, tool: Tool, method: str) -> float:
        """Norm of the difference of the two last results, relative to the norm of mergekit's."""
        squares = {"difference": 0.0, "peer": 0.0}
        theirs, mine = (dict(_tensors(self.work / "out" / f"{name}-{method}")) for name in ("mergekit", tool.name))
        if theirs.keys() != mine.keys():
            raise RuntimeError(f"the results hold different tensors: {sorted(theirs.keys() ^ mine.keys())}")
        for name, load in theirs.items():
            expected, got = load().double(), mine[name]().double()
            squares["difference"] += float((expected - got).square().sum())
            squares["peer"] += float(expected.square().sum())
        return float((squares["difference"] / squares["peer"]) ** 0.5)

    def clean(self) -> None:
        """Delete the results."""
        shutil.rmtree(self.work / "out", ignore_errors=True)


def _warn_if_not(cold: bool, from_disk: float, what: str) -> None:
    """A warm run must not touch the disk, and a cold one must read everything from it; the kernel counts."""
    if (from_disk < 0.9) if cold else (from_disk > 0.02):
        print(f"{what}: {from_disk:.0%} of the inputs' size came from disk in a {'cold' if cold else 'warm'} run")


def _tensors(folder: Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    for file in sorted(folder.glob("*.safetensors")):
        opened = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 -- safe_open is no mapping
            yield name, lambda opened=opened, name=name: opened.get_tensor(name)


HEADINGS = (
    "method                  ",
    "files",
    "mergekit s/cpu/MB",
    "mixdesk s/cpu/MB",
    "wall x         ",
    "cpu x          ",
    "memory x     ",
    "difference",
)


def add_row(table: Table, tool: str, turns: Sequence[Turn], difference: float) -> None:
    """Medians, and the spread of the ratios over the turns."""
    first = turns[0]
    table.add(
        first.method + tool.removeprefix("mixdesk"),
        "cold" if first.cold else "warm",
        _medians([turn.usages["mergekit"] for turn in turns]),
        _medians([turn.usages[tool] for turn in turns]),
        *(_spread([turn.ratio(tool, quantity) for turn in turns]) for quantity in ("wall", "cpu", "memory")),
        f"{difference:.1e}",
    )


def _medians(usages: Sequence[Usage]) -> str:
    wall, cpu, memory = (statistics.median(getattr(u, name) for u in usages) for name in ("wall", "cpu", "memory"))
    return f"{wall:.1f} / {cpu:.1f} / {memory / 1e6:.0f}"


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"


def compare(comparison: Comparison, method: str, table: Table, *, pairs: int, cold: bool) -> Iterator[Turn]:
    """Print a method's rows, and yield every turn."""
    comparison.get_ready(method)
    for files_are_cold in (False, True) if cold else (False,):
        turns = [comparison.take_turn(method, cold=files_are_cold, first=number) for number in range(pairs)]
        for tool in comparison.tools[1:]:
            add_row(table, tool.name, turns, comparison.difference(tool, method))
        yield from turns


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each tool per method (default 3)")
    parser.add_argument("--cold", action="store_true", help="also compare with the files dropped from the page cache")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=[*METHODS], metavar="METHOD", help="some methods")
    parser.add_argument("--layers", type=int, default=16, help="layers of the generated models (default 16)")
    parser.add_argument("--without-kernels", action="store_true", help="also run Mixdesk without its fused kernels")
    add_work(parser)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    work = open_work(arguments.work)
    comparison = Comparison(work, arguments.layers, arguments.without_kernels)
    print_machine(peer=PEER, layers=arguments.layers, pairs=arguments.pairs)
    results: dict[str, Any] = {**machine(), "peer": PEER, "layers": arguments.layers, "turns": []}
    table, failures = Table(*HEADINGS), []
    for method in arguments.only:
        try:
            for turn in compare(comparison, method, table, pairs=arguments.pairs, cold=arguments.cold):
                results["turns"].append(asdict(turn))
        except RuntimeError as error:  # one method less; the others took their time
            failures.append(f"{method}: {error}")
        comparison.clean()
        (work / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    print("\n".join(["", *failures]), end="")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
