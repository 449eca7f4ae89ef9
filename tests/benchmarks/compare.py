"""Compares a merge here with the same merge in mergekit: wall time, CPU time, anonymous memory.

    python tests/benchmarks/compare.py [--pairs 3] [--cold] [--only linear ties] [--layers 16]

Makes what it needs under ``.benchmarks/``: a virtual environment with mergekit, and generated
bfloat16 checkpoints (16 layers: 246 million parameters each).  The two tools run in turns on
the same files, so that a change of the machine's load meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from checkpoints import make_family
from processes import Usage, forget, measure, warm
from safetensors import safe_open

REPOSITORY = Path(__file__).resolve().parents[2]
PEER = "mergekit==0.1.5"
METHODS = ("linear", "slerp", "task_arithmetic", "ties", "dare_ties")


def recipe(method: str, base: Path, experts: Sequence[Path]) -> dict[str, Any]:
    """The recipe of one comparison, in the vocabulary that both tools read."""
    if method == "slerp":
        models: list[dict[str, Any]] = [{"model": str(base)}, {"model": str(experts[0])}]
        return {
            "merge_method": method,
            "base_model": str(base),
            "models": models,
            "parameters": {"t": 0.4},
            "dtype": "bfloat16",
        }
    weights = (0.5, 0.3, 0.2)
    density = {"density": 0.5} if method in {"ties", "dare_ties"} else {}
    models = [
        {"model": str(expert), "parameters": {"weight": weight, **density}}
        for expert, weight in zip(experts, weights, strict=True)
    ]
    bases = {} if method == "linear" else {"base_model": str(base)}
    return {"merge_method": method, **bases, "models": models, "dtype": "bfloat16"}


@dataclass(frozen=True)
class Tool:
    """One of the two competitors: its name and the command for a recipe and an output folder."""

    name: str
    command: Callable[[Path, Path], list[str]]


def ours() -> Tool:
    return Tool("mixdesk", lambda config, out: [sys.executable, "-m", "merger", "run", str(config), str(out)])


def peer(work: Path) -> Tool:
    """mergekit in a virtual environment of its own, with the torch that we run on."""
    environment = work / "mergekit-venv"
    program = environment / "bin" / "mergekit-yaml"
    if not program.exists():
        venv.create(environment, with_pip=True, clear=True)
        for requirement in (f"torch=={version('torch').partition('+')[0]}", PEER):
            subprocess.run([environment / "bin" / "pip", "install", "--quiet", requirement], check=True)
    return Tool("mergekit", lambda config, out: [str(program), str(config), str(out), "--quiet"])


@dataclass(frozen=True)
class Pair:
    """One run of each tool on the same files, one right after the other."""

    method: str
    cold: bool
    peer: Usage
    ours: Usage

    def ratio(self, field: str) -> float:
        return float(getattr(self.peer, field) / getattr(self.ours, field))


class Comparison:
    """The files of one comparison and the two tools."""

    def __init__(self, work: Path, layers: int) -> None:
        self.work = work
        self.base, self.experts = make_family(work / f"checkpoints-{layers}", layers)
        self.tools = (peer(work), ours())

    def inputs(self, method: str) -> list[Path]:
        """The weight files that a method reads."""
        models = {"linear": self.experts, "slerp": [self.base, self.experts[0]]}
        return [model / "model.safetensors" for model in models.get(method, [self.base, *self.experts])]

    def run_pair(self, method: str, *, cold: bool, ours_first: bool) -> Pair:
        usages = {}
        for tool in reversed(self.tools) if ours_first else self.tools:
            (forget if cold else warm)(self.inputs(method))
            usages[tool.name] = self.run(tool, method)
        return Pair(method, cold, usages["mergekit"], usages["mixdesk"])

    def run(self, tool: Tool, method: str) -> Usage:
        config = self.work / f"{method}.yml"
        config.write_text(yaml.safe_dump(recipe(method, self.base, self.experts), sort_keys=False), encoding="utf-8")
        out = self.output(tool, method)
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(exist_ok=True)
        log = self.work / f"{tool.name}-{method}.log"
        return measure(tool.command(config, out), cwd=REPOSITORY, log=log, environment={"HF_HUB_OFFLINE": "1"})

    def output(self, tool: Tool, method: str) -> Path:
        return self.work / "out" / f"{tool.name}-{method}"

    def difference(self, method: str) -> float:
        """Norm of the difference of the two last results, relative to the norm of mergekit's."""
        squares = {"difference": 0.0, "peer": 0.0}
        theirs, mine = (dict(_tensors(self.output(tool, method))) for tool in self.tools)
        if theirs.keys() != mine.keys():
            raise RuntimeError(f"the results hold different tensors: {sorted(theirs.keys() ^ mine.keys())}")
        for name, load in theirs.items():
            expected, got = load().double(), mine[name]().double()
            squares["difference"] += float((expected - got).square().sum())
            squares["peer"] += float(expected.square().sum())
        return (squares["difference"] / squares["peer"]) ** 0.5


def _tensors(folder: Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    for file in sorted(folder.glob("*.safetensors")):
        opened = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 -- safe_open is no mapping
            yield name, lambda opened=opened, name=name: opened.get_tensor(name)


HEADINGS = (
    "method", "files", "mergekit s/cpu/MB", "mixdesk s/cpu/MB", "wall x", "cpu x", "memory x", "difference"
)  # fmt: skip


def row(pairs: Sequence[Pair], difference: float) -> tuple[str, ...]:
    """One line of the table: medians, and the spread of the ratios over the pairs."""
    first = pairs[0]
    return (
        first.method,
        "cold" if first.cold else "warm",
        _medians([pair.peer for pair in pairs]),
        _medians([pair.ours for pair in pairs]),
        *(_spread([pair.ratio(field) for pair in pairs]) for field in ("wall", "cpu", "memory")),
        f"{difference:.1e}",
    )


def _medians(usages: Sequence[Usage]) -> str:
    wall, cpu, memory = (statistics.median(getattr(u, field) for u in usages) for field in ("wall", "cpu", "memory"))
    return f"{wall:.1f} / {cpu:.1f} / {memory / 1e6:.0f}"


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"


def print_row(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cell.ljust(len(heading)) for cell, heading in zip(cells, HEADINGS, strict=True)) + " |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each tool per method (default 3)")
    parser.add_argument("--cold", action="store_true", help="also compare with the files dropped from the page cache")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD", help="some methods")
    parser.add_argument("--layers", type=int, default=16, help="layers of the generated models (default 16)")
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".benchmarks", help="where files are kept")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(work, arguments.layers)
    print(
        f"{os.cpu_count()} cores, torch {version('torch')}, {PEER}, {arguments.pairs} pairs, medians (lowest-highest)"
    )
    start_up = measure([sys.executable, "-c", "import torch"], cwd=work, log=work / "start-up.log")
    print(f"of the time of both, importing torch takes {start_up.wall:.1f} s wall, {start_up.cpu:.1f} s CPU")
    print_row(HEADINGS)
    print_row(["-" * len(heading) for heading in HEADINGS])
    results: list[dict[str, Any]] = []
    for method in arguments.only:
        for cold in (False, True) if arguments.cold else (False,):
            pairs = [
                comparison.run_pair(method, cold=cold, ours_first=bool(turn % 2)) for turn in range(arguments.pairs)
            ]
            print_row(row(pairs, comparison.difference(method)))
            results.extend(asdict(pair) for pair in pairs)
    (work / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
