"""Measures the highest anonymous memory of merges, with giant tensors and with ordinary models.

    python tests/benchmarks/memory.py [--elements 1000000000] [--only ties della] [--workers 2] [--keep]

A base and three fine-tunes, each one bfloat16 tensor (1 billion elements: 2 GB a model, 8 GB in all, and 2 GB for a
result; deleted at the end, unless ``--keep``), then models of many layers.  RssAnon of the whole process, torch
included, is sampled every 20 ms; pages of mapped files, which the kernel takes back when it needs them, are in VmHWM
only.  Ends with code 1 when a merge takes more than the limit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoints import make_family, make_giants, parameter_count
from processes import Usage
from recipes import METHODS, models_read, recipe
from workplace import (
    WITHOUT_KERNELS,
    Table,
    add_work,
    fresh_output,
    open_work,
    print_machine,
    run_mixdesk,
    weight_files,
    write_recipe,
)

LIMIT = 250_000_000
SHOWN = ("linear", "ties", "slerp", "dare_ties", "della", "model_stock")


def four_models(method: str, base: Path, experts: Sequence[Path]) -> dict[str, Any]:
    """The recipe, in which also methods without a base mix four models."""
    if METHODS[method].base or METHODS[method].most < 4:
        return recipe(method, base, experts)
    return recipe(method, base, [base, *experts])


def measure_merges(
    work: Path, models: tuple[Path, list[Path]], what: str, arguments: argparse.Namespace
) -> list[Usage]:
    """Print one row for every method."""
    print(f"{what}\n")
    table = Table("method          ", "models", "GB in", "RssAnon MB", "VmHWM MB", "wall s", "cpu s")
    usages = []
    for method in arguments.only:
        config = write_recipe(work, f"memory-{method}", four_models(method, *models))
        out = fresh_output(work, "memory")
        environment = WITHOUT_KERNELS if arguments.without_kernels else None
        options = ("--workers", str(arguments.workers))
        usage = run_mixdesk(work, config, out, *options, environment=environment)
        shutil.rmtree(out)
        usages.append(usage)
        read = models_read(method, *models)
        add_row(table, method, read if METHODS[method].base else [models[0], *read], usage)
    print()
    return usages


def add_row(table: Table, method: str, models: Sequence[Path], usage: Usage) -> None:
    table.add(
        method,
        str(len(models)),
        f"{sum(file.stat().st_size for file in weight_files(models)) / 1e9:.1f}",
        f"{usage.memory / 1e6:.0f}",
        f"{usage.resident / 1e6:.0f}",
        f"{usage.wall:.1f}",
        f"{usage.cpu:.1f}",
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=int, default=10**9, help="elements of the giant tensor (default 1000000000)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the ordinary models (default 16)")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=SHOWN, metavar="METHOD", help="some methods")
    parser.add_argument("--workers", type=int, default=2, help="threads that compute (default 2)")
    parser.add_argument("--limit", type=int, default=LIMIT, help=f"bytes that are allowed (default {LIMIT})")
    parser.add_argument("--without-kernels", action="store_true", help="run without the fused kernels")
    parser.add_argument("--keep", action="store_true", help="leave the giant models where they are")
    add_work(parser)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    work = open_work(arguments.work)
    print_machine(workers=arguments.workers, limit=f"{arguments.limit / 1e6:.0f} MB")
    giants = work / f"giants-{arguments.elements}"
    try:
        what = f"One tensor of {arguments.elements:,} elements a model:"
        usages = measure_merges(work, make_giants(giants, arguments.elements), what, arguments)
    finally:
        shutil.rmtree(work / "out", ignore_errors=True)
        if not arguments.keep:
            shutil.rmtree(giants)
    family = make_family(work / f"checkpoints-{arguments.layers}", arguments.layers)
    what = f"{arguments.layers} layers, {parameter_count(arguments.layers):,} parameters a model:"
    usages += measure_merges(work, family, what, arguments)
    highest = max(usage.memory for usage in usages)
    print(f"highest: {highest / 1e6:.0f} MB of {arguments.limit / 1e6:.0f} MB")
    return int(highest > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
