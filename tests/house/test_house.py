"""The rules of the house: floors, doors, and what must never be written down."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import merger

REPOSITORY = Path(__file__).resolve().parents[2]

PUBLIC_NAMES = {
    # journeys
    "describe_methods",
    "inspect",
    "load_plugin",
    "load_recipe",
    "load_recipes",
    "make_plan",
    "merge",
    "merge_in_memory",
    "merge_recipes",
    "plan_recipes",
    "merge_state_dicts",
    "preview",
    "take_sample",
    # values
    "ModelEntry",
    "ModelReference",
    "OutputTensor",
    "Plan",
    "Preview",
    "Recipe",
    "Report",
    "Policy",
    "RunOptions",
    "Sample",
    "Slice",
    "TensorSpec",
    # jobs
    "Job",
    "JobNotFound",
    "JobStore",
    "OutputFile",
    "new_owner",
    # events
    "Event",
    "Merged",
    "Planned",
    "RecipeBegun",
    "ShardWritten",
    "TensorMerged",
    "Verified",
    "Working",
    # errors
    "Cancelled",
    "CheckpointError",
    "InputChangedError",
    "MergerError",
    "MethodError",
    "NonFiniteError",
    "OutputError",
    "PlanError",
    "Problem",
    "RecipeError",
    "UserError",
    # writing merge methods
    "Between",
    "Block",
    "ConfigParameterDef",
    "Fold",
    "ImmutableMap",
    "MergeMethod",
    "MergeTensorInput",
    "MethodFacts",
    "Noise",
    "Task",
    "TensorContext",
    "WeightInfo",
    "merge_method",
}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_imports_keep_to_their_floors():
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_engine_has_exactly_these_public_names():
    assert set(merger.__all__) == PUBLIC_NAMES


def test_public_functions_keep_their_names_after_modules_of_the_same_name_were_imported():
    names = sorted(PUBLIC_NAMES)
    result = run_python(
        "import importlib, pkgutil, merger\n"
        "for module in pkgutil.walk_packages(merger.__path__, 'merger.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        f"modules = [name for name in {names} if not callable(getattr(merger, name))]\n"
        "assert not modules, f'not callable: {modules}'"
    )
    assert result.returncode == 0, result.stderr


def test_importing_the_engine_does_not_import_torch():
    result = run_python("import merger, sys; assert 'torch' not in sys.modules")
    assert result.returncode == 0, result.stderr


def page_files() -> list[Path]:
    return [REPOSITORY / "app.py", *sorted((REPOSITORY / "components").rglob("*.py"))]


def engine_names_used(file: Path) -> Iterator[str]:
    """Everything that a file takes from the engine: names from `merger`, or a module inside it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "merger":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("merger."):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("merger."))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "merger":
            yield node.attr


@pytest.mark.parametrize("file", page_files(), ids=lambda file: file.name)
def test_the_page_uses_only_public_names_of_the_engine(file: Path):
    assert set(engine_names_used(file)) <= PUBLIC_NAMES


MACHINE_PATH = re.compile(r"(?<![\w./}$])/(?:home|root|tmp|work|Users|mnt)/\w+")


def text_files_outside_tests() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        file = REPOSITORY / name
        if not name.startswith("tests/") and file.is_file() and b"\0" not in file.read_bytes():
            yield file


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="only git knows which files belong to the project")
def test_no_file_outside_the_tests_names_a_place_on_somebodys_machine():
    found = {
        f"{file.relative_to(REPOSITORY)}: {match.group()}"
        for file in text_files_outside_tests()
        for match in MACHINE_PATH.finditer(file.read_text(encoding="utf-8"))
    }
    assert not found
