"""Several recipes in one file: later ones merge the results of earlier ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import RecipeBegun, RunOptions
from merger.cli import main

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 2}
Place = Callable[..., Path]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Makes models in the current folder: every element of layer n is the model's number plus n."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, number: float, layers: int = 2, extra: dict[str, torch.Tensor] | None = None) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        tensors = {f"model.layers.{n}.w": torch.full((2, 2), number + n) for n in range(layers)} | (extra or {})
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
        return folder

    make("a", 10.0)
    make("b", 20.0)
    return make


SERIES = """
name: mean
merge_method: linear
models:
- {model: a, parameters: {weight: 1}}
- {model: b, parameters: {weight: 1}}
---
name: tall
merge_method: passthrough
slices:
- sources: [{model: mean, layer_range: [0, 2]}]
- sources: [{model: a, layer_range: [1, 2]}]
---
merge_method: task_arithmetic
base_model: tall
models:
- {model: b, parameters: {weight: 1}}
"""


def run(text: str = SERIES, out: str = "out", options: RunOptions | None = None) -> list[merger.Event]:
    return list(merger.merge_recipes(merger.load_recipes(text), out, options))


def begun(events: list[merger.Event]) -> list[tuple[str, bool]]:
    return [(event.name, event.reused) for event in events if isinstance(event, RecipeBegun)]


def layers(folder: Path | str) -> list[float]:
    tensors = load_file(Path(folder) / "model.safetensors")
    return [tensors[f"model.layers.{n}.w"][0, 0].item() for n in range(len(tensors))]


OVERWRITE = RunOptions(overwrite=True)

# Results


def test_later_recipes_merge_the_results_of_earlier_ones(place: Place) -> None:
    events = run()
    assert begun(events) == [("mean", False), ("tall", False), ("", False)]
    assert layers("out.parts/mean") == [15, 16]
    assert layers("out.parts/tall") == [15, 16, 11]
    assert layers("out") == [20, 21, 11]
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == 3


def test_one_recipe_is_a_series_too(place: Place) -> None:
    text = "merge_method: passthrough\nmodels: [a]\n---\n"
    assert begun(run(text)) == [("", False)]
    assert layers("out") == [10, 11]
    assert not Path("out.parts").exists()


def test_intermediate_results_can_stand_elsewhere(place: Place) -> None:
    list(merger.merge_recipes(merger.load_recipes(SERIES), "out", intermediate="kept"))
    assert layers("kept/tall") == [15, 16, 11]
    assert not Path("out.parts").exists()


def test_the_written_recipe_holds_the_whole_series_and_makes_the_same_bytes_again(place: Place) -> None:
    run()
    written = Path("out/recipe.yaml").read_text()
    assert [recipe.name for recipe in merger.load_recipes(written)] == ["mean", "tall", None]
    assert "out.parts" not in written
    assert main(["run", "out", "again"]) == 0
    for name in ("model.safetensors", "recipe.yaml", "README.md", "config.json"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()


def test_a_result_that_is_used_twice_stands_once_in_the_written_recipe(place: Place) -> None:
    run(SERIES + "- {model: mean, parameters: {weight: 1}}\n")
    assert Path("out/recipe.yaml").read_text().count("name: mean") == 1


# Using results again


def test_unchanged_results_are_used_again(place: Place) -> None:
    run()
    files = {path: path.stat().st_mtime_ns for path in Path("out.parts").rglob("*.safetensors")}
    assert begun(run(options=OVERWRITE)) == [("mean", True), ("tall", True), ("", False)]
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert layers("out") == [20, 21, 11]


def test_a_changed_recipe_is_run_again_and_all_that_depend_on_it(place: Place) -> None:
    run()
    changed = SERIES.replace("model: a, parameters: {weight: 1}", "model: a, parameters: {weight: 4}")
    assert begun(run(changed, options=OVERWRITE)) == [("mean", False), ("tall", False), ("", False)]
    assert layers("out.parts/tall") == [12, 13, 11]
    later = changed.replace("layer_range: [1, 2]", "layer_range: [0, 1]")
    assert begun(run(later, options=OVERWRITE)) == [("mean", True), ("tall", False), ("", False)]


def test_a_model_that_was_written_anew_is_merged_again(place: Place) -> None:
    run()
    place("a", 40.0)
    assert begun(run(options=OVERWRITE)) == [("mean", False), ("tall", False), ("", False)]
    assert layers("out.parts/mean") == [30, 31]


def test_another_seed_is_another_recipe(place: Place) -> None:
    Path("series.yml").write_text(SERIES)
    assert main(["run", "series.yml", "out"]) == 0
    assert main(["run", "series.yml", "out", "--seed", "1", "--overwrite"]) == 0
    assert "seed: 1" in Path("out.parts/mean/recipe.yaml").read_text()


@pytest.mark.parametrize("overwrite", [False, True])
def test_somebody_elses_folder_is_never_replaced(place: Place, overwrite: bool) -> None:
    place("out.parts", 0.0)
    place("out.parts/tall", 3.0)
    with pytest.raises(merger.OutputError, match="in the way of an intermediate result"):
        run(options=RunOptions(overwrite=overwrite))
    assert layers("out.parts/tall") == [3, 4]
    assert not Path("out.parts/mean").exists()


def test_a_result_that_somebody_changed_is_not_replaced_by_another(place: Place) -> None:
    run()
    place("out.parts/mean", 3.0)
    changed = SERIES.replace("model: a, parameters: {weight: 1}", "model: a, parameters: {weight: 4}")
    with pytest.raises(merger.OutputError, match="was changed since"):
        run(changed, options=OVERWRITE)
    assert layers("out.parts/mean") == [3, 4]


def test_a_damaged_result_is_made_anew(place: Place) -> None:
    run()
    weights = Path("out.parts/mean/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4])
    assert begun(run(options=OVERWRITE))[0] == ("mean", False)
    assert layers("out.parts/mean") == [15, 16]


def test_a_run_that_ended_between_result_and_note_does_not_stand_in_the_way(place: Place) -> None:
    run()
    Path("out.parts/.mean.made-from.json").unlink()
    assert begun(run(options=OVERWRITE))[0] == ("mean", False)
    Path("out.parts/.mean.made-from.json").write_text("{damaged")
    list(merger.merge_recipes(merger.load_recipes(SERIES), "second", intermediate="out.parts"))
    assert layers("second") == [20, 21, 11]


def test_an_interrupted_series_goes_on_where_it_was(place: Place) -> None:
    events = merger.merge_recipes(merger.load_recipes(SERIES), "out", RunOptions(workers=1))
    for event in events:
        if isinstance(event, merger.TensorMerged) and Path("out.parts/mean/config.json").exists():
            events.close()
            break
    assert not Path("out.parts/tall").exists()
    again = run(options=RunOptions(resume=True))
    assert begun(again) == [("mean", True), ("tall", False), ("", False)]
    planned = [event.bytes_done for event in again if isinstance(event, merger.Planned)]
    assert planned[0] > 0
    assert layers("out") == [20, 21, 11]


# What is found before anything is merged


def refusal(text: str) -> str:
    with pytest.raises(merger.RecipeError) as caught:
        merger.load_recipes(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: tall\n", "", "document 2, line 8: every document but the last needs a name"),
        ("name: tall", "name: mean", "document 'mean': an earlier document has the same name"),
        ("name: tall", "name: Mean", "document 'Mean': an earlier document has the same name"),
        ("name: tall", "name: a/b", "'a/b' cannot be the name of a folder"),
        ("name: tall", "name: ..", "'..' cannot be the name of a folder"),
        ("name: tall", "name: a+b", "'a+b' cannot be the name of a folder"),
        ("name: tall", "name: a@b", "'a@b' cannot be the name of a folder"),
        ("model: a, p", "model: tall, p", "document 'mean': 'tall' is made by a later document. Put the document"),
        ("model: a, p", "model: mean, p", "document 'mean': 'mean' is this document's own result"),
        ("model: mean", "model: maen", "document 'tall': 'maen' is neither the result"),
        ("model: mean", "model: mean@main", "the result of an earlier document has no revision"),
    ],
)
def test_names_that_do_not_fit_are_refused_naming_the_document(place: Place, old: str, new: str, words: str) -> None:
    assert words in refusal(SERIES.replace(old, new, 1))


def test_mistakes_in_all_documents_are_told_together(place: Place) -> None:
    text = SERIES.replace("merge_method: linear", "merge_method: linaer").replace("base_model", "base_modle")
    message = refusal(text)
    assert "recipe, document 'mean', line 3, merge_method: Nobody knows the merge method 'linaer'" in message
    assert "recipe, document 3, line 15, base_modle" in message


def test_a_single_recipe_is_still_expected_where_one_is_merged(place: Place) -> None:
    with pytest.raises(merger.RecipeError, match="A second document begins here; one is expected"):
        merger.load_recipe(SERIES)


def test_a_result_nobody_uses_is_pointed_out(place: Place) -> None:
    (*_, last) = merger.load_recipes(SERIES.replace("base_model: tall", "base_model: mean"))
    assert [str(problem) for problem in last.problems] == [
        "document 'tall': no later document uses its result. It is made and kept all the same."
    ]


def test_a_folder_of_the_same_name_is_passed_over_with_a_word(place: Place) -> None:
    place("mean", 70.0)
    (*_, last) = merger.load_recipes(SERIES)
    assert "'mean' is read as the result of the document of that name" in str(last.problems[0])
    assert "./mean" in str(last.problems[0])
    run()
    assert layers("out.parts/tall") == [15, 16, 11]


def test_plans_of_later_recipes_rest_on_the_plans_of_earlier_ones(place: Place) -> None:
    plans = merger.plan_recipes(merger.load_recipes(SERIES))
    assert [len(plan.outputs) for plan in plans] == [2, 3, 3]
    assert not any(plan.errors for plan in plans)
    assert sum(checkpoint.bytes_read for plan in plans for checkpoint in plan.checkpoints.values()) == 0
    for plan in plans:
        plan.close()


def test_a_layer_that_an_earlier_result_will_not_have_is_found_before_anything_is_written(place: Place) -> None:
    with pytest.raises(merger.PlanError, match=r"document 'tall', slices\[0\].*: mean has 2 layers") as caught:
        run(SERIES.replace("layer_range: [0, 2]", "layer_range: [0, 7]"))
    assert len(caught.value.problems) == 1
    assert sorted(os.listdir()) == ["a", "b"]


def test_whole_numbers_of_results_to_come_are_compared_too(place: Place) -> None:
    place("a", 10.0, extra={"ids": torch.arange(3)})
    place("b", 20.0, extra={"ids": torch.arange(3) + 1})
    plans = merger.plan_recipes(merger.load_recipes(SERIES))
    warned = [str(problem) for problem in plans[-1].problems if problem.level == "warning"]
    assert warned == ["document 3, ids: is not a float tensor and differs; the one of tall is copied"]
    for plan in plans:
        plan.close()


def test_missing_models_of_all_documents_are_told_together(place: Place) -> None:
    text = SERIES.replace("model: a, p", "model: nowhere/a, p").replace(
        "- {model: b, parameters: {weight: 1}}\n", "- {model: nowhere/b, parameters: {weight: 1}}\n"
    )
    with pytest.raises(merger.CheckpointError) as caught:
        run(text)
    assert len(caught.value.problems) == 2


def test_an_output_that_is_taken_is_refused_before_the_first_recipe_runs(place: Place) -> None:
    place("out", 1.0)
    with pytest.raises(merger.OutputError, match="not empty"):
        run()
    assert not Path("out.parts").exists()


def test_intermediate_results_inside_the_output_are_refused_at_once(place: Place) -> None:
    with pytest.raises(merger.OutputError, match="output folder"):
        list(merger.merge_recipes(merger.load_recipes(SERIES), "out", intermediate="out/parts"))
    assert sorted(os.listdir()) == ["a", "b"]


# The command line


def test_check_judges_the_whole_series(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    Path("series.yml").write_text(SERIES)
    assert main(["check", "series.yml"]) == 0
    assert capsys.readouterr().out.startswith("The recipe is fine: 8 tensors")
    Path("series.yml").write_text(SERIES.replace("parameters: {weight: 1}}\n---", "parameters: {}}\n---"))
    assert main(["check", "series.yml", "--no-open"]) == 2
    assert "document 'mean'" in capsys.readouterr().err


def test_run_tells_which_recipe_is_at_work_and_where_results_stay(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("series.yml").write_text(SERIES)
    assert main(["run", "series.yml", "out"]) == 0
    said = capsys.readouterr().err
    assert "Recipe 1 of 3: 'mean' goes to " in said
    assert "Recipe 3 of 3: the result goes to out." in said
    assert "Intermediate results are kept in " in said
    assert main(["run", "series.yml", "out", "--overwrite", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["merge"] for event in events if event["event"] == "RecipeBegun"] == ["mean", "tall", ""]
    assert events[-1]["event"] == "Merged" and events[-1]["path"].endswith("out")


def test_the_folder_of_intermediate_results_can_be_named(place: Place) -> None:
    Path("series.yml").write_text(SERIES)
    assert main(["run", "series.yml", "out", "--intermediate-dir", "kept"]) == 0
    assert layers("kept/tall") == [15, 16, 11]
    assert not Path("out.parts").exists()


def test_check_goes_on_with_what_the_text_tells_when_models_are_missing(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("series.yml").write_text(
        SERIES.replace("model: a, p", "model: nowhere/a, p").replace("weight: 1}}\n---", "}}\n---")
    )
    assert main(["check", "series.yml"]) == 2
    said = capsys.readouterr().err
    assert "nowhere/a: there is no such folder or file" in said
    assert "document 'mean': b gives no value for 'weight'" in said
