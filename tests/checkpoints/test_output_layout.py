"""Which output tensor lies where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from merger.checkpoints.layout import ShardLayout, index_bytes, plan_shards
from merger.checkpoints.safetensors import SafetensorsCheckpoint
from merger.errors import OutputError
from merger.types import DTYPES
from tests.checkpoints.making import spec

METADATA = {"format": "pt", "recipe": "merge_method: linear\n"}


def files(layouts: list[ShardLayout]) -> dict[str, list[str]]:
    return {layout.file: [tensor.name for tensor in layout.tensors] for layout in layouts}


def test_what_fits_goes_into_one_file_without_an_index():
    layouts = plan_shards([spec("a"), spec("b")], 32, METADATA)
    assert files(layouts) == {"model.safetensors": ["a", "b"]}
    assert index_bytes(layouts) is None


def test_tensors_fill_files_in_the_given_order():
    layouts = plan_shards([spec(name) for name in "abcde"], 32, METADATA)
    assert files(layouts) == {
        "model-00001-of-00003.safetensors": ["a", "b"],
        "model-00002-of-00003.safetensors": ["c", "d"],
        "model-00003-of-00003.safetensors": ["e"],
    }


def test_a_tensor_larger_than_a_file_may_be_gets_its_own():
    layouts = plan_shards([spec("a"), spec("huge", shape=(100,)), spec("b"), spec("c")], 32, METADATA)
    assert list(files(layouts).values()) == [["a"], ["huge"], ["b", "c"]]


def test_wider_dtypes_come_first_and_the_rest_keeps_its_order():
    tensors = [spec("m", "U8", (3,)), spec("z", "F16", (3,)), spec("a", "F32", (1,)), spec("k", "F64", (1,)),
               spec("b", "F32", (1,)), spec("y", "BF16", (1,))]  # fmt: skip
    assert files(plan_shards(tensors, 1000, {}))["model.safetensors"] == ["k", "a", "b", "z", "y", "m"]


def test_no_tensors_give_one_empty_file():
    (layout,) = plan_shards([], 1000, {})
    assert layout.tensors == () and layout.size == len(layout.header)


def test_the_index_is_that_of_transformers():
    layouts = plan_shards([spec("b"), spec("c", "BF16", (2, 4)), spec("a")], 32, METADATA)
    content = index_bytes(layouts)
    assert content is not None
    index = json.loads(content)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index["metadata"] == {"total_size": 48, "total_parameters": 16}
    assert list(index["weight_map"].items()) == [("a", second), ("b", first), ("c", first)]


def test_the_header_has_sorted_keys_and_says_what_it_was_given():
    (layout,) = plan_shards([spec("b"), spec("a")], 1000, METADATA)
    header = json.loads(layout.header[8:])
    assert list(header) == sorted(header)
    assert header["__metadata__"] == METADATA
    assert header["a"] == {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}


@pytest.mark.parametrize("names", [["a", "b", "a"], ["__metadata__"]])
def test_names_that_clash_are_refused(names):
    with pytest.raises(OutputError, match=names[-1]):
        plan_shards([spec(name) for name in names], 1000, {})


def test_a_header_that_no_reader_accepts_is_refused():
    with pytest.raises(OutputError, match="smaller shards"):
        plan_shards([spec("a")], 1000, {"recipe": "x" * 100_000_000})


TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    min_size=1,
    max_size=12,
)


@given(
    tensors=TENSORS,
    limit=st.integers(0, 400),
    metadata=st.dictionaries(st.text("ab\u00fc\n", max_size=3), st.text("x\u00e9", max_size=5)),
)
def test_every_layout_is_sound_aligned_and_readable(tmp_path_factory, tensors, limit, metadata):
    outputs = [spec(name, dtype, shape) for name, (dtype, shape) in tensors.items()]
    layouts = plan_shards(outputs, limit, metadata)
    assert layouts == plan_shards(outputs, limit, metadata)
    folder = tmp_path_factory.mktemp("layout")
    write_zeros(folder, layouts)
    with SafetensorsCheckpoint.from_folder(folder) as checkpoint:
        assert {s.name: (s.dtype, s.shape) for s in checkpoint.tensors.values()} == tensors
        assert dict(checkpoint.tensors) == {s.name: s for layout in layouts for s in layout.tensors}
    for layout in layouts:
        assert len(layout.header) % 8 == 0
        assert all(tensor.start % DTYPES[tensor.dtype].itemsize == 0 for tensor in layout.tensors)
        with safe_open(folder / layout.file, "np") as theirs:
            assert set(theirs.keys()) == {tensor.name for tensor in layout.tensors}
            assert (theirs.metadata() or {}) == metadata


def write_zeros(folder: Path, layouts: list[ShardLayout]) -> None:
    for layout in layouts:
        (folder / layout.file).write_bytes(layout.header.ljust(layout.size, b"\0"))
    index = index_bytes(layouts)
    if index is not None:
        (folder / "model.safetensors.index.json").write_bytes(index)
