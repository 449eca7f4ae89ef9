"""Whether models fit together, told from their files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from merger.checkpoints.source import open_checkpoint
from merger.errors import UserError
from merger.report import Report, build_report
from merger.types import ModelReference

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 4,
    "vocab_size": 10,
    "tie_word_embeddings": False,
}


def tensors(layers: int = 2, width: int = 4, rows: int = 10, dtype: type = np.float32) -> dict[str, np.ndarray]:
    layer = {f"model.layers.{i}.mlp.up.weight": np.ones((3, width), dtype) for i in range(layers)}
    ends = {"model.embed_tokens.weight": np.ones((rows, width), dtype), "lm_head.weight": np.ones((rows, width), dtype)}
    return {**ends, **layer, "model.norm.weight": np.ones((width,), dtype)}


class Shelf:
    """Writes small models into one folder and inspects them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, weights: dict | None = None, config: dict | None = LLAMA, **files: object) -> None:
        place = self.folder / name
        place.mkdir()
        save_file(tensors() if weights is None else weights, place / "model.safetensors")
        if config is not None:
            (place / "config.json").write_text(json.dumps(config))
        for file, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (place / file.replace("__", ".")).write_text(text)

    def report(self, *names: str) -> Report:
        return build_report([open_checkpoint(ModelReference(str(self.folder / name))) for name in names])

    def findings(self, *names: str) -> list[tuple[str, str]]:
        """Level and sentence of everything but the note about the base."""
        found = self.report(*names).findings
        return [(p.level, p.message) for p in found if "base" not in p.message and "come from" not in p.message]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_facts_of_a_model(shelf: Shelf) -> None:
    shelf.add("llama", LICENSE="  # MIT License\n\nCopyright\n")
    (facts,) = shelf.report("llama").models
    assert facts.name == "llama"
    assert facts.reference == str(shelf.folder / "llama")
    assert (facts.architecture, facts.layers, facts.hidden_size) == ("LlamaForCausalLM", 2, 4)
    assert (facts.tensors, facts.parameters, facts.bytes) == (5, 108, 432)
    assert (facts.dtype, facts.vocab_size, facts.tied, facts.licence) == ("float32", 10, False, "mit")


def test_a_model_without_config_still_has_facts(shelf: Shelf) -> None:
    shelf.add("bare", {"a": np.ones(3, np.float16), "count": np.ones(1, np.int64)}, config=None)
    (facts,) = shelf.report("bare").models
    assert (facts.architecture, facts.layers, facts.parameters, facts.dtype) == (None, 0, 3, "float16")
    assert (facts.vocab_size, facts.tied, facts.licence, facts.hidden_size) == (None, None, None, None)


