"""Stands in for ``python -m merger run``: same arguments, same lines, no torch.

The recipe is JSON: ``tensors`` steps of ``pause`` seconds, then ``files`` (name to text), then ``end``.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

TENSOR_BYTES = 100


def say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def cancelled(number: int, frame: object) -> None:
    say("Cancelled")
    sys.exit(130)


def main() -> None:
    recipe, out, *options = sys.argv[1:]
    say_how = json.loads(Path(recipe).read_text())
    if say_how.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, cancelled)
    target = Path(out)
    partial = target.parent / f".{target.name}.partial"
    partial.mkdir(exist_ok="--resume" in options)
    (partial / "arguments.json").write_text(json.dumps(options))
    merge(say_how, partial)
    finish(say_how, partial, target)


def merge(recipe: dict[str, Any], partial: Path) -> None:
    tensors = recipe.get("tensors", 2)
    journal = partial / "journal"
    done = len(journal.read_text()) if journal.exists() else 0
    say(
        "Planned",
        tensors=tensors,
        bytes_in=1000,
        bytes_out=tensors * TENSOR_BYTES,
        bytes_done=done * TENSOR_BYTES,
        memory=1,
        problems=[],
    )
    print("a stray line that is no event", flush=True)
    for number in range(done, tensors):
        time.sleep(recipe.get("pause", 0))
        with journal.open("a") as file:
            file.write(".")
        name, written = f"layers.{number}.weight", (number + 1) * TENSOR_BYTES
        say("TensorMerged", name=name, layer=number, role="mlp", done=number + 1, total=tensors)
        say("Working", tensor=name, bytes_done=written, bytes_out=tensors * TENSOR_BYTES, bytes_per_second=2000.0,
            seconds_left=1.5)  # fmt: skip


def finish(recipe: dict[str, Any], partial: Path, target: Path) -> None:
    end = recipe.get("end", "ok")
    if end == "fail":
        say("Failed", problems=recipe["problems"])
        sys.exit(2)
    if end == "crash":
        print(recipe.get("last_words", "ouch"), file=sys.stderr)
        sys.exit(1)
    for name, text in recipe.get("files", {"model.safetensors": "weights"}).items():
        place = partial / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (partial / "journal").unlink()
    say("Verified", files=1, tensors=2, bytes=200, non_finite={})
    partial.rename(target)
    say("Merged", path=str(target), seconds=0.5, bytes_out=200, bytes_read=1000)


if __name__ == "__main__":
    main()
