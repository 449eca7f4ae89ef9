"""Results of an established implementation, where ours is meant to agree with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = 63


def test_every_shared_case_agrees(shared_cases: Path, tmp_path: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    command = f"{sys.executable} -m merger run {{config}} {{out}} --seed {{seed}}"
    checker = shared_cases / "golden_merges" / "check.py"
    run = subprocess.run(
        [sys.executable, str(checker), "--cmd", command, "--keep", str(tmp_path)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert run.stdout.count(" PASS ") >= CASES
