"""What people and programs see while a merge runs, and how it is stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from merger.cli.report import grouped, size_text, time_text
from merger.errors import Problem
from tests.cli.conftest import Cli, contents, start
from tests.conftest import TinyFamily

SLOW = """
import os
import time

import torch
from merger import merge_method


@merge_method(name="slow_mean")
def slow_mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    \"\"\"Takes its time.\"\"\"
    time.sleep(float(os.environ.get("PAUSE", 0.15)))
    return sum(tensors) / len(tensors)
"""


@pytest.fixture
def slow_run(tiny_family: TinyFamily, tmp_path: Path) -> tuple[object, ...]:
    """A command line whose merge takes about three seconds."""
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    models = "".join(f"  - model: {folder}\n" for folder in tiny_family.experts)
    (tmp_path / "r.yaml").write_text(f"merge_method: slow_mean\nmodels:\n{models}", encoding="utf-8")
    return ("run", tmp_path / "r.yaml", tmp_path / "out", "--plugin", tmp_path / "slow.py", "--workers", 1)


def test_programs_get_every_event_as_a_line(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "linear", "--models", *tiny_family.experts, "--out", tmp_path / "out", "--json")
    outcome = cli(*words)
    kinds = [event["event"] for event in outcome.events if event["event"] != "Working"]
    assert outcome.code == 0 and outcome.err == ""
    assert kinds[0] == "Planned" and kinds[-2:] == ["Verified", "Merged"]
    assert {"TensorMerged", "ShardWritten"} <= set(kinds)
    assert outcome.events[-1]["path"] == str(tmp_path / "out")


def test_people_get_the_path_on_its_own_and_how_to_load_the_model(
    cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    outcome = cli("merge", "--method", "linear", "--models", *tiny_family.experts, "--out", tmp_path / "out")
    assert outcome.out == f"{tmp_path / 'out'}\n"
    assert "Merged in" in outcome.err and "AutoModelForCausalLM.from_pretrained" in outcome.err


def test_warnings_of_the_plan_are_said_once(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    text = f"""
merge_method: linear
base_model: {tiny_family.base}
models: [{{model: {tiny_family.experts[0]}}}]
parameters: {{weight: 1}}
"""
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    outcome = cli("run", tmp_path / "r.yaml", tmp_path / "out")
    assert outcome.code == 0
    assert outcome.err.count("warning: ") == 1
    assert "config and tokenizer" in outcome.err


def test_values_that_are_not_finite_are_reported(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "task", "--base", tiny_family.base, "--models", tiny_family.experts[0])
    wild = (*words, "--lambda", 1e9, "--out-dtype", "float16", "--out")
    outcome = cli(*wild, tmp_path / "out")
    assert outcome.code == 0
    assert "infinite or NaN" in outcome.err and "bfloat16" in outcome.err
    strict = cli(*wild, tmp_path / "strict", "--strict")
    assert strict.code == 2
    assert strict.err.splitlines()[1].startswith("error: ") or strict.err.startswith("error: ")
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_the_journal_and_resume_ends_with_the_same_bytes(
    number: signal.Signals, slow_run: tuple[object, ...], tmp_path: Path
) -> None:
    with start(*slow_run, "--json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "TensorMerged":
                process.send_signal(number)
                break
        rest, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert json.loads(rest.splitlines()[-1]) == {"event": "Cancelled"}
    assert err == ""
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.partial").is_dir()

    quickly = {**os.environ, "PAUSE": "0"}
    resumed = start(*slow_run, "--resume", "--json", env=quickly)
    whole = start("run", slow_run[1], tmp_path / "whole", *slow_run[3:], env=quickly)
    events = [json.loads(line) for line in resumed.communicate(timeout=60)[0].splitlines()]
    whole.communicate(timeout=60)
    assert resumed.returncode == whole.returncode == 0
    assert events[0]["bytes_done"] > 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_people_are_told_how_to_go_on(slow_run: tuple[object, ...]) -> None:
    with start(*slow_run) as process:
        assert process.stderr is not None
        assert "tensors, reading" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.startswith("cancelled: ") and "--resume" in err
    assert "Traceback" not in err


def test_a_signal_outside_of_a_merge_stops_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r.yaml")
    with start("check", tmp_path / "r.yaml", "--no-open") as process, open(tmp_path / "r.yaml", "wb"):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "cancelled: stopped on request.\n"


def test_a_terminal_shows_a_bar(slow_run: tuple[object, ...]) -> None:
    parent, child = pty.openpty()
    with start(*slow_run, stderr=child, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(child)
        seen = b""
        while not (b".weight" in seen and b"/s" in seen):
            seen += os.read(parent, 4096)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            try:
                seen += os.read(parent, 4096)
            except OSError:  # the last writer is gone
                break
    os.close(parent)
    text = seen.decode()
    assert "\x1b[" in text and "\u2501" in text
    assert "/10.9 kB" in text and "/s" in text
    assert process.wait() == 130


def test_a_reader_that_leaves_ends_the_command_quietly(tiny_family: TinyFamily) -> None:
    with start("methods") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert err == ""


# How findings and numbers are said


def test_findings_of_one_kind_share_a_line() -> None:
    problems = [Problem("is missing.", f"layer {i}", "Add it.") for i in range(5)] + [Problem("other")]
    assert grouped(problems) == ["layer 0, layer 1, layer 2 and 2 more: is missing. Add it.", "other"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (90_868_728, "90.9 MB"), (5e9, "5 GB"), (2.5e12, "2.5 TB")],
)
def test_sizes_read_well(count: float, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.25, "0.2 s"), (59, "59.0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min")])
def test_times_read_well(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
