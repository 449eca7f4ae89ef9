"""Help and refusals come at once: nothing heavy is imported for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from merger.cli import COMMANDS
from tests.cli.conftest import REPOSITORY, start
from tests.conftest import TinyFamily

HEAVY = ("torch", "numba", "numpy", "pandas", "yaml", "rich")
PROBE = """
import sys
from merger.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("imported:", *[name for name in {heavy} if name in sys.modules])
"""


def heavy_imports(*words: object, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """What the command line imported by the time it ended."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=heavy), *map(str, words)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("words", [(), ("--help",), *[(command.name, "--help") for command in COMMANDS]])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    assert heavy_imports(*words) == []


@pytest.mark.parametrize(
    "words",
    [
        ("mrege",),
        ("merge", "--method", "linear"),
        ("merge", "--method", "linear", "--models", "a", "b", "--weight", "x", "--out", "o"),
        ("run", "recipe.yaml", "out", "--wrokers", "3"),
    ],
)
def test_a_wrong_command_line_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    assert heavy_imports(*words) == []


def test_inspect_and_an_unknown_method_do_without_torch(tiny_family: TinyFamily) -> None:
    heavy = ("torch", "numba", "pandas")
    assert heavy_imports("inspect", tiny_family.base, *tiny_family.experts, heavy=heavy) == []
    words = ("merge", "--method", "dare-ties", "--models", "a", "b", "--out", "o")
    assert heavy_imports(*words, heavy=heavy) == []


@pytest.mark.parametrize("words", [("methods",), ("methods", "--markdown"), ("methods", "ties"), ("methods", "tise")])
def test_methods_are_listed_and_explained_without_torch(words: tuple[str, ...]) -> None:
    assert heavy_imports(*words, heavy=("torch", "numba", "numpy", "pandas")) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "ties"),
        ("--method", "linear", "--weight", "1", "2", "3"),
        ("--method", "linear", "--set", "wieght", "1"),
        ("--method", "ties", "--base", "c", "--density", "1.5"),
    ],
)
def test_options_that_do_not_fit_the_method_are_refused_without_torch(options: tuple[str, ...]) -> None:
    words = ("merge", "--models", "a", "b", "--out", "o", *options)
    assert heavy_imports(*words, heavy=("torch", "numba", "numpy", "pandas")) == []


def test_a_merge_imports_nothing_heavy_but_torch(tiny_family: TinyFamily, tmp_path: Path) -> None:
    """Each of these takes a second or more, and a small merge is over sooner."""
    heavy = ("pandas", "plotly", "gradio", "scipy", "transformers", "huggingface_hub", "safetensors", "torch._dynamo")
    models = ("--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    assert heavy_imports("merge", "--method", "linear", *models, heavy=heavy) == []
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_help_appears_within_half_a_second() -> None:
    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "merger", "--help"], cwd=REPOSITORY, capture_output=True, check=True)
        return time.perf_counter() - began

    assert min(seconds() for _ in range(5)) < 0.5


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_trouble(closed: str) -> None:
    command = f'"{sys.executable}" -m merger methods slerp {closed}'
    done = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("methods", "nope", "--json"), ("methods", "slerp", "--json"), ("methods", "slerp")])
def test_output_that_cannot_be_written_is_said_on_the_other_stream(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        process = start(*words, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("error: ") and "Traceback" not in err