def test_models_of_one_family_fit(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("b")
    report = shelf.report("a", "b")
    assert report.fits
    assert shelf.findings("a", "b") == []


def test_models_of_another_width_get_one_sentence(shelf: Shelf) -> None:
    shelf.add("small")
    shelf.add("large", tensors(layers=40, width=8), {**LLAMA, "hidden_size": 8, "num_hidden_layers": 40})
    assert shelf.findings("small", "large") == [
        ("error", "large is 8 wide, small is 4 wide (hidden size): they cannot be merged.")
    ]
    assert not shelf.report("small", "large").fits


def test_models_of_another_architecture_get_one_sentence(shelf: Shelf) -> None:
    shelf.add("llama")
    gpt = {f"transformer.h.{i}.mlp.weight": np.ones((4, 4), np.float32) for i in range(30)}
    shelf.add("gpt", gpt, {"architectures": ["GPT2LMHeadModel"], "n_embd": 4})
    shelf.add("nameless", gpt, config=None)
    assert shelf.findings("llama", "gpt", "nameless") == [
        (
            "error",
            "gpt is a GPT2LMHeadModel, llama is a LlamaForCausalLM: models of different architecture cannot be merged.",
        ),
        ("error", "nameless and llama have only 0 tensor names in common: they are different architectures."),
    ]


def test_equal_names_under_another_class_are_warned_of(shelf: Shelf) -> None:
    shelf.add("llama")
    shelf.add("mistral", config={**LLAMA, "architectures": ["MistralForCausalLM"]})
    (found,) = shelf.findings("llama", "mistral")
    assert found == (
        "warning",
        "mistral is saved as a MistralForCausalLM, llama as a LlamaForCausalLM; their tensors have the same names.",
    )


def test_vocabularies_of_other_size_name_both_and_the_ways_out(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("b", tensors(rows=12))
    (problem,) = (p for p in shelf.report("a", "b").findings if p.level == "error")
    assert problem.message == "b has 12 vocabulary rows, a has 10 (lm_head.weight, model.embed_tokens.weight)."
    assert all(way in problem.hint for way in ("{source: base}", "{source: union}", "{source: <model>}"))


def test_other_shapes_name_both_and_the_first_few_tensors(shelf: Shelf) -> None:
    shelf.add("a", tensors(layers=5))
    shelf.add("b", {k: np.ones((7, 4), np.float32) if "mlp" in k else v for k, v in tensors(layers=5).items()})
    (found,) = shelf.findings("a", "b")
    assert found == (
        "error",
        "5 tensors of b and a differ in shape: model.layers.0.mlp.up.weight is 7 x 4 and 3 x 4; "
        "model.layers.1.mlp.up.weight is 7 x 4 and 3 x 4; model.layers.2.mlp.up.weight is 7 x 4 and 3 x 4 and 2 more.",
    )


def test_depth_dtype_and_missing_tensors_are_reported(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("deep", tensors(layers=4))
    shelf.add("half", tensors(dtype=np.float16))
    shelf.add("more", {**tensors(), "extra.weight": np.ones(2, np.float32)})
    assert shelf.findings("a", "deep") == [("warning", "deep has 4 layers, a has 2.")]
    assert shelf.findings("a", "half") == [("note", "half is stored as float16, a as float32.")]
    assert shelf.findings("a", "more") == [("note", "Of a and more only more has extra.weight.")]


def test_a_tied_head_is_no_difference_in_tensors(shelf: Shelf) -> None:
    shelf.add("a")
    tied = {name: value for name, value in tensors().items() if name != "lm_head.weight"}
    shelf.add("tied", tied, {**LLAMA, "tie_word_embeddings": True})
    report = shelf.report("a", "tied")
    assert [model.tied for model in report.models] == [False, True]
    message = "tied ties lm_head.weight to another weight, a stores it; the tied weight stands in."
    assert shelf.findings("a", "tied") == shelf.findings("tied", "a") == [("note", message)]


def test_a_prefix_is_seen_through(shelf: Shelf) -> None:
    shelf.add("a", {name: value for name, value in tensors().items() if name.startswith("model.")})
    shelf.add("b", {name.removeprefix("model."): v for name, v in tensors().items() if name.startswith("model.")})
    message = "Only a begins its tensor names with 'model.'; they are matched without it."
    assert shelf.findings("a", "b") == shelf.findings("b", "a") == [("note", message)]


def test_whole_numbers_that_differ_are_found(shelf: Shelf) -> None:
    counts = {"position_ids": np.arange(5), "steps": np.array(7)}
    shelf.add("a", {**tensors(), **counts})
    shelf.add("b", {**tensors(), **counts, "steps": np.array(8)})
    shelf.add("c", {**tensors(), **counts})
    assert shelf.findings("a", "c") == []
    assert shelf.findings("a", "b") == [("warning", "steps holds whole numbers that differ between b and a.")]


def test_quantised_models_are_refused(shelf: Shelf) -> None:
    shelf.add("a")
    packed = {name: value.astype(np.uint8) for name, value in tensors().items()}
    shelf.add("packed", packed, {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}})
    message = "packed is quantised (bitsandbytes): its weights are packed numbers."
    assert ("error", message) in shelf.findings("a", "packed")


TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<s>"}], "truncation": None}


def test_tokenizers_are_compared_by_their_tokens(shelf: Shelf) -> None:
    shelf.add("a", tokenizer__json=TOKENIZER)
    shelf.add("cut", tokenizer__json={**TOKENIZER, "truncation": {"max_length": 512}, "padding": {"size": 1}})
    shelf.add("other", tokenizer__json={**TOKENIZER, "model": {"vocab": {"a": 0, "b": 1, "c": 2}}})
    shelf.add("none")
    assert shelf.findings("a", "cut") == []
    assert shelf.findings("a", "other") == [
        ("warning", "The tokenizers differ: a has 3 tokens, other has 4 tokens."),
    ]
    assert shelf.findings("a", "none") == [("note", "none has no tokenizer files.")]


def test_older_tokenizer_files_count_too(shelf: Shelf) -> None:
    shelf.add("a", vocab__txt="one\ntwo\n")
    shelf.add("b", vocab__txt="one\ntwo\n")
    shelf.add("c", vocab__txt="one\n")
    assert shelf.findings("a", "b") == []
    assert shelf.findings("a", "c") == [("warning", "The tokenizers differ: a, c.")]


def test_chat_templates_and_licences_are_compared(shelf: Shelf) -> None:
    shelf.add("a", tokenizer_config__json={"chat_template": "{{x}}"}, LICENSE="MIT License")
    shelf.add("b", chat_template__jinja="{{x}}\n", LICENSE="MIT License")
    shelf.add("c", LICENSE="Apache License\nVersion 2.0\n")
    assert [words for _, words in shelf.findings("a", "b") if "template" in words or "licence" in words] == []
    words = [words for _, words in shelf.findings("a", "c")]
    assert "The chat templates differ (c without one)." in words
    assert "The licences differ: a: mit; c: apache-2.0." in words


@pytest.mark.parametrize("origin", ["../origin", "org/origin", "/elsewhere/origin", "origin"])
def test_the_base_is_the_model_that_the_others_name(shelf: Shelf, origin: str) -> None:
    shelf.add("origin", config={**LLAMA, "_name_or_path": "someone/else"})
    shelf.add("one", config={**LLAMA, "_name_or_path": origin})
    shelf.add("two", config={**LLAMA, "_name_or_path": origin})
    report = shelf.report("one", "origin", "two")
    assert str(report.base) == str(shelf.folder / "origin")
    assert "The other models name origin as the model they come from: it is the base." in report.to_text()


def test_a_base_that_is_missing_is_named(shelf: Shelf) -> None:
    shelf.add("one", config={**LLAMA, "_name_or_path": "org/origin"})
    shelf.add("two", config={**LLAMA, "_name_or_path": "org/origin"})
    report = shelf.report("one", "two")
    assert report.base is None
    assert "All models come from org/origin, which is not among them." in report.to_text()


def test_where_nothing_tells_no_base_is_guessed(shelf: Shelf) -> None:
    shelf.add("one")
    shelf.add("two", config={**LLAMA, "_name_or_path": "org/other"})
    report = shelf.report("one", "two")
    assert report.base is None
    assert "The models do not say which of them is the base." in report.to_text()


def test_the_text_is_a_table_and_a_verdict(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("longer-name", tensors(dtype=np.float16))
    assert shelf.report("a", "longer-name").to_text().splitlines()[:5] == [
        "model        architecture      layers  width  vocabulary  parameters  dtype    size",
        "a            LlamaForCausalLM  2       4      10          108         float32  432 B",
        "longer-name  LlamaForCausalLM  2       4      10          108         float16  216 B",
        "",
        "The models fit together.",
    ]


def test_the_dictionary_goes_through_json(shelf: Shelf) -> None:
    shelf.add("origin")
    shelf.add("one", config={**LLAMA, "_name_or_path": "../origin"})
    data = shelf.report("origin", "one").to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["fits"] is True
    assert data["base"] == str(shelf.folder / "origin")
    assert data["models"][0]["architecture"] == "LlamaForCausalLM"


def test_nothing_to_inspect_is_said() -> None:
    with pytest.raises(UserError, match="Name one model or more"):
        build_report([])


def test_inspecting_does_not_import_torch(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("b")
    code = (
        "import sys; from merger.checkpoints.source import open_checkpoint; from merger.report import build_report; "
        "from merger.types import ModelReference as R; "
        "print(build_report([open_checkpoint(R(p)) for p in sys.argv[1:]]).to_text()); "
        "assert 'torch' not in sys.modules"
    )
    places = [str(shelf.folder / name) for name in ("a", "b")]
    result = subprocess.run([sys.executable, "-c", code, *places], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "fit together" in result.stdout
