"""Damaged and lying safetensors files are refused in words that name file, tensor and way out."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from merger.checkpoints.safetensors import SafetensorsCheckpoint
from merger.checkpoints.source import open_checkpoint
from merger.errors import CheckpointError
from tests.checkpoints.making import SOUND_DATA, SOUND_HEADER, entry, raw_file, reference


def with_tensors(**tensors: object) -> bytes:
    return raw_file(tensors, bytes(8))


LONG = {f"t{number}": entry(shape=[0], offsets=[0, 0]) for number in range(3)}
DAMAGED = {
    "empty file": (b"", "too short: 0 bytes"),
    "seven bytes": (b"1234567", "too short: 7 bytes"),
    "length behind the end": ((100).to_bytes(8, "little") + b"{}", "claims 100 bytes, but the whole file has only 10"),
    "length of all ones": (b"\xff" * 8 + b"{}", "claims 18446744073709551615 bytes"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "text": (b"---\ntitle: A model\n---\n", "this is a text file. Give a model's folder"),
    "zip": (b"PK\x03\x04" + bytes(40), "PyTorch"),
    "gguf": (b"GGUF" + b"\xff" * 40, "GGUF"),
    "not json": (raw_file(b"{nonsense"), "not valid JSON"),
    "not an object": (raw_file(b"[1, 2]"), "does not begin with '{'"),
    "blank before the object": (raw_file(b" {}", b""), "does not begin with '{'"),
    "more behind the object": (raw_file(b"{} {}", b""), "not valid JSON"),
    "not utf-8": (raw_file(b'{"\xff\xfe": 1}'), "not UTF-8"),
    "half a character": (raw_file({"\ud800": entry()}, bytes(8)), "not valid Unicode"),
    "endless nesting": (raw_file(b'{"a":' + b"[" * 100_000), "not valid JSON"),
    "endless number": (raw_file(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "name twice": (raw_file(b'{"a": {}, "a": {}}'), "'a' stands in it twice"),
    "key of a tensor twice": (raw_file(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' stands in it twice"),
    "metadata of numbers": (raw_file({"__metadata__": {"format": 1}}, b""), "__metadata__"),
    "metadata as a list": (raw_file({"__metadata__": ["pt"]}, b""), "__metadata__"),
    "tensor as a text": (with_tensors(w="F32"), "tensor 'w' is described by 'F32'"),
    "no dtype": (with_tensors(w={"shape": [2], "data_offsets": [0, 8]}), "tensor 'w' has the dtype nothing"),
    "unknown dtype": (with_tensors(w=entry("F4")), "tensor 'w' has the dtype 'F4'.*Supported: F64, F32"),
    "dtype as a list": (with_tensors(w=entry(["F32"])), "not supported"),
    "no shape": (with_tensors(w={"dtype": "F32", "data_offsets": [0, 8]}), "tensor 'w' has the shape nothing"),
    "negative shape": (with_tensors(w=entry(shape=[-2])), r"tensor 'w' has the shape \[-2\]"),
    "shape of fractions": (with_tensors(w=entry(shape=[2.0])), r"tensor 'w' has the shape \[2.0\]"),
    "shape of truths": (with_tensors(w=entry(shape=[True, 2])), r"tensor 'w' has the shape \[True, 2\]"),
    "shape as a number": (with_tensors(w=entry(shape=2)), "tensor 'w' has the shape 2"),
    "huge shape": (with_tensors(w=entry(shape=[2**40, 2**40])), "tensor 'w'.*too large"),
    "huge shape times zero": (with_tensors(w=entry(shape=[2**40, 2**40, 0])), "tensor 'w'.*too large"),
    "one offset": (with_tensors(w=entry(offsets=[8])), "tensor 'w' has the data_offsets"),
    "three offsets": (with_tensors(w=entry(offsets=[0, 8, 8])), "tensor 'w' has the data_offsets"),
    "negative offset": (with_tensors(w=entry(offsets=[-8, 0])), "tensor 'w' has the data_offsets"),
    "offsets as texts": (with_tensors(w=entry(offsets=["0", "8"])), "tensor 'w' has the data_offsets"),
    "end before the beginning": (with_tensors(w=entry(offsets=[8, 0])), "tensor 'w' ends before it begins"),
    "too few bytes": (with_tensors(w=entry(shape=[3])), "tensor 'w' needs 12 bytes.*give it 8"),
    "too many bytes": (with_tensors(w=entry("F16")), "tensor 'w' needs 4 bytes.*give it 8"),
    "overlap": (with_tensors(v=entry(), w=entry(shape=[1], offsets=[4, 8])), "tensor 'w' overlaps tensor 'v'"),
    "same bytes twice": (with_tensors(v=entry(), w=entry()), "overlaps"),
    "hole": (with_tensors(w=entry(shape=[1], offsets=[4, 8])), "hole of 4 bytes before tensor 'w'"),
    "hole between": (
        raw_file({"v": entry(), "w": entry(offsets=[16, 24])}, bytes(24)),
        "hole of 8 bytes before tensor 'w'",
    ),
    "data cut short": (raw_file(data=SOUND_DATA[:-3]), "truncated: tensor 'b' ends 3 bytes behind"),
    "more data": (raw_file(data=SOUND_DATA + b"12"), "2 bytes behind the last tensor"),
    "offset far away": (with_tensors(w=entry(shape=[0], offsets=[2**70, 2**70])), "hole"),
}


@pytest.mark.parametrize(("content", "words"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(reference(path))
    problem = caught.value.problems[0]
    assert "broken.safetensors" in problem.where
    assert problem.hint


def test_a_header_of_more_than_100_megabytes_is_refused(tmp_path: Path):
    path = tmp_path / "broken.safetensors"
    with open(path, "wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        file.truncate(100_000_100)
    with pytest.raises(CheckpointError, match="more than the 100000000"):
        open_checkpoint(reference(path))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (SOUND_HEADER, SOUND_DATA),
        ({}, b""),
        ({"__metadata__": {}}, b""),
        ({"scalar": entry("F64", [], [0, 8])}, bytes(8)),
        ({"empty": entry("F64", [3, 0], [0, 0])}, b""),
        (LONG, b""),
        ({"later": entry(offsets=[8, 16]), "first": entry(), "nothing": entry(shape=[0], offsets=[8, 8])}, bytes(16)),
        (json.dumps(SOUND_HEADER).encode() + b" " * 17, SOUND_DATA),
        ({"": entry(), "\u00fcber\u4e2d": entry(offsets=[8, 16])}, bytes(16)),
        ({"more": entry() | {"comment": "a key of tomorrow"}}, bytes(8)),
    ],
    ids=["usual", "nothing", "metadata", "scalar", "empty", "empties", "unordered", "padded", "names", "new key"],
)
def test_unusual_but_sound_files_are_opened(tmp_path: Path, header, data):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(raw_file(header, data))
    with open_checkpoint(reference(path)) as checkpoint:
        assert checkpoint.weight_bytes == len(data)


PIECES = st.sampled_from(
    [b"", b"0", b"-", b"9" * 30, b'"', b"{", b"}", b"[", b"]", b",", b":", b"\xff", b"\x00", b"null", b"1e5", b" "]
)
EDITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), PIECES | st.binary(max_size=6)), max_size=4)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS, length_error=st.sampled_from([0, 0, 0, 1, -1, 2**62]))
def test_a_mutated_header_is_accepted_or_refused_but_never_crashes(tmp_path: Path, edits, length_error):
    text = json.dumps(SOUND_HEADER).encode()
    for place, removed, inserted in edits:
        at = place % (len(text) + 1)
        text = text[:at] + inserted + text[at + removed :]
    length = max(0, len(text) + length_error)
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + text + SOUND_DATA)
    check_opens_or_refuses(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4) | st.just("F32"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensor=st.sampled_from(["a", "b", "c", "__metadata__"]),
    key=st.sampled_from([None, "dtype", "shape", "data_offsets"]),
    value=VALUES,
)
def test_a_header_with_any_value_in_place_of_another_never_crashes(tmp_path: Path, tensor, key, value):
    header = copy.deepcopy(SOUND_HEADER)
    if key is None:
        header[tensor] = value
    else:
        header.setdefault(tensor, {})[key] = value
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(raw_file(header))
    check_opens_or_refuses(path)


def check_opens_or_refuses(path: Path) -> None:
    try:
        with SafetensorsCheckpoint.from_file(path) as checkpoint:
            for spec in checkpoint.tensors.values():
                checkpoint.read_into(spec, 0, bytearray(spec.nbytes))
    except CheckpointError as error:
        assert "mutated.safetensors" in error.problems[0].where
