"""``sweep``: every method over the same models."""

from __future__ import annotations

import json
from pathlib import Path

from merger.recipe import Recipe
from tests.cli.conftest import Cli, contents
from tests.conftest import TinyFamily

OVER_ALL = {"linear", "task", "ties", "dare_ties", "dare_linear", "della", "della_linear"}


def recipe(folder: Path) -> Recipe:
    return Recipe.from_yaml((folder / "recipe.yaml").read_text(encoding="utf-8"))


def test_every_method_gets_a_folder_and_slerp_one_per_pair(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("sweep", "--base", tiny_family.base, "--models", *tiny_family.experts, "--labels", "c", "l", "m")
    outcome = cli(*words, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    folders = {folder.name for folder in (tmp_path / "out").iterdir()}
    assert folders == OVER_ALL | {"slerp-c-l", "slerp-c-m", "slerp-l-m"}
    assert all((tmp_path / "out" / name / "model.safetensors").exists() for name in folders)
    table = [line.split() for line in outcome.out.splitlines()[2:]]
    assert {row[0] for row in table} == folders and all(row[1] == "merged" for row in table)


def test_a_folder_of_a_sweep_is_what_merge_makes(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    models = ("--models", *tiny_family.experts[:2])
    sweep = cli("sweep", "--base", tiny_family.base, *models, "--weight", 3, 1, "--seed", 2, "--out", tmp_path / "out")
    assert sweep.code == 0
    task_vectors = ("--base", tiny_family.base, "--density", 0.5)
    options = {"linear": (), "task": task_vectors[:2], "ties": task_vectors, "dare_ties": task_vectors}
    for method, more in options.items():
        words = ("merge", "--method", method, *models, *more, "--weight", 3, 1, "--seed", 2)
        assert cli(*words, "--out", tmp_path / method).code == 0
        assert contents(tmp_path / method) == contents(tmp_path / "out" / method)
    assert recipe(tmp_path / "out" / "slerp-code-law").parameters["t"] == 0.5


def test_one_that_fails_does_not_stop_the_rest(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    (tmp_path / "out" / "ties").mkdir(parents=True)
    (tmp_path / "out" / "ties" / "mine.txt").write_text("x", encoding="utf-8")
    words = ("sweep", "--base", tiny_family.base, "--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    outcome = cli(*words)
    assert outcome.code == 2
    rows = {line.split()[0]: line for line in outcome.out.splitlines()[2:]}
    assert "failed" in rows["ties"] and "--overwrite" in rows["ties"]
    assert all("merged" in row for name, row in rows.items() if name != "ties")
    assert (tmp_path / "out" / "ties" / "mine.txt").exists()
    assert cli(*words, "--overwrite").code == 0
    assert not (tmp_path / "out" / "ties" / "mine.txt").exists()


def test_programs_see_which_merge_an_event_is_of(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("sweep", "--base", tiny_family.base, "--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    *events, last = (json.loads(line) for line in cli(*words, "--json").out.splitlines())
    assert {event["merge"] for event in events} == OVER_ALL | {"slerp-code-law"}
    assert last["event"] == "Swept"
    assert [result["problems"] for result in last["results"]] == [[]] * 8
