"""Which files of a folder are the model, and what is said when they are not all there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from merger.checkpoints.source import open_checkpoint
from merger.errors import CheckpointError, InputChangedError
from merger.types import ModelReference
from tests.checkpoints.making import raw_file, reference, save_sharded

THREE = {name: torch.full((4,), float(number)) for number, name in enumerate("abc")}
INDEX = "model.safetensors.index.json"


def shard(number: int, count: int = 3) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def opened_names(path: Path) -> list[str]:
    with open_checkpoint(reference(path)) as checkpoint:
        return sorted(checkpoint.tensors)


def refusal(path: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(ModelReference(str(path)))
    assert all(problem.where and problem.hint for problem in caught.value.problems)
    return str(caught.value)


def change_index(folder: Path, **changes: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= changes
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return save_sharded(tmp_path / "sharded", THREE)


def test_an_index_brings_all_its_shards(sharded):
    assert opened_names(sharded) == ["a", "b", "c"]


def test_a_complete_numbered_set_needs_no_index(sharded):
    (sharded / INDEX).unlink()
    assert opened_names(sharded) == ["a", "b", "c"]


def test_a_numbered_set_with_a_missing_file_is_refused(sharded):
    (sharded / INDEX).unlink()
    (sharded / shard(2)).unlink()
    assert "1 of 3 files are missing" in refusal(sharded)
    (sharded / shard(3)).unlink()
    assert "2 of 3 files are missing" in refusal(sharded)


def test_missing_shards_of_an_index_are_named(sharded):
    (sharded / shard(1)).unlink()
    (sharded / shard(3)).unlink()
    text = refusal(sharded)
    assert "2 of the 3" in text and shard(1) in text and shard(3) in text


def test_one_shard_of_several_is_no_model(sharded):
    text = refusal(sharded / shard(2))
    assert "one of 3 files" in text and str(sharded) in text


def test_model_safetensors_stands_for_itself_beside_other_files(tmp_path):
    save_file({"right": torch.ones(1)}, tmp_path / "model.safetensors")
    save_file({"other": torch.ones(1)}, tmp_path / "consolidated.safetensors")
    assert opened_names(tmp_path) == ["right"]


def test_model_safetensors_wins_over_an_index_that_does_not_list_it(sharded):
    save_file({"right": torch.ones(1)}, sharded / "model.safetensors")
    assert opened_names(sharded) == ["right"]


def test_files_that_the_index_does_not_list_are_left_alone(sharded):
    save_file({"stale": torch.ones(1)}, sharded / shard(4, 4))
    assert opened_names(sharded) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "any name.safetensors"])
def test_a_single_file_may_have_any_name(tmp_path, name):
    save_file(THREE, tmp_path / name)
    (tmp_path / f"._{name}").write_bytes(b"a shadow file of another system")
    assert opened_names(tmp_path) == ["a", "b", "c"]


def test_several_unrelated_files_are_listed(tmp_path):
    save_file(THREE, tmp_path / "one.safetensors")
    save_file(THREE, tmp_path / "two.safetensors")
    text = refusal(tmp_path)
    assert "one.safetensors, two.safetensors" in text and "unclear" in text


def test_two_numbered_sets_are_unclear(sharded):
    (sharded / INDEX).unlink()
    save_file(THREE, sharded / shard(1, 2))
    assert "unclear" in refusal(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "sub/inside.safetensors",
        "sub\\inside.safetensors",
        "/etc/absolute.safetensors",
        "C:drive.safetensors",
        "..",
        "",
        "zero\0byte.safetensors",
        "weights.bin",
    ],
)
def test_an_index_names_only_safetensors_files_beside_it(sharded, name):
    change_index(sharded, a=name)
    assert "puts tensor 'a' into" in refusal(sharded)


def test_a_tensor_that_is_not_in_its_file_is_named(sharded):
    change_index(sharded, ghost=shard(1))
    text = refusal(sharded)
    assert "ghost" in text and shard(1) in text


def test_a_tensor_that_is_in_another_file_is_named(tmp_path):
    folder = save_sharded(tmp_path / "two", THREE, count=2)
    change_index(folder, a=shard(2, 2))
    text = refusal(folder)
    assert f"puts tensor 'a' into {shard(2, 2)}, but it lies in {shard(1, 2)}" in text


def test_a_tensor_in_two_files_is_named(sharded):
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, sharded / shard(2))
    text = refusal(sharded)
    assert "'a'" in text and shard(1) in text and shard(2) in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "weight_map"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": 5}}', "puts tensor 'a' into 5"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' stands in it twice"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_damaged_index_is_refused(sharded, content, words):
    (sharded / INDEX).write_text(content)
    text = refusal(sharded)
    assert words in text and INDEX in text


def test_an_index_of_other_programs_is_found_by_its_ending(tmp_path):
    folder = save_sharded(tmp_path / "named", THREE)
    for path in sorted(folder.iterdir()):
        text = path.read_bytes() if path.suffix != ".json" else path.read_text().replace("model-", "net-").encode()
        (folder / path.name.replace("model", "net", 1)).write_bytes(text)
        path.unlink()
    assert opened_names(folder) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["pytorch_model.bin", "config.json"], "only pytorch_model.bin. These are PyTorch files"),
        (["model-q4.gguf"], "only model-q4.gguf. These are GGUF files"),
        (["tf_model.h5"], "another framework"),
        (["notes.txt"], "it holds notes.txt"),
        ([], "it is empty"),
        (["unet/model.safetensors"], "subfolder unet"),
    ],
)
def test_a_folder_without_safetensors_says_what_is_there(tmp_path, files, words):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert words in refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.gguf", "model.safetensors.index.json"])
def test_a_file_of_another_kind_says_so(tmp_path, name):
    (tmp_path / name).write_bytes(b"x" * 100)
    assert "safetensors format" in refusal(tmp_path / name)


def test_a_wrong_name_offers_the_nearest_one_beside_it(tmp_path):
    (tmp_path / "my-fine-tune").mkdir()
    assert f"Did you mean '{tmp_path / 'my-fine-tune'}'?" in refusal(tmp_path / "my-finetune")


def test_a_wrong_folder_above_is_named(tmp_path):
    assert f"The folder {tmp_path / 'nowhere'} does not exist either" in refusal(tmp_path / "nowhere" / "model")


def test_a_name_of_the_hub_says_how_to_get_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hf download some-team/some-model --local-dir some-model" in refusal("some-team/some-model")


@pytest.mark.parametrize("name", ["zero\0byte", "x" * 5000])
def test_impossible_names_are_refused(tmp_path, name):
    refusal(tmp_path / name)


def test_a_revision_belongs_to_the_hub_only(sharded):
    with pytest.raises(CheckpointError, match="no revision 'main'"):
        open_checkpoint(ModelReference(str(sharded), revision="main"))


def test_an_adapter_is_refused_with_a_way_out(sharded):
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        open_checkpoint(ModelReference(str(sharded), lora=ModelReference("adapter")))


def test_a_broken_link_names_what_is_missing(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("../blobs/gone")
    assert "../blobs/gone, which does not exist" in refusal(tmp_path)


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    assert "not a file" in refusal(tmp_path)


def test_a_folder_named_like_a_file_is_no_model(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    assert "not a file" in refusal(tmp_path)


def test_a_file_that_shrank_after_opening_is_an_error_and_not_a_crash(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(1000)}, path)
    with open_checkpoint(reference(tmp_path)) as checkpoint:
        os.truncate(path, 2000)
        with pytest.raises(CheckpointError, match=r"truncated: it ends inside tensor 'w'"):
            checkpoint.read_into(checkpoint.tensors["w"], 0, bytearray(4000))
        with pytest.raises(InputChangedError, match=r"model\.safetensors"):
            checkpoint.verify_unchanged()


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def rewritten_with_the_same_time(path: Path) -> None:
    status, content = path.stat(), path.read_bytes()
    path.unlink()
    (path.parent / "other").write_bytes(b"takes the inode")
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [touched, rewritten_with_the_same_time, os.unlink])
def test_a_file_that_changed_is_noticed(sharded, change):
    with open_checkpoint(reference(sharded)) as checkpoint:
        checkpoint.verify_unchanged()
        before = checkpoint.state
        change(sharded / shard(2))
        with pytest.raises(InputChangedError) as caught:
            checkpoint.verify_unchanged()
        assert shard(2) in caught.value.problems[0].where
    if (sharded / shard(2)).exists():
        with open_checkpoint(reference(sharded)) as again:
            assert again.digest == checkpoint.digest and again.state != before


def test_sixteen_thousand_tensors_open_in_half_a_second(tmp_path):
    count = 16_000
    names = [f"model.layers.{number // 9}.self_attn.q_proj.{number % 9}.weight" for number in range(count)]
    header = {
        name: {"dtype": "BF16", "shape": [4, 16], "data_offsets": [number * 128, number * 128 + 128]}
        for number, name in enumerate(names)
    }
    (tmp_path / "model.safetensors").write_bytes(raw_file(header, bytes(128 * count)))
    seconds = []
    for _ in range(3):
        began = time.process_time()
        assert len(opened_names(tmp_path)) == count
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.5, seconds


def test_real_models_open_and_give_the_bytes_of_the_safetensors_library(real_pair):
    for folder in (real_pair.base, real_pair.fine_tune):
        expected = load_file(folder / "model.safetensors")
        with open_checkpoint(reference(folder)) as checkpoint:
            assert set(checkpoint.tensors) == set(expected)
            for name in ("embeddings.word_embeddings.weight", "encoder.layer.5.output.dense.bias"):
                spec = checkpoint.tensors[name]
                buffer = bytearray(spec.nbytes)
                checkpoint.read_into(spec, 0, buffer)
                found = torch.frombuffer(buffer, dtype=torch.float32).reshape(spec.shape)
                assert torch.equal(found, expected[name])


def test_shared_checkpoints_of_every_kind_open(shared_cases):
    folder = shared_cases / "golden_merges" / "ckpt"
    paths = [path for path in folder.iterdir() if path.name != "raw"] + list((folder / "raw").iterdir())
    assert len(paths) > 20
    for path in paths:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        expected = {name for file in files for name in load_file(file)}
        assert set(opened_names(path)) == expected


def test_the_same_model_in_one_file_and_in_shards_has_the_same_tensors(shared_cases):
    folder = shared_cases / "golden_merges" / "ckpt"
    with (
        open_checkpoint(reference(folder / "ft_a")) as one,
        open_checkpoint(reference(folder / "ft_a_sharded")) as many,
    ):
        assert {s.shard for s in many.tensors.values()} == {shard(1), shard(2), shard(3)}
        for name, spec in one.tensors.items():
            buffers = bytearray(spec.nbytes), bytearray(spec.nbytes)
            one.read_into(spec, 0, buffers[0])
            many.read_into(many.tensors[name], 0, buffers[1])
            assert buffers[0] == buffers[1]
