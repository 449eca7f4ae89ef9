"""Shows what a plan costs: processor time and memory against the number of tensors, and that their size is no matter.

    python tests/benchmarks/planning.py [--tensors 2000 4000 8000 16000] [--size 4096] [--repeats 3]

Mixtures of experts with four models each, of which only the headers are really on the disk (sparse files).  Recipes
have gradients and filters.  A point is the least of its repetitions: loading the recipe, opening the models, planning.
Imports are made before.  Memory is what Python allocates at most, from a run of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from workplace import REPOSITORY, Table, add_work, open_work, print_machine

sys.path.insert(0, str(REPOSITORY))

import merger

MODELS = 4
LAYERS = 64
PARTS = [f"self_attn.{part}_proj" for part in "qkvo"] + ["input_layernorm", "post_attention_layernorm", "mlp.gate"]
WEIGHT = "[{filter: q_proj, value: [0.1, 0.5]}, {filter: experts.1., value: 0.4}, {value: [0.5, 0.2, 0.9]}]"
METHODS = ("linear", "ties", "slerp")


def names(tensors: int) -> list[str]:
    """The names of a mixture of experts with about so many weights."""
    experts = max(1, round((tensors / LAYERS - len(PARTS)) / 3))
    found = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    for layer in range(LAYERS):
        inside = PARTS + [f"mlp.experts.{expert}.w{part}" for expert in range(experts) for part in (1, 2, 3)]
        found += [f"model.layers.{layer}.{part}.weight" for part in inside]
    return found


def write_model(folder: Path, weights: list[str], size: int) -> Path:
    """One file whose header says that every weight is a square bfloat16 matrix; the rest is a hole."""
    folder.mkdir(parents=True)
    step = 2 * size * size
    entries = {
        name: {"dtype": "BF16", "shape": [size, size], "data_offsets": [place * step, (place + 1) * step]}
        for place, name in enumerate(weights)
    }
    header = json.dumps(entries).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + step * len(weights))
    return folder


def recipe(method: str, models: list[Path]) -> str:
    """A recipe with gradients and filters at several levels."""
    base, *tuned = models
    if method == "slerp":
        return (
            f"merge_method: slerp\nbase_model: {base}\nmodels: [{{model: {tuned[0]}}}]\nparameters: {{t: {WEIGHT}}}\n"
        )
    own = f"weight: {WEIGHT}" + ("" if method == "linear" else ", density: [0.3, 0.9]")
    lines = [f"  - {{model: {model}, parameters: {{{own}}}}}" for model in tuned]
    first = "" if method == "linear" else f"base_model: {base}\n"
    return f"merge_method: {method}\n{first}models:\n" + "\n".join(lines) + "\n"


def plan(text: str) -> int:
    """Load and plan; returns the number of tensors."""
    made = merger.make_plan(merger.load_recipe(text))
    made.close()
    made.require()
    return len(made.outputs)


def seconds(work: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def peak(text: str) -> int:
    """Most bytes that Python holds while planning."""
    tracemalloc.start()
    plan(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, nargs="+", default=[2000, 4000, 8000, 16000])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of every tensor")
    parser.add_argument("--repeats", type=int, default=3)
    add_work(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    work = open_work(arguments.work) / "planning"
    print_machine(repeats=arguments.repeats)
    table = Table("method", "tensors", "bytes of each", "cpu s", "cpu µs per tensor", "MB", "bytes per tensor")
    for size in (2, arguments.size):
        for tensors in arguments.tensors:
            weights = names(tensors)
            models = [write_model(work / str(model), weights, size) for model in range(MODELS)]
            for method in METHODS:
                text = recipe(method, models)
                count = plan(text)
                best = min(seconds(lambda text=text: plan(text)) for _ in range(arguments.repeats))
                most = peak(text)
                cells = [f"{best:.2f}", f"{best / count * 1e6:.0f}", f"{most / 1e6:.0f}", f"{most / count:.0f}"]
                table.add(method, str(count), str(2 * size * size), *cells)
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
