"""What the benchmarks share: the folder they work in, the machine's facts, running Mixdesk, Markdown tables."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from processes import Usage, measure

REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT_KERNELS = {"MIXDESK_KERNELS": "never"}


def add_work(parser: argparse.ArgumentParser) -> None:
    """The option that says where files are kept."""
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".benchmarks", help="where files are kept")


def open_work(folder: Path) -> Path:
    """The working folder, which exists from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def machine() -> dict[str, Any]:
    """What a reader must know of the machine to judge the figures."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numba": version("numba") if importlib.util.find_spec("numba") else "absent",
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def print_machine(**others: object) -> None:
    """One line of facts."""
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in {**machine(), **others}.items()) + "\n")


class Table:
    """A Markdown table whose rows are printed as they come."""

    def __init__(self, *headings: str) -> None:
        self.headings = headings
        self.add(*headings)
        self.add(*("-" * len(heading) for heading in headings))

    def add(self, *cells: str) -> None:
        """Print one row."""
        padded = (cell.ljust(len(heading)) for cell, heading in zip(cells, self.headings, strict=True))
        print("| " + " | ".join(padded) + " |", flush=True)


def weight_files(models: Sequence[Path]) -> list[Path]:
    """The weight files of generated models."""
    return [model / "model.safetensors" for model in models]


def write_recipe(work: Path, name: str, recipe: Mapping[str, Any]) -> Path:
    """Put a recipe into the working folder."""
    file = work / f"{name}.yml"
    file.write_text(yaml.safe_dump(dict(recipe), sort_keys=False), encoding="utf-8")
    return file


def fresh_output(work: Path, name: str) -> Path:
    """A folder for a result, which does not exist: what an earlier run left there is deleted."""
    out = work / "out" / name
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(exist_ok=True)
    return out


def run_mixdesk(
    work: Path, config: Path, out: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Usage:
    """Merge here in a process of its own; its events are in the log beside the recipe (`log_of`)."""
    command = [sys.executable, "-m", "merger", "run", str(config), str(out), "--json", *options]
    return measure(command, cwd=REPOSITORY, log=log_of(config), environment=environment)


def log_of(config: Path) -> Path:
    """Where the events of a merge went."""
    return config.with_suffix(".log")
