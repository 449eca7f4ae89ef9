"""What stands beside the weights of an output: config, copied files, card, recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.source import open_checkpoint
from merger.recipe import Recipe, Slice
from merger.recipe.entries import ModelEntry
from merger.sidefiles import side_files
from merger.types import ModelReference, WeightInfo

APACHE = b"\n                                 Apache License\n                           Version 2.0, January 2004\n"


@dataclass(frozen=True)
class Written:
    weight: WeightInfo
    dtype: str = "F32"
    shape: tuple[int, ...] = (4, 2)


def written(*names: str, dtype: str = "F32", rows: int = 4) -> list[Written]:
    return [Written(WeightInfo(name, is_embed="embed" in name), dtype, (rows, 2)) for name in names]


def make_model(folder: Path, config: Mapping[str, Any] | None, **files: bytes) -> ModelReference:
    """A tiny model; keyword names become file names, ``__`` a slash and a trailing ``_json`` an ending."""
    folder.mkdir(parents=True)
    save_file({"model.embed_tokens.weight": torch.zeros(4, 2)}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, content in files.items():
        place = folder / name.replace("__", "/").replace("_json", ".json")
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
    return ModelReference(str(folder))


def opened(recipe: Recipe) -> dict[ModelReference, Checkpoint]:
    return {reference: open_checkpoint(reference) for reference in recipe.all_models()}


def written_files(recipe: Recipe, outputs: Sequence[Written] = ()) -> dict[str, bytes]:
    return dict(
        side_files(recipe, opened(recipe), outputs, method_name="Linear", method_url="https://example.org/paper")
    )


def written_config(config: Mapping[str, Any], folder: Path, outputs: Sequence[Written]) -> dict[str, Any]:
    model = make_model(folder / "model", config)
    files = written_files(Recipe("linear", (ModelEntry(model),)), outputs)
    found: dict[str, Any] = json.loads(files["config.json"])
    return found


# config.json


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_dtype_is_corrected_under_the_key_that_the_source_uses(tmp_path: Path, key: str) -> None:
    config = written_config({key: "float32", "x": 1}, tmp_path, written("a", dtype="BF16"))
    assert config == {key: "bfloat16", "x": 1}


def test_nested_parts_get_the_dtype_too_but_not_what_describes_a_quantisation(tmp_path: Path) -> None:
    source = {
        "dtype": "float32",
        "text_config": {"dtype": "float32"},
        "vision_config": {"torch_dtype": "float32"},
        "quantization_config": {"dtype": "int8"},
    }
    config = written_config(source, tmp_path, written("a", dtype="F16"))
    assert config["text_config"] == {"dtype": "float16"}
    assert config["vision_config"] == {"torch_dtype": "float16"}
    assert config["quantization_config"] == {"dtype": "int8"}


def test_a_config_that_is_silent_about_the_dtype_stays_so_for_float32_and_speaks_for_others(tmp_path: Path) -> None:
    assert written_config({"x": 1}, tmp_path / "a", written("a")) == {"x": 1}
    assert written_config({"x": 1}, tmp_path / "b", written("a", dtype="BF16")) == {"x": 1, "torch_dtype": "bfloat16"}


def test_the_dtype_is_that_of_most_elements_and_counters_do_not_vote(tmp_path: Path) -> None:
    outputs = [
        *written("big", dtype="BF16", rows=100),
        *written("norm", rows=1),
        *written("ids", dtype="I64", rows=9999),
    ]
    assert written_config({"dtype": "float32"}, tmp_path, outputs)["dtype"] == "bfloat16"


def test_a_written_head_is_not_tied(tmp_path: Path) -> None:
    outputs = written("model.embed_tokens.weight", "lm_head.weight")
    assert written_config({"tie_word_embeddings": True}, tmp_path / "a", outputs)["tie_word_embeddings"] is False
    nested = {"tie_word_embeddings": True, "text_config": {"num_hidden_layers": 2, "tie_word_embeddings": True}}
    config = written_config(nested, tmp_path / "b", outputs)
    assert config["tie_word_embeddings"] is False
    assert config["text_config"]["tie_word_embeddings"] is False


def test_a_head_that_is_not_written_leaves_the_tie_as_it_was(tmp_path: Path) -> None:
    outputs = written("model.embed_tokens.weight")
    assert written_config({"tie_word_embeddings": True}, tmp_path / "a", outputs)["tie_word_embeddings"] is True
    assert "tie_word_embeddings" not in written_config({"x": 1}, tmp_path / "b", outputs)


def test_a_base_that_only_gives_the_config_does_not_untie_models_without_a_head(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", {"tie_word_embeddings": False})
    tied = make_model(tmp_path / "tied", {"tie_word_embeddings": True})
    recipe = Recipe("linear", (ModelEntry(tied),), base_model=base)
    config = json.loads(written_files(recipe, written("model.embed_tokens.weight"))["config.json"])
    assert config["tie_word_embeddings"] is True


def test_the_vocabulary_size_follows_the_embedding(tmp_path: Path) -> None:
    outputs = written("model.embed_tokens.weight", rows=7)
    assert written_config({"vocab_size": 4}, tmp_path / "a", outputs)["vocab_size"] == 7
    assert written_config({"vocab_size": 3}, tmp_path / "padded", outputs)["vocab_size"] == 3


def test_no_local_path_and_no_pointer_to_code_is_written(tmp_path: Path) -> None:
    source = {
        "_name_or_path": "/home/someone/model",
        "auto_map": {"AutoModel": "modeling_x.X"},
        "_attn_implementation_internal": "owner/kernel",
        "text_config": {"_name_or_path": "C:\\models\\x", "a": 1},
        "model_type": "x",
    }
    assert written_config(source, tmp_path, written("a")) == {"text_config": {"a": 1}, "model_type": "x"}


def test_a_hub_id_in_the_config_and_the_order_of_keys_are_kept(tmp_path: Path) -> None:
    source = {"z": 1, "_name_or_path": "owner/name", "architectures": ["X"], "a": [1.5, None, "ü"]}
    config = written_config(source, tmp_path, written("a"))
    assert list(config.items()) == list(source.items())


def test_slices_set_the_layer_count_and_the_lists_with_one_entry_per_layer(tmp_path: Path) -> None:
    kinds = ["full", "sliding", "full", "sliding"]
    first = make_model(tmp_path / "a", {"num_hidden_layers": 4, "layer_types": kinds, "eos_token_id": [1, 2, 3, 4]})
    second = make_model(tmp_path / "b", {"num_hidden_layers": 4, "layer_types": ["other"] * 4})
    parts = (Slice((ModelEntry(first, {}, (0, 3)),)), Slice((ModelEntry(second, {}, (1, 4)),)))
    config = json.loads(written_files(Recipe("passthrough", slices=parts), written("a"))["config.json"])
    assert config["num_hidden_layers"] == 6
    assert config["layer_types"] == ["full", "sliding", "full", "other", "other", "other"]
    assert config["eos_token_id"] == [1, 2, 3, 4]


def test_a_model_without_config_gives_none(tmp_path: Path) -> None:
    model = make_model(tmp_path / "a", None)
    assert set(written_files(Recipe("linear", (ModelEntry(model),)), written("a"))) == {"README.md", "recipe.yaml"}


def test_config_and_tokenizer_come_from_a_model_that_has_them_when_the_base_has_none(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", None)
    model = make_model(tmp_path / "a", {"model_type": "x"}, tokenizer_json=b"{}")
    files = written_files(Recipe("ties", (ModelEntry(model),), base_model=base), written("a"))
    assert files["tokenizer.json"] == b"{}"
    assert json.loads(files["config.json"]) == {"model_type": "x"}


# Copied files


def test_side_files_of_the_base_are_copied_byte_for_byte(tmp_path: Path) -> None:
    base = make_model(
        tmp_path / "base",
        {"model_type": "x"},
        tokenizer_json=b'{"truncation":  null}\r\n',
        generation_config_json=b"{}",
        modules_json=b"[]",
        LICENSE=APACHE,
        **{"1_Pooling__config_json": b'{"a":1}', "modeling.py": b"import os", "notes.txt": b"private"},
    )
    other = make_model(tmp_path / "a", {"model_type": "x"}, tokenizer_json=b"other")
    files = written_files(Recipe("ties", (ModelEntry(other),), base_model=base), written("a"))
    assert files["tokenizer.json"] == b'{"truncation":  null}\r\n'
    assert files["1_Pooling/config.json"] == b'{"a":1}'
    assert files["LICENSE"] == APACHE
    assert {"generation_config.json", "modules.json"} <= set(files)
    assert not {"modeling.py", "notes.txt"} & set(files)


def test_without_a_base_the_first_model_gives_the_files(tmp_path: Path) -> None:
    first = make_model(tmp_path / "a", {"model_type": "first"}, tokenizer_json=b"first")
    second = make_model(tmp_path / "b", {"model_type": "second"}, tokenizer_json=b"second")
    files = written_files(Recipe("linear", (ModelEntry(first), ModelEntry(second))), written("a"))
    assert files["tokenizer.json"] == b"first"
    assert json.loads(files["config.json"]) == {"model_type": "first"}


# The recipe beside the weights


def test_the_recipe_names_folders_and_digests_and_no_place(tmp_path: Path) -> None:
    models = [make_model(tmp_path / name, None) for name in ("one", "two")]
    recipe = Recipe("linear", tuple(ModelEntry(model, {"weight": 0.5}) for model in models), seed=3)
    text = written_files(recipe, written("a"))["recipe.yaml"].decode()
    read = Recipe.from_yaml(text)
    assert [entry.model.path for entry in read.models] == ["./one", "./two"]
    assert read.seed == 3
    assert read.models[0].parameters == {"weight": 0.5}
    assert str(tmp_path) not in text
    for checkpoint in opened(recipe).values():
        assert checkpoint.digest in text


def test_folders_of_one_name_are_told_apart_by_what_is_above_them(tmp_path: Path) -> None:
    first, second = make_model(tmp_path / "x" / "model", None), make_model(tmp_path / "y" / "model", None)
    recipe = Recipe("linear", (ModelEntry(first), ModelEntry(second)))
    read = Recipe.from_yaml(written_files(recipe, written("a"))["recipe.yaml"].decode())
    assert [entry.model.path for entry in read.models] == ["./x/model", "./y/model"]


def test_the_same_merge_gives_the_same_files_wherever_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for place in ("here", "there/deeper"):
        models = [make_model(tmp_path / place / name, {"model_type": "x"}) for name in ("one", "two")]
        found.append(written_files(Recipe("linear", tuple(map(ModelEntry, models))), written("a")))
        monkeypatch.chdir(tmp_path / place)
        named = [ModelReference("one"), ModelReference("./two/")]
        found.append(written_files(Recipe("linear", tuple(map(ModelEntry, named))), written("a")))
    assert all(files == found[0] for files in found)


def test_names_with_at_plus_spaces_and_umlauts_are_read_back_as_folders(tmp_path: Path) -> None:
    names = ["a@b+c", "mit Leerzeichen", "größe: #1", "- x"]
    recipe = Recipe("linear", tuple(ModelEntry(make_model(tmp_path / name, None)) for name in names))
    read = Recipe.from_yaml(written_files(recipe, written("a"))["recipe.yaml"].decode())
    assert [entry.model for entry in read.models] == [ModelReference(f"./{name}") for name in names]


@pytest.mark.skipif(os.sep == "\\", reason="there it parts folders")
def test_a_backslash_belongs_to_the_name_where_it_parts_no_folders(tmp_path: Path) -> None:
    model = make_model(tmp_path / "back\\slash", None)
    text = written_files(Recipe.build("linear", [(model, {"weight": 1})]))["recipe.yaml"].decode()
    assert yaml.safe_load(text)["models"][0]["model"] == "./back\\slash"


def test_a_source_of_the_tokenizer_that_is_not_merged_loses_its_place_too(tmp_path: Path) -> None:
    model, other = make_model(tmp_path / "a", None), make_model(tmp_path / "tok", None)
    recipe = Recipe("linear", (ModelEntry(model),), tokenizer_source=other)
    assert str(tmp_path) not in written_files(recipe, written("a"))["recipe.yaml"].decode()


# The card


def front_matter(card: str) -> dict[str, Any]:
    _, text, _ = card.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def card_of(recipe: Recipe) -> str:
    return written_files(recipe, written("a"))["README.md"].decode()


def transformers_model(folder: Path, **files: bytes) -> ModelReference:
    return make_model(folder, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, **files)


def test_the_front_matter_says_merge_and_how_to_load_it(tmp_path: Path) -> None:
    models = [transformers_model(tmp_path / name, LICENSE=APACHE, tokenizer_json=b"{}") for name in "ab"]
    card = card_of(Recipe("linear", tuple(map(ModelEntry, models))))
    assert front_matter(card) == {
        "base_model_relation": "merge",
        "library_name": "transformers",
        "license": "apache-2.0",
        "tags": ["merge", "mixdesk"],
    }
    assert "AutoModelForCausalLM.from_pretrained('path/to/this/folder')" in card
    assert "AutoTokenizer.from_pretrained" in card


def test_sentence_embedding_models_are_loaded_by_their_own_library(tmp_path: Path) -> None:
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    model = make_model(tmp_path / "a", config, modules_json=b"[]")
    card = card_of(Recipe("linear", (ModelEntry(model),)))
    assert front_matter(card)["library_name"] == "sentence-transformers"
    assert "SentenceTransformer('path/to/this/folder')" in card


def test_weights_without_a_known_config_are_loaded_as_tensors(tmp_path: Path) -> None:
    card = card_of(Recipe("linear", (ModelEntry(make_model(tmp_path / "a", None)),)))
    assert "library_name" not in front_matter(card)
    assert "from safetensors.torch import load_file" in card


@pytest.mark.parametrize("architectures", [{"a": 1}, "BertModel", 7, [7], [], None])
def test_a_config_that_names_no_class_is_loaded_as_tensors(tmp_path: Path, architectures: object) -> None:
    model = make_model(tmp_path / "a", {"model_type": "bert", "architectures": architectures})
    card = card_of(Recipe.build("linear", [(model, {"weight": 1})]))
    assert "library_name" not in front_matter(card)
    assert "load_file" in card


def test_licences_that_differ_are_listed_and_none_is_claimed(tmp_path: Path) -> None:
    free, other = transformers_model(tmp_path / "a", LICENSE=APACHE), transformers_model(tmp_path / "b")
    card = card_of(Recipe("linear", (ModelEntry(free), ModelEntry(other))))
    assert "license" not in front_matter(card)
    assert "`a` apache-2.0, `b` not stated" in card


def test_the_card_shows_parents_parameters_method_and_recipe(tmp_path: Path) -> None:
    base, a, b = (transformers_model(tmp_path / name) for name in ("base", "left", "right"))
    text = f"""
