"""What the program imports is what its requirements install: nothing comes by luck with something else."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE_OF = {"yaml": "PyYAML"}
TYPING_ONLY = {"typing_extensions"}
"""Imported under TYPE_CHECKING alone."""


def imported() -> set[str]:
    """Top-level names that the program imports."""
    files = [REPOSITORY / "app.py", *REPOSITORY.glob("merger/**/*.py"), *REPOSITORY.glob("components/**/*.py")]
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def test_every_third_party_import_is_a_requirement():
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    required = {re.split(r"[<>=~!\[; ]", line)[0].lower() for line in lines if line and not line.startswith("#")}
    ours = {"app", "components", "merger"}
    third_party = imported() - set(sys.stdlib_module_names) - ours - TYPING_ONLY
    missing = {name for name in third_party if PACKAGE_OF.get(name, name).lower() not in required}
    assert not missing


def test_every_requirement_is_bounded_on_both_sides():
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line and not re.fullmatch(r"[\w.-]+>=[\d.]+,<[\d.]+", line)] == []
