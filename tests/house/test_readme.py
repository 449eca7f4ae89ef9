"""What the README shows comes out of the code, and what it tells people to do works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import merger

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The README's code block in a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def test_the_method_table_is_what_the_signatures_say():
    shown = README.split("--markdown -->\n")[1].split("\n<!-- end of methods")[0]
    command = [sys.executable, "-m", "merger", "methods", "--markdown"]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert shown == printed.rstrip("\n"), "put the output of python -m merger methods --markdown into the README"


def test_every_picture_and_link_to_a_file_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (REPOSITORY / link).exists()] == []


def test_the_recipe_it_shows_is_a_recipe(tmp_path):
    recipe = merger.load_recipe(block("yaml", "dare_ties"))
    assert recipe.merge_method == "dare_ties" and not recipe.problems


def test_the_method_it_shows_merges_the_demo(tmp_path):
    plugin = tmp_path / "towards.py"
    plugin.write_text(block("python", "def towards"))
    demo = REPOSITORY / "assets" / "demo"
    command = [sys.executable, "-m", "merger", "merge", "--plugin", str(plugin), "--method", "towards"]
    models = ["--base", str(demo / "base"), "--models", str(demo / "rotated"), str(demo / "mirrored")]
    done = subprocess.run(
        [*command, *models, "--set", "amount", "0.7", "--out", str(tmp_path / "out")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_python_it_shows_runs(tmp_path, monkeypatch):
    demo = REPOSITORY / "assets" / "demo"
    (tmp_path / "recipe.yaml").write_text(
        f"merge_method: linear\nmodels:\n  - model: {demo / 'base'}\n    parameters: {{weight: 1}}\n"
        f"  - model: {demo / 'rotated'}\n    parameters: {{weight: 1}}\n"
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "merger.preview"), "README.md", "exec"), {})
    assert (tmp_path / "merged" / "config.json").exists()


def test_the_commands_it_shows_run_one_after_the_other(tmp_path):
    shutil.copytree(REPOSITORY / "assets" / "demo", tmp_path / "assets" / "demo")
    script = block("bash", "merger sweep").replace("python -m", f"{sys.executable} -m")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (tmp_path / "merged-ties" / "model.safetensors").read_bytes()
    assert {"linear", "ties", "della", "slerp-turned-seen"} <= {
        folder.name for folder in (tmp_path / "sweep").iterdir()
    }
