"""What the README shows comes out of the code, and what it tells people to do works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import merger
from merger.methods import registry

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


def test_the_recipes_it_shows_build_on_each_other():
    skills, last = merger.load_recipes(block("yaml", "name: skills"))
    assert skills.name == "skills" and [entry.model.path for entry in last.models] == ["skills"]
    assert not skills.problems and not last.problems


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


@pytest.fixture
def new_methods():
    """Forgets the methods that a test defines."""
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        registry.unregister(name)


def test_the_test_of_a_method_that_it_shows_passes(tmp_path, monkeypatch, new_methods):
    (tmp_path / "towards.py").write_text(block("python", "def towards"))
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", 'load_plugin("towards.py")'), "README.md", "exec"), {})


def test_the_measuring_method_it_shows_gives_the_mean_the_norm_of_the_base(tmp_path, new_methods):
    (tmp_path / "measuring.py").write_text(block("python", "class Norms"))
    assert merger.load_plugin(tmp_path / "measuring.py") == ["mean_like_base"]
    base, first, second = torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    merged = merger.merge_state_dicts([{"w": first}, {"w": second}], "mean_like_base", base={"w": base})
    torch.testing.assert_close(merged["w"], torch.full((2,), 5.0 / 2**0.5))


def test_the_class_it_shows_merges(tmp_path, new_methods):
    (tmp_path / "clipping.py").write_text(block("python", "class Clipped("))
    assert merger.load_plugin(tmp_path / "clipping.py") == ["clipped"]
    models = [{"w": torch.tensor([1.0, -2.0, 0.5])}, {"w": torch.tensor([4.0, -1.0, 0.25])}]
    merged = merger.merge_state_dicts(models, "clipped", weight=[1, 2])
    assert merged["w"].tolist() == [2.0, -2.0, 1.0]


def test_the_python_it_shows_runs(tmp_path, monkeypatch):
    demo = REPOSITORY / "assets" / "demo"
    (tmp_path / "recipe.yaml").write_text(
        f"merge_method: linear\nmodels:\n  - model: {demo / 'base'}\n    parameters: {{weight: 1}}\n"
        f"  - model: {demo / 'rotated'}\n    parameters: {{weight: 1}}\n"
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "merger.preview"), "README.md", "exec"), {})
    assert (tmp_path / "merged" / "config.json").exists()


def test_the_state_dicts_it_shows_merge():
    names = {name: torch.nn.Linear(8, 8) for name in ("model", "code_model", "math_model")}
    before = names["model"].weight.clone()
    exec(compile(block("python", "code_model.state_dict"), "README.md", "exec"), {"merger": merger, **names})
    assert not torch.equal(names["model"].weight, before)


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
