"""``check``, ``inspect``, ``methods`` and ``preview``: looking without merging."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from merger.methods import registry
from tests.cli.conftest import Cli
from tests.conftest import TinyFamily


def write_recipe(folder: Path, text: str, family: TinyFamily) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text.format(base=family.base, a=family.experts[0], b=family.experts[1]), encoding="utf-8")
    return path


TIES = """
merge_method: ties
base_model: {base}
models:
  - model: {a}
    parameters: {{weight: 1, density: 0.5}}
  - model: {b}
    parameters: {{weight: 1, density: 0.5}}
"""


def test_a_sound_recipe_is_called_fine(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, TIES, tiny_family)
    outcome = cli("check", path)
    assert outcome.code == 0
    assert outcome.out.startswith("The recipe is fine: 21 tensors")
    assert cli("check", path, "--no-open").out == "The recipe is fine.\n"
    (event,) = cli("check", path, "--json").events
    assert event["ok"] is True and event["tensors"] == 21


WITHOUT_MODELS = {
    "a method without its base": ("merge_method: ties\nmodels: [{{model: x/a, parameters: {{weight: 1}}}}]", "base"),
    "too many models": (
        "merge_method: slerp\nbase_model: x/a\nmodels: [{{model: x/b}}, {{model: x/c}}]\nparameters: {{t: 0.5}}",
        "exactly 1 model",
    ),
    "a density above one": (TIES.replace("density: 0.5", "density: 1.5"), "1.5"),
    "the end of a gradient out of bounds": (TIES.replace("density: 0.5", "density: [0, 2]"), "2"),
    "one line of several out of bounds": (
        TIES.replace("density: 0.5", "density: [{{filter: mlp, value: -1}}, {{value: 1}}]"),
        "-1",
    ),
    "text for a number": (TIES.replace("density: 0.5", "density: half"), "half"),
    "a weight that is missing": (TIES.replace("weight: 1, ", ""), "'weight'"),
    "t that is missing": ("merge_method: slerp\nbase_model: x/a\nmodels: [{{model: x/b}}]", "'t'"),
    "weights that add up to zero": (
        "merge_method: linear\nmodels:\n"
        "- {{model: x/a, parameters: {{weight: 1}}}}\n- {{model: x/b, parameters: {{weight: -1}}}}",
        "1, -1 add up to 0",
    ),
    "weights that add up to zero in the last layer": (
        "merge_method: linear\nmodels:\n"
        "- {{model: x/a, parameters: {{weight: [1, 1]}}}}\n- {{model: x/b, parameters: {{weight: [1, -1]}}}}",
        "1, -1 add up to 0",
    ),
    "an unknown method": (TIES.replace("ties", "tise"), "'ties'"),
    "an unknown parameter": (TIES.replace("weight", "wieght"), "'weight'"),
}


@pytest.mark.parametrize("case", WITHOUT_MODELS)
def test_much_can_be_said_without_opening_models(case: str, cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    text, expected = WITHOUT_MODELS[case]
    outcome = cli("check", write_recipe(tmp_path, text, tiny_family), "--no-open")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert expected in outcome.err


def test_models_that_do_not_exist_do_not_matter_until_they_are_opened(
    cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path, TIES.replace("{a}", "someone/something"), tiny_family)
    assert cli("check", path, "--no-open").code == 0
    outcome = cli("check", path)
    assert outcome.code == 2
    assert "someone/something" in outcome.err


def test_missing_models_do_not_hide_what_else_is_wrong(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    text = TIES.replace("{a}", "someone/something").replace("density: 0.5", "density: 3")
    err = cli("check", write_recipe(tmp_path, text, tiny_family)).err
    assert "someone/something" in err and "density" in err


def test_warnings_do_not_fail_the_check(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, TIES + "parameters: {{epsilon: 0.1}}\n", tiny_family)
    outcome = cli("check", path, "--no-open")
    assert outcome.code == 0
    assert "warning: " in outcome.err and "epsilon" in outcome.err


def test_inspect_says_that_a_family_fits(cli: Cli, tiny_family: TinyFamily) -> None:
    outcome = cli("inspect", tiny_family.base, *tiny_family.experts)
    assert outcome.code == 0
    for name in ("base", "code", "law", "math"):
        assert name in outcome.out
    (report,) = cli("inspect", tiny_family.base, *tiny_family.experts, "--json").events
    assert len(report["models"]) == 4


def test_methods_lists_every_method_with_its_parameters(cli: Cli) -> None:
    lines = {line.split()[0].rstrip(","): line for line in cli("methods").out.splitlines() if line}
    for name in registry.names():
        assert name in lines
    assert "density*" in lines["dare_ties"] and "normalize" in lines["dare_ties"]
    assert "task_arithmetic, task" in lines["task_arithmetic"]


def test_one_method_is_explained_from_its_signature(cli: Cli) -> None:
    page = cli("methods", "task").out
    assert "task_arithmetic" in page and "lambda" in page and "needs a base model" in page
    columns = [line.index(" float,") for line in cli("methods", "tsv_m").out.splitlines() if " float," in line]
    assert columns[1:] == [columns[1]] * 2
    facts = json.loads(cli("methods", "slerp", "--json").out)
    (t,) = facts["parameters"]
    assert (t["name"], t["type"], t["minimum"], t["maximum"], t["required"]) == ("t", "float", 0, 1, True)
    assert {each["name"] for each in json.loads(cli("methods", "--json").out)} == set(registry.names())


def test_preview_shows_changes_by_model_and_layer(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, TIES, tiny_family)
    outcome = cli("preview", path, "--exact", "--csv", tmp_path / "figures.csv")
    assert outcome.code == 0, outcome.err
    assert "all of them looked at" in outcome.out
    for text in ("code", "law", "layer 0", "layer 1", "outside layers", "cosine of the changes of code and law"):
        assert text in outcome.out
    with open(tmp_path / "figures.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == {"models", "tensors", "cosines"}


def test_preview_for_programs_has_no_nan(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, TIES, tiny_family)
    (found,) = cli("preview", path, "--sample", 0.5, "--json").events
    assert found["summary"]["tensors"] == 21
    assert 0 < found["summary"]["relative_delta"]["code"] < 1
    assert len(found["models"]) == 42
    layers = {row["tensor"]: row["layer"] for row in found["tensors"]}
    assert layers["model.norm.weight"] is None and layers["model.layers.1.mlp.up_proj.weight"] == 1
    assert all(isinstance(row["elements"], int) for row in found["models"])
    assert "NaN" not in cli("preview", path, "--json").out


def test_preview_warns_of_vectors_without_a_shortest_arc(cli: Cli, tmp_path: Path) -> None:
    tensor = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    for name, factor in (("one", 1.0), ("other", -2.0)):
        save_file({"turned": factor * tensor, "kept": tensor}, tmp_path / f"{name}.safetensors")
    models = [
        {"model": str(tmp_path / f"{name}.safetensors"), "parameters": {"weight": 1}} for name in ("one", "other")
    ]
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"merge_method": "nuslerp", "models": models}, indent=1), encoding="utf-8")
    outcome = cli("preview", path)
    assert "1 tensor holds vectors that are nearly opposite" in outcome.err
