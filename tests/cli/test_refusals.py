"""Whatever is wrong ends in one clear paragraph that says what to do, and exit code 2."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from merger.errors import Problem
from merger.methods import registry
from tests.cli.conftest import Cli
from tests.conftest import TinyFamily

MERGE = ("merge", "--models", "{base}", "{a}", "--out", "{out}")
REFUSALS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an unknown command": (("mrege",), ("mrege", "Did you mean 'merge'?")),
    "an unknown option": ((*MERGE, "--method", "linear", "--wieght", "1"), ("--wieght", "Did you mean '--weight'?")),
    "an option that is missing": (("merge", "--method", "linear"), ("--models, --out must be given",)),
    "an unknown method": ((*MERGE, "--method", "dare-ties"), ("dare-ties", "Did you mean 'dare_ties'?")),
    "text instead of a weight": ((*MERGE, "--method", "linear", "--weight", "half"), ("--weight", "'half'", "number")),
    "an infinite weight": ((*MERGE, "--method", "linear", "--weight", "inf", "1"), ("--weight", "finite")),
    "text instead of a weight, said with --set": (
        (*MERGE, "--method", "linear", "--set", "weight", "half"),
        ("weight", "'half'", "number"),
    ),
    "a base for slerp, which takes the first model": (
        (*MERGE, "--method", "slerp", "--base", "{b}"),
        ("at most 1 model besides the base", "Without --base"),
    ),
    "three weights for two models": (
        (*MERGE, "--method", "linear", "--weight", "1", "2", "3"),
        ("--weight", "3 values for 2 models", "Give one, or 2"),
    ),
    "weights whose sum is zero": (
        (*MERGE, "--method", "linear", "--weight", "0.5", "-0.5"),
        ("--weight", "0.5, -0.5", "zero"),
    ),
    "a density above one": (
        (*MERGE, "--method", "ties", "--base", "{b}", "--density", "1.5"),
        ("density", "1.5", "between 0 and 1"),
    ),
    "no base for a method that needs one": ((*MERGE, "--method", "ties"), ("ties needs --base", "fine-tuned from")),
    "a base for a method without": ((*MERGE, "--method", "linear", "--base", "{b}"), ("linear", "--base", "ties")),
    "a density for a method without": (
        (*MERGE, "--method", "linear", "--density", "0.5"),
        ("linear has no use for --density", "dare_ties", "ties"),
    ),
    "a parameter that no method has": (
        (*MERGE, "--method", "linear", "--set", "nomalize", "true"),
        ("nomalize", "Did you mean 'normalize'?"),
    ),
    "a parameter without a value": (
        (*MERGE, "--method", "linear", "--set", "normalize"),
        ("--set normalize", "0 values"),
    ),
    "a switch that is a number": (
        (*MERGE, "--method", "linear", "--set", "normalize", "0.5"),
        ("--set normalize: ", "true or false"),
    ),
    "nearswap without t, which has no default": (
        (*MERGE, "--method", "nearswap"),
        ("nearswap needs --t.", "furthest that a value may move"),
    ),
    "several values of one for all models": (
        (*MERGE, "--method", "slerp", "--t", "0", "1"),
        ("--t", "2 values", "one value for all models"),
    ),
    "slerp of three models": ((*MERGE, "--method", "slerp", "--models", "{b}"), ("exactly two", "3")),
    "t outside of its range": ((*MERGE, "--method", "slerp", "--t", "-0.1"), ("t is -0.1", "between 0 and 1")),
    "slerp without t, which has no default": ((*MERGE, "--method", "slerp", "--t"), ("--t", "expected at least one")),
    "a negative seed": ((*MERGE, "--method", "linear", "--seed", "-1"), ("--seed", "below 0")),
    "an unknown dtype": ((*MERGE, "--method", "linear", "--dtype", "fp16"), ("--dtype", "fp16", "float16")),
    "no workers": ((*MERGE, "--method", "linear", "--workers", "0"), ("--workers", "below 1")),
    "an unknown device": ((*MERGE, "--method", "linear", "--device", "tpu"), ("tpu", "cuda")),
    "a size that is none": ((*MERGE, "--method", "linear", "--shard-size", "big"), ("'big'", "5GB")),
    "a missing model": (
        ("merge", "--method", "linear", "--models", "{base}", "{a}x", "--out", "{out}"),
        ("{a}x", "Did you mean"),
    ),
    "an empty model name": (("merge", "--method", "linear", "--models", "", "{a}", "--out", "{out}"), ("empty",)),
    "an output that is an input": (
        ("merge", "--method", "linear", "--models", "{base}", "{a}", "--out", "{a}", "--overwrite"),
        ("output", "input"),
    ),
    "a recipe that is missing": (("run", "recepi.yaml", "{out}"), ("recepi.yaml",)),
    "a folder as recipe": (("run", "{base}", "{out}"), ("folder without a recipe.yaml",)),
    "a plugin that is missing": ((*MERGE, "--method", "linear", "--plugin", "nothing.py"), ("nothing.py",)),
    "an unknown method to explain": (("methods", "tise"), ("tise", "Did you mean 'ties'?")),
    "a sample above one": (("preview", "recipe.yaml", "--sample", "2"), ("--sample", "between 0 and 1")),
    "sample and exact": (("preview", "recipe.yaml", "--sample", "1", "--exact"), ("--exact", "not allowed with")),
    "publishing a sweep": (
        ("sweep", "--base", "{base}", "--models", "{a}", "{b}", "--hf-user", "me", "--hf-base-name", "x"),
        ("--hf-user", "publish", "--out DIR"),
    ),
    "a sweep without a place": (("sweep", "--base", "{base}", "--models", "{a}", "{b}"), ("--out must be given",)),
    "a sweep of one model": (("sweep", "--base", "{base}", "--models", "{a}", "--out", "{out}"), ("at least two",)),
    "labels that do not fit": (
        ("sweep", "--base", "{base}", "--models", "{a}", "{b}", "--labels", "x", "--out", "{out}"),
        ("--labels", "1 names for 2 models"),
    ),
    "labels that are equal": (
        ("sweep", "--base", "{base}", "--models", "{a}", "{b}", "--labels", "x", "x", "--out", "{out}"),
        ("two models are called 'x'",),
    ),
    "an empty model name in a sweep": (
        ("sweep", "--base", "{base}", "--models", "{a}", " ", "--out", "{out}"),
        ("--models", "empty"),
    ),
    "a label with a slash": (
        ("sweep", "--base", "{base}", "--models", "{a}", "{b}", "--labels", "x", "../y", "--out", "{out}"),
        ("'../y'", "folder"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_paragraph_with_the_right_words(
    case: str, cli: Cli, tiny_family: TinyFamily, tmp_path: Path
) -> None:
    places = {
        "base": str(tiny_family.base),
        "a": str(tiny_family.experts[0]),
        "b": str(tiny_family.experts[1]),
        "out": str(tmp_path / "out"),
    }
    words, expected = REFUSALS[case]
    outcome = cli(*(word.format(**places) for word in words))
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    for text in expected:
        assert text.format(**places) in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_all_problems_of_a_recipe_are_listed_together(cli: Cli, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("merge_method: dare-ties\nparametres: {}\ndtype: fp16\n", encoding="utf-8")
    outcome = cli("run", recipe, tmp_path / "out")
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    for text in ("Did you mean 'dare_ties'?", "Did you mean 'parameters'?", "Did you mean 'float16'?"):
        assert text in outcome.err


def test_programs_get_the_problems_as_json(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("merge", "--method", "tise", "--models", "a", "b", "--out", tmp_path / "o", "--json")
    assert outcome.code == 2
    assert outcome.err == ""
    (event,) = outcome.events
    assert event["event"] == "Failed"
    assert event["problems"][0]["level"] == "error"
    assert "tise" in event["problems"][0]["message"]


def test_a_bug_is_one_sentence_and_debug_shows_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tiny_family: TinyFamily
) -> None:
    def broken(*models: str) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("merger.api.inspect", broken)
    outcome = cli("inspect", tiny_family.base)
    assert outcome.code == 2
    assert outcome.err.startswith("error: something unexpected went wrong")
    assert "ZeroDivisionError" in outcome.err and "--debug" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in cli("inspect", tiny_family.base, "--debug").err


def test_a_full_disk_is_said_plainly(cli: Cli, monkeypatch: pytest.MonkeyPatch, tiny_family: TinyFamily) -> None:
    def full(*models: str) -> None:
        raise OSError(28, "No space left on device", "/data/out")

    monkeypatch.setattr("merger.api.inspect", full)
    assert cli("inspect", tiny_family.base).err == "error: /data/out: No space left on device.\n"


def test_a_name_that_the_terminal_cannot_show_is_escaped(cli: Cli) -> None:
    outcome = cli("inspect", "model-\udcff", "--json")
    assert outcome.code == 2
    assert json.loads(outcome.out)["event"] == "Failed"


def test_a_name_cannot_command_the_terminal_nor_fill_it(cli: Cli, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('merge_method: "\\x1b[31mline\\x07ar"\n', encoding="utf-8")
    assert r"'\x1b[31mline\x07ar'" in cli("run", recipe, tmp_path / "out").err
    recipe.write_text(f"merge_method: {'x' * 50_000}\n", encoding="utf-8")
    err = cli("run", recipe, tmp_path / "out").err
    assert "Nobody knows the merge method 'xxx" in err and "Known: " in err and len(err) < 3000


def test_a_sentence_ends_before_the_advice_begins() -> None:
    assert str(Problem("it needs a base", "ties", "Name one.")) == "ties: it needs a base. Name one."
    assert str(Problem("It needs a base.", hint="Name one.")) == "It needs a base. Name one."
    assert str(Problem("it needs a base")) == "it needs a base"


def test_what_a_plugin_prints_does_not_mix_with_the_events(cli: Cli, tiny_family: TinyFamily, tmp_path: Path) -> None:
    plugin = tmp_path / "talks.py"
    plugin.write_text(
        "from torch import Tensor\n"
        "from merger import merge_method\n"
        "print('loaded')\n"
        "@merge_method(name='talks')\n"
        "def talks(tensors: list[Tensor]) -> Tensor:\n"
        "    print('works')\n"
        "    return tensors[0]\n"
    )
    words = ("--method", "talks", "--models", tiny_family.base, "--plugin", plugin, "--out", tmp_path / "o", "--json")
    outcome = cli("merge", *words)
    registry.unregister("talks")
    assert outcome.code == 0
    assert outcome.events[-1]["event"] == "Merged"
    assert "loaded\n" in outcome.err and "works\n" in outcome.err


def test_a_stop_that_a_library_turned_into_another_error_is_still_a_stop(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tiny_family: TinyFamily
) -> None:
    def importing(*models: str) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("half imported") from None

    monkeypatch.setattr("merger.api.inspect", importing)
    outcome = cli("inspect", tiny_family.base)
    assert (outcome.code, outcome.err) == (130, "cancelled: stopped on request.\n")