merge_method: ties
base_model: {base.path}
models:
  - model: {a.path}
    parameters: {{weight: 0.25, density: [0, 0.5, 1]}}
  - model: {b.path}
    parameters: {{weight: [{{filter: mlp, value: 0.5}}, {{value: 1}}]}}
parameters: {{normalize: true}}
dtype: bfloat16
seed: 7
"""
    card = card_of(Recipe.from_yaml(text))
    assert "# Merge of left and right" in card
    assert "[Linear](https://example.org/paper)" in card
    rows = {row.split("|")[1].strip(): row for row in card.splitlines() if row.startswith("| `")}
    assert "| base |" in rows["`base`"]
    assert "`0.25`" in rows["`left`"] and "`[0.0, 0.5, 1.0]`" in rows["`left`"]
    assert "mlp: `0.5`, others: `1`" in rows["`right`"].replace("1.0", "1")
    assert all(f"- `{name}`: `{value}`" in card for name, value in [("normalize", "true"), ("seed", "7")])
    assert "```yaml" in card and "merge_method: ties" in card


def test_names_cannot_break_out_of_the_markup(tmp_path: Path) -> None:
    names = ["a|b`c`", "<script>alert(1)<!--", "--- x", "[l](javascript:1)"]
    card = card_of(Recipe("linear", tuple(ModelEntry(make_model(tmp_path / name, None)) for name in names)))
    title = next(line for line in card.splitlines() if line.startswith("# "))
    assert "\\<script\\>" in title and "\\[l\\]\\(" in title
    table = [line for line in card.splitlines() if line.startswith("|")]
    cells = [line.replace("\\|", "").count("|") for line in table]
    assert len(set(cells)) == 1
    assert front_matter(card)["tags"] == ["merge", "mixdesk"]


def test_only_hub_ids_become_links_to_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = transformers_model(tmp_path / "local")
    hub = ModelReference("owner/name", "0123456789abcdef")
    recipe = Recipe("linear", (ModelEntry(local), ModelEntry(hub)))
    checkpoint = open_checkpoint(local)
    monkeypatch.setattr(checkpoint, "reference", hub)
    files = dict(side_files(recipe, {local: open_checkpoint(local), hub: checkpoint}, (), method_name="Linear"))
    assert front_matter(files["README.md"].decode())["base_model"] == ["owner/name"]
    assert "model: owner/name@0123456789abcdef" in files["recipe.yaml"].decode()


def test_custom_code_that_was_left_out_is_mentioned(tmp_path: Path) -> None:
    model = make_model(tmp_path / "a", {"model_type": "x", "auto_map": {"AutoModel": "m.X"}})
    assert "custom code" in card_of(Recipe("linear", (ModelEntry(model),)))


def test_files_and_card_can_be_left_out(tmp_path: Path) -> None:
    model = transformers_model(tmp_path / "a", tokenizer_json=b"{}")
    recipe = Recipe("linear", (ModelEntry(model),))
    files = side_files(recipe, opened(recipe), (), method_name="Linear", copy_files=False, write_readme=False)
    assert [name for name, _ in files] == ["config.json", "recipe.yaml"]
