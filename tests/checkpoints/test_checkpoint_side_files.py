"""Configuration, tokenizer and licence beside the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from merger.checkpoints.source import open_checkpoint
from merger.errors import CheckpointError
from tests.checkpoints.making import reference

BELONG = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "generation_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "preprocessor_config.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE.md",
    "README.md",
]
DO_NOT_BELONG = [
    "config.json",
    "tokenizer.py",
    "tokenizer.safetensors.index.json.txt/vocab.txt",
    "modeling_custom.py",
    "pytorch_model.bin",
    "optimizer.pt",
    "onnx/model.onnx",
    "onnx/config.json",
    "1_Pooling/notes.txt",
    "1_Pooling/deeper/config.json",
    ".gitattributes",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    return tmp_path


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" if name == "config.json" else f"content of {name}")


def test_side_files_are_known_by_name_and_nothing_else_is(model):
    put(model, *BELONG, *DO_NOT_BELONG)
    with open_checkpoint(reference(model)) as checkpoint:
        assert list(checkpoint.files) == sorted(BELONG)
        for name, file in checkpoint.files.items():
            assert file.name == name
            assert file.read() == f"content of {name}".encode()
            assert file.size == len(file.read())


def test_side_files_may_be_links(model):
    (model / "blob").write_bytes(b"words")
    (model / "vocab.txt").symlink_to("blob")
    (model / "merges.txt").symlink_to("gone")
    with open_checkpoint(reference(model)) as checkpoint:
        assert list(checkpoint.files) == ["vocab.txt"]
        assert checkpoint.files["vocab.txt"].read() == b"words"


def test_a_side_file_of_more_than_64_megabytes_is_not_read(model):
    with open(model / "tokenizer.json", "wb") as file:
        file.truncate((64 << 20) + 1)
    with open_checkpoint(reference(model)) as checkpoint, pytest.raises(CheckpointError, match="64 MiB"):
        checkpoint.files["tokenizer.json"].read()


def test_a_side_file_that_disappeared_is_named(model):
    put(model, "vocab.txt")
    with open_checkpoint(reference(model)) as checkpoint:
        (model / "vocab.txt").unlink()
        with pytest.raises(CheckpointError, match=r"vocab\.txt: the file cannot be read"):
            checkpoint.files["vocab.txt"].read()


def test_the_configuration_is_read(model):
    (model / "config.json").write_text('{"hidden_size": 8}')
    with open_checkpoint(reference(model)) as checkpoint:
        assert checkpoint.config == {"hidden_size": 8}


@pytest.mark.parametrize("text", ["{", "", "[1]", '"text"', "\xff", "[" * 100_000])
def test_a_malformed_configuration_is_refused(model, text):
    (model / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json: the configuration"):
        open_checkpoint(reference(model))


def test_a_single_file_brings_what_lies_beside_it_only_when_it_is_the_model(model):
    put(model, "config.json", "vocab.txt")
    with open_checkpoint(reference(model / "model.safetensors")) as checkpoint:
        assert checkpoint.config == {} and list(checkpoint.files) == ["vocab.txt"]
    save_file({"w": torch.ones(2)}, model / "other.safetensors")
    with open_checkpoint(reference(model / "model.safetensors")) as checkpoint:
        assert checkpoint.config == {}
    with open_checkpoint(reference(model / "other.safetensors")) as checkpoint:
        assert checkpoint.config is None and not checkpoint.files


def test_a_sentence_embedding_model_has_its_parts(real_pair):
    for folder in (real_pair.base, real_pair.fine_tune):
        with open_checkpoint(reference(folder)) as checkpoint:
            assert {"modules.json", "1_Pooling/config.json", "tokenizer.json", "vocab.txt"} <= set(checkpoint.files)
            assert checkpoint.config is not None and checkpoint.config["model_type"] == "bert"
