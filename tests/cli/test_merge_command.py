"""``merge`` and ``run``: a recipe from options, and the same bytes from the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from merger.methods import registry
from merger.recipe import Recipe
from tests.cli.conftest import Cli, contents
from tests.conftest import TinyFamily


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: w.double() for name, w in load_file(folder / "model.safetensors").items()}


def recipe(folder: Path) -> Recipe:
    return Recipe.from_yaml((folder / "recipe.yaml").read_text(encoding="utf-8"))


def weights(folder: Path) -> list[object]:
    return [entry.parameters.get("weight") for entry in recipe(folder).models]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), [1 / 3, 1 / 3, 1 / 3]),
        (("--weight", 7), [1 / 3, 1 / 3, 1 / 3]),
        (("--weight", 1, 2, 1), [0.25, 0.5, 0.25]),
        (("--weight", 1.5, -0.5, "-5e-1"), [3.0, -1.0, -1.0]),
        (("--weight", "0.2", "-.1", "1"), [0.2 / 1.1, -0.1 / 1.1, 1 / 1.1]),
    ],
)
def test_weights_are_divided_by_their_sum(
    given: tuple[object, ...], expected: list[float], cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("merge", "--method", "linear", "--models", *tiny_family.experts, *given, "--out", out)
    assert cli(*words, "--dtype", "float32").code == 0
    assert weights(out) == pytest.approx(expected, rel=1e-15)
    models = [tensors(folder) for folder in tiny_family.experts]
    for name, found in tensors(out).items():
        mean = sum(w * model[name] for w, model in zip(expected, models, strict=True))
        assert (found - mean).abs().max() < 1e-5


def test_task_is_the_weighted_average_of_task_vectors(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "task", "--base", tiny_family.base, "--models", *tiny_family.experts[:2])
    assert cli(*words, "--weight", 3, 1, "--dtype", "float32", "--out", tmp_path / "out").code == 0
    base, a, b = (tensors(folder) for folder in (tiny_family.base, *tiny_family.experts[:2]))
    for name, found in tensors(tmp_path / "out").items():
        expected = base[name] + 0.75 * (a[name] - base[name]) + 0.25 * (b[name] - base[name])
        assert (found - expected).abs().max() < 1e-6
    assert recipe(tmp_path / "out").merge_method == "task_arithmetic"


def test_ties_divides_by_the_weights_that_agree_and_dare_does_not(cli: Cli, tmp_path: Path) -> None:
    values = {"base": [0.0, 0.0], "a": [1.0, 2.0], "b": [1.0, -4.0]}
    for name, row in values.items():
        (tmp_path / name).mkdir()
        save_file({"w": torch.tensor(row)}, tmp_path / name / "model.safetensors")
    for method, expected in (("ties", [1.0, -4.0]), ("dare_ties", [1.0, -2.0]), ("dare_linear", [1.0, -1.0])):
        words = ("merge", "--method", method, "--base", tmp_path / "base", "--models", tmp_path / "a", tmp_path / "b")
        assert cli(*words, "--out", tmp_path / method).code == 0
        assert tensors(tmp_path / method)["w"].tolist() == expected


@pytest.mark.parametrize("method", ["consensus_ta", "iso_c", "iso_cts", "karcher", "pcb", "tsv_m"])
def test_weights_with_a_default_of_their_own_are_taken_at_their_word(
    method: str, cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    base = () if method == "karcher" else ("--base", tiny_family.base)
    words = ("merge", "--method", method, *base, "--models", *tiny_family.experts[:2])
    assert cli(*words, "--out", tmp_path / "silent").code == 0
    assert cli(*words, "--weight", 1, "--out", tmp_path / "one").code == 0
    assert cli(*words, "--weight", 2, 0.5, "--out", tmp_path / "own").code == 0
    assert (weights(tmp_path / "silent"), weights(tmp_path / "own")) == ([None, None], [2, 0.5])
    silent, one = (load_file(tmp_path / name / "model.safetensors") for name in ("silent", "one"))
    assert all(torch.equal(silent[name], tensor) for name, tensor in one.items())


@pytest.mark.parametrize(("t", "same_as"), [("0", 0), ("1", 1)])
def test_slerp_goes_from_the_first_model_to_the_second(
    t: str, same_as: int, cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    words = ("merge", "--method", "slerp", "--models", *tiny_family.experts[:2], "--t", t, "--out", tmp_path / "out")
    assert cli(*words).code == 0
    ours, theirs = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "out", tiny_family.experts[same_as])
    )
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_slerp_is_half_way_when_nothing_is_said(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "slerp", "--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    assert cli(*words).code == 0
    written = recipe(tmp_path / "out")
    assert written.parameters["t"] == 0.5
    assert written.base_model == written.models[0].model


def test_any_parameter_of_the_method_can_be_set(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "dare_ties", "--base", tiny_family.base, "--models", *tiny_family.experts)
    more = ("--density", 0.5, 0.6, 0.7, "--lambda", -0.5, "--set", "rescale", "false", "--seed", 9)
    assert cli(*words, *more, "--out", tmp_path / "out").code == 0
    written = recipe(tmp_path / "out")
    assert [entry.parameters["density"] for entry in written.models] == [0.5, 0.6, 0.7]
    assert written.parameters["lambda"] == -0.5
    assert written.parameters["rescale"] is False
    assert written.seed == 9


OPTIONS = {
    "linear": ("--weight", 0.6, 0.4),
    "slerp": ("--t", 0.3),
    "task": ("--weight", 2, -1, "--lambda", 0.7),
    "ties": ("--density", 0.3, 0.7),
    "dare_ties": ("--density", 0.5, "--seed", 5),
    "dare_linear": ("--density", 0.5, "--seed", 5, "--out-dtype", "float16"),
    "della": ("--density", 0.5, "--epsilon", 0.1),
    "della_linear": ("--density", 0.5, "--epsilon", 0.1, 0.2),
}


@pytest.mark.parametrize("method", OPTIONS)
def test_run_on_the_written_recipe_gives_the_same_bytes(
    method: str, cli: Cli, tiny_family: TinyFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = () if method in ("linear", "slerp") else ("--base", tiny_family.base)
    words = ("merge", "--method", method, *base, "--models", *tiny_family.experts[:2], *OPTIONS[method])
    assert cli(*words, "--out", tmp_path / "first").code == 0
    monkeypatch.chdir(tiny_family.base.parent)
    assert cli("run", tmp_path / "first" / "recipe.yaml", tmp_path / "second").code == 0
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_models_of_a_written_recipe_are_found_beside_the_output(
    cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    out = tiny_family.base.parent / "beside"
    assert cli("merge", "--method", "linear", "--models", *tiny_family.experts, "--out", out).code == 0
    outcome = cli("run", out, tmp_path / "again")
    assert outcome.code == 0
    assert f"note: ./code is {tiny_family.experts[0]}" in outcome.err
    assert contents(tmp_path / "again") == contents(out)


def test_nothing_that_is_written_names_a_place(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    assert cli("merge", "--method", "linear", "--models", *tiny_family.experts, "--out", tmp_path / "out").code == 0
    for name, content in contents(tmp_path / "out").items():
        assert str(tiny_family.base.parent).encode() not in content, name
        assert str(tmp_path).encode() not in content, name
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "out").iterdir())


def test_the_seed_option_replaces_the_recipes(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    text = f"""
merge_method: dare_linear
base_model: {tiny_family.base}
models: [{{model: {tiny_family.experts[0]}}}]
parameters: {{weight: 1, density: 0.5}}
"""
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    for name, seed in (("a", ()), ("b", ("--seed", 4)), ("c", ("--seed", 4))):
        assert cli("run", tmp_path / "r.yaml", tmp_path / name, *seed).code == 0
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(b[name], c[name]) and not torch.equal(a[name], b[name])
    assert recipe(tmp_path / "b").seed == 4


def test_lenient_merges_past_a_key_that_nobody_knows(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    text = f"merge_method: linear\nparameters: {{weight: 1}}\nfoo: 1\nmodels: [{{model: {tiny_family.base}}}]\n"
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    assert cli("run", tmp_path / "r.yaml", tmp_path / "out").code == 2
    outcome = cli("run", tmp_path / "r.yaml", tmp_path / "out", "--lenient")
    assert outcome.code == 0
    assert "warning: " in outcome.err and "'foo'" in outcome.err


def test_a_full_folder_is_kept_unless_it_may_be_overwritten(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "linear", "--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x", encoding="utf-8")
    refused = cli(*words)
    assert refused.code == 2 and "--overwrite" in refused.err
    assert (tmp_path / "out" / "mine.txt").exists()
    assert cli(*words, "--overwrite").code == 0
    assert not (tmp_path / "out" / "mine.txt").exists()


def test_small_shards_come_with_an_index(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    words = ("merge", "--method", "linear", "--models", *tiny_family.experts[:2], "--out", tmp_path / "out")
    assert cli(*words, "--shard-size", "2kB").code == 0
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2


@pytest.mark.parametrize("name", ["with space", "größe", "a+b", "v@1", "日本", "-dash"])
def test_any_folder_name_works(name: str, cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.symlink_to(tiny_family.base)
    words = ("merge", "--method", "linear", "--models", folder, tiny_family.experts[0])
    assert cli(*words, "--out", tmp_path / f"{name} out").code == 0
    assert recipe(tmp_path / f"{name} out").models[0].model.path == f"./{name}"


@pytest.fixture
def forgotten() -> Iterator[str]:
    """A name for a method that other tests must not see."""
    yield "cli_test_loudest"
    registry.unregister("cli_test_loudest")


def test_a_plugin_merges_like_a_method_of_the_house(
    cli: Cli, tiny_family: TinyFamily, tmp_path: Path, forgotten: str
) -> None:
    plugin = tmp_path / "loudest.py"
    plugin.write_text(
        "import torch\n"
        "from merger import merge_method\n\n\n"
        f'@merge_method(name="{forgotten}")\n'
        "def loudest(tensors: list[torch.Tensor], gain: float = 1.0) -> torch.Tensor:\n"
        '    """Takes the largest value."""\n'
        "    return torch.stack(tensors).amax(0) * gain\n",
        encoding="utf-8",
    )
    words = ("merge", "--method", forgotten, "--plugin", plugin, "--models", *tiny_family.experts[:2])
    assert cli(*words, "--set", "gain", 2, "--dtype", "float32", "--out", tmp_path / "out").code == 0
    a, b = (tensors(folder) for folder in tiny_family.experts[:2])
    for name, found in tensors(tmp_path / "out").items():
        assert torch.equal(found, 2 * torch.maximum(a[name], b[name]))


def test_models_and_weights_may_be_given_one_by_one(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    first, second = tiny_family.experts[:2]
    together = ("--models", first, second, "--weight", "0.25", "0.75")
    apart = ("--models", first, "--weight", "0.25", "--models", second, "--weight", "0.75")
    for name, words in (("together", together), ("apart", apart)):
        assert cli("merge", "--method", "linear", *words, "--out", tmp_path / name).code == 0
    assert contents(tmp_path / "apart") == contents(tmp_path / "together")


def test_a_written_recipe_finds_its_models_in_models_dir(cli, tiny_family, tmp_path, monkeypatch):
    experts = [str(path) for path in tiny_family.experts[:2]]
    made = cli("merge", "--method", "linear", "--models", *experts, "--out", str(tmp_path / "out"))
    assert made.code == 0
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    recipe = elsewhere / "recipe.yaml"
    recipe.write_bytes((tmp_path / "out" / "recipe.yaml").read_bytes())
    monkeypatch.chdir(elsewhere)
    lost = cli("run", "recipe.yaml", "again")
    assert lost.code == 2 and "--models-dir" in lost.err
    found = cli("run", "recipe.yaml", "again", "--models-dir", str(tiny_family.base.parent))
    assert found.code == 0
    same = (elsewhere / "again" / "model.safetensors").read_bytes()
    assert same == (tmp_path / "out" / "model.safetensors").read_bytes()
