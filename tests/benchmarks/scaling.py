"""Shows that a merge's time grows in a straight line, with the parameters and with the number of models.

    python tests/benchmarks/scaling.py [--repeats 3] [--only linear ties] [--layers 4 8 16 32 64] [--models 2 3 ... 12]

Warm files.  Parameters: the first 4 to 64 layers of the same models (base and three fine-tunes of 64 layers, 6.3 GB).
Models: 2 to 12 fine-tunes of 4 layers (2.9 GB).  Every point is the median of its repetitions; the line through them
is fitted by least squares, its intercept is what every merge costs (start-up, vocabulary), and the last column of a
point is how far it lies from the line.  The files are deleted at the end, unless ``--keep``.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints import make_family, parameter_count
from processes import Usage, warm
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

SHOWN = ("linear", "ties", "dare_ties")
FEW_LAYERS = 4
BAR = 30


@dataclass(frozen=True)
class Line:
    """A straight line through points, by least squares."""

    slope: float
    intercept: float

    @classmethod
    def fit(cls, xs: Sequence[float], ys: Sequence[float]) -> Line:
        slope, intercept = statistics.linear_regression(xs, ys)
        return cls(slope, intercept)

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


@dataclass(frozen=True)
class Merge:
    """One merge of a series: how large it is, its recipe, and the models that it reads."""

    size: float
    recipe: dict[str, Any]
    models: list[Path]


def by_parameters(method: str, models: tuple[Path, list[Path]], layers: Sequence[int]) -> list[Merge]:
    """The same models, and more and more of their layers; sizes in millions of parameters."""
    read = models_read(method, *models)
    return [Merge(parameter_count(count) / 1e6, recipe(method, *models, layers=count), read) for count in layers]


def by_models(method: str, models: tuple[Path, list[Path]], counts: Sequence[int]) -> list[Merge]:
    """The same layers of more and more models."""
    base, experts = models
    chosen = {count: experts[:count] for count in counts}
    return [Merge(n, recipe(method, base, some), models_read(method, base, some)) for n, some in chosen.items()]


class Runner:
    """Runs merges of a series again and again."""

    def __init__(self, work: Path, repeats: int, without_kernels: bool) -> None:
        self.work, self.repeats = work, repeats
        self.environment = WITHOUT_KERNELS if without_kernels else None

    def measure(self, merges: Sequence[Merge]) -> dict[str, list[float]]:
        """Median wall and processor seconds of each merge; the whole series is run before it is repeated."""
        self.run(merges[0])  # does not count: it fills the caches of libraries
        rounds = [[self.run(merge) for merge in merges] for _ in range(self.repeats)]
        usages = list(zip(*rounds, strict=True))
        return {
            name: [statistics.median(getattr(usage, name) for usage in same) for same in usages]
            for name in ("wall", "cpu")
        }

    def run(self, merge: Merge) -> Usage:
        config = write_recipe(self.work, "scaling", merge.recipe)
        out = fresh_output(self.work, "scaling")
        warm(weight_files(merge.models))
        usage = run_mixdesk(self.work, config, out, environment=self.environment)
        shutil.rmtree(out)
        return usage


def show(method: str, quantity: str, sizes: Sequence[float], seconds: dict[str, list[float]]) -> list[str]:
    """Print the points and draw them beside their lines; returns one sentence per line."""
    sentences = []
    for name, values in seconds.items():
        line = Line.fit(sizes, values)
        farthest = 0.0
        print(f"\n{method}, {name} seconds against {quantity}\n")
        table = Table(quantity, "seconds", "line   ", "off  ", "# measured, o line".ljust(BAR + 1))
        for size, value in zip(sizes, values, strict=True):
            off = value / line.at(size) - 1
            farthest = max(farthest, abs(off))
            bar = _bar(value / max(values), line.at(size) / max(values))
            table.add(f"{size:g}", f"{value:.2f}", f"{line.at(size):.2f}", f"{off:+.1%}", f"`{bar}`")
        sentences.append(
            f"{method}, {name} seconds against {quantity}: slope {line.slope:.4f}, intercept {line.intercept:.2f}, "
            f"largest deviation of a point {farthest:.1%}"
        )
    return sentences


def _bar(value: float, line: float) -> str:
    marks = list(("#" * round(value * BAR)).ljust(BAR + 1))
    marks[min(BAR, max(0, round(line * BAR)))] = "o"
    return "".join(marks)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each merge (default 3)")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=SHOWN, metavar="METHOD", help="some methods")
    parser.add_argument("--layers", nargs="+", type=int, default=[4, 8, 16, 32, 64], help="(default 4 8 16 32 64)")
    parser.add_argument("--models", nargs="+", type=int, default=[*range(2, 13)], help="(default 2 to 12)")
    parser.add_argument("--without-kernels", action="store_true", help="run without the fused kernels")
    parser.add_argument("--keep", action="store_true", help="leave the generated models where they are")
    add_work(parser)
    return parser.parse_args()


def series(arguments: argparse.Namespace, work: Path) -> Iterator[tuple[str, Callable[[str], list[Merge]], Path]]:
    """What grows, the merges of a method, and the folder of their models."""
    deep = work / f"checkpoints-{max(arguments.layers)}"
    models = make_family(deep, max(arguments.layers))
    yield "parameters (millions)", lambda method: by_parameters(method, models, arguments.layers), deep
    many = work / f"checkpoints-{FEW_LAYERS}"
    family = make_family(many, FEW_LAYERS, max(arguments.models))
    yield "models", lambda method: by_models(method, family, arguments.models), many


def main() -> None:
    arguments = parse_arguments()
    work = open_work(arguments.work)
    print_machine(repeats=arguments.repeats)
    runner = Runner(work, arguments.repeats, arguments.without_kernels)
    sentences = []
    for quantity, merges_of, folder in series(arguments, work):
        for method in arguments.only:
            merges = merges_of(method)
            sentences += show(method, quantity, [merge.size for merge in merges], runner.measure(merges))
        if not arguments.keep:
            shutil.rmtree(folder)
    print("\n" + "\n".join(sentences))


if __name__ == "__main__":
    main()
