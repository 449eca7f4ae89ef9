"""Writing an output: any order, any cut, and what stands there at the end."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from merger.checkpoints.layout import ShardLayout, plan_shards
from merger.checkpoints.memory import MemoryCheckpoint
from merger.checkpoints.source import open_checkpoint
from merger.checkpoints.writer import OutputFolder
from merger.errors import Cancelled, CheckpointError, OutputError
from merger.types import DTYPE_BY_NAME, ModelReference, TensorSpec
from tests.checkpoints.making import many_kinds, reference

FINGERPRINT = {"recipe": "merge_method: linear", "inputs": {"a": "1", "b": "2"}}
TENSORS = many_kinds()
MODEL = MemoryCheckpoint(ModelReference("expected"), TENSORS)
OUTPUTS = [TensorSpec(s.name, s.dtype, s.shape) for s in MODEL.tensors.values()]


def layouts(max_shard_bytes: int = 1000) -> list[ShardLayout]:
    return plan_shards(OUTPUTS, max_shard_bytes, {"format": "pt", "recipe": "merge_method: linear"})


def data(name: str, start: int = 0, stop: int | None = None) -> bytearray:
    spec = MODEL.tensors[name]
    buffer = bytearray((spec.nbytes if stop is None else stop) - start)
    MODEL.read_into(spec, start, buffer)
    return buffer


def spans(step: int = 70_001) -> list[tuple[str, int, int]]:
    sizes = {name: spec.nbytes for name, spec in MODEL.tensors.items()}
    return [(n, start, min(start + step, size)) for n, size in sizes.items() for start in range(0, size, step)]


def write_all(folder: OutputFolder, pieces: Sequence[tuple[str, int, int]] | None = None) -> None:
    for name, start, stop in spans() if pieces is None else pieces:
        folder.write(name, start, memoryview(data(name, start, stop)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "place" / "out"


@pytest.fixture
def folder(target: Path) -> Iterator[OutputFolder]:
    with OutputFolder.create(target, layouts(), FINGERPRINT) as folder:
        yield folder


def loaded(target: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_the_safetensors_library_loads_what_was_written(folder, target):
    write_all(folder)
    assert folder.verify() == {}
    assert folder.commit() == target
    found = loaded(target)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(torch.uint8) if tensor.dim() else found[name],
                           tensor.view(torch.uint8) if tensor.dim() else tensor)  # fmt: skip


def test_several_files_come_with_an_index_and_one_without(folder, target, tmp_path):
    write_all(folder)
    folder.commit()
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(TENSORS)
    assert set(index["weight_map"].values()) == {path.name for path in target.glob("*.safetensors")}
    with OutputFolder.create(tmp_path / "one", layouts(10**9), FINGERPRINT) as single:
        write_all(single)
        single.commit()
    assert list(contents(tmp_path / "one")) == ["model.safetensors"]


@pytest.mark.parametrize("seed", range(4))
def test_order_and_cut_of_the_writes_do_not_show(folder, target, tmp_path, seed):
    write_all(folder)
    folder.commit()
    pieces = spans(random.Random(seed).randrange(1000, 100_000))
    random.Random(seed).shuffle(pieces)
    with OutputFolder.create(tmp_path / "shuffled", layouts(), FINGERPRINT) as shuffled:
        write_all(shuffled, pieces)
        shuffled.verify()
        shuffled.commit()
    assert contents(tmp_path / "shuffled") == contents(target)


def test_many_threads_write_at_once(folder, target):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda piece: folder.write(piece[0], piece[1], data(*piece)), spans(5000)))
    folder.verify()
    folder.commit()
    with open_checkpoint(reference(target)) as written:
        assert {name: spec.shape for name, spec in written.tensors.items()} == {
            name: tuple(tensor.shape) for name, tensor in TENSORS.items()
        }


def test_nothing_stands_at_the_target_before_the_commit(folder, target):
    write_all(folder)
    folder.verify()
    assert not target.exists()
    assert folder.path == target.parent / ".out.partial"
    folder.commit()
    assert [path.name for path in target.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("umask", [0o077, 0o000, 0o022])
def test_every_file_is_readable_for_all(target, umask):
    before = os.umask(umask)
    try:
        with OutputFolder.create(target, layouts(), FINGERPRINT) as folder:
            write_all(folder)
            folder.add_file("config.json", b"{}")
            folder.add_file("1_Pooling/config.json", b"{}")
            folder.commit()
    finally:
        os.umask(before)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}


def test_counts_of_infinities_are_added_up_by_tensor(folder):
    for name, start, stop in spans():
        folder.write(name, start, data(name, start, stop), non_finite=2 if name == "large" else 0)
    pieces = sum(name == "large" for name, _, _ in spans())
    assert pieces > 1
    assert folder.verify() == {"large": 2 * pieces}


def test_verification_tells_how_far_it_is(folder):
    write_all(folder)
    steps = list(folder.verify_steps())
    assert steps == sorted(steps)
    assert steps[-1] == MODEL.weight_bytes


def test_verification_stops_when_asked(folder):
    write_all(folder)
    with pytest.raises(Cancelled):
        folder.verify(lambda: True)


def shard_of(folder: OutputFolder, name: str) -> tuple[Path, TensorSpec]:
    spec = next(spec for layout in folder.layouts for spec in layout.tensors if spec.name == name)
    return folder.path / spec.shard, spec


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_verification_finds_a_single_flipped_bit(folder, where):
    write_all(folder)
    path, spec = shard_of(folder, "large")
    flip(path, {"first": spec.start, "middle": spec.start + 123_456, "last": spec.stop - 1}[where])
    with pytest.raises(OutputError, match="tensor 'large' are not what was written"):
        folder.verify()


def test_verification_finds_a_damaged_header(folder):
    write_all(folder)
    path, _ = shard_of(folder, "large")
    flip(path, 12)
    with pytest.raises(OutputError, match=r"cannot be read|headers"):
        folder.verify()


def test_verification_finds_a_missing_file(folder):
    write_all(folder)
    shard_of(folder, "large")[0].unlink()
    with pytest.raises(OutputError, match="missing"):
        folder.verify()


@pytest.mark.parametrize("finish", ["verify", "commit"])
def test_an_unfinished_output_is_neither_verified_nor_committed(folder, target, finish):
    write_all(folder, [piece for piece in spans() if piece[:2] != ("large", 70_001)])
    with pytest.raises(OutputError, match="1 of 18 tensors are not finished: large"):
        getattr(folder, finish)()
    assert not target.exists()


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 5), (4, 1), (3, 2)])
def test_bytes_outside_a_tensor_are_never_written(folder, start, size):
    before = contents(folder.path)
    with pytest.raises(OutputError, match="do not lie inside tensor 'scalar'"):
        folder.write("scalar", start, bytes(size))
    with pytest.raises(OutputError, match="do not lie inside tensor 'scalar'"):
        folder.copy_from("scalar", MODEL, MODEL.tensors["scalar"], start, start + size)
    assert contents(folder.path) == before


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("step", [70_000, 10**9])
def test_tensors_are_copied_as_they_are(folder, target, tmp_path, kind, step):
    save_file(TENSORS, tmp_path / "source.safetensors")
    source = open_checkpoint(reference(tmp_path / "source.safetensors")) if kind == "file" else MODEL
    for name, start, stop in spans(step):
        folder.copy_from(name, source, source.tensors[name], start, stop)
    folder.verify()
    folder.commit()
    source.close()
    with open_checkpoint(reference(target)) as written:
        for name, spec in written.tensors.items():
            assert (target / spec.shard).read_bytes()[spec.start : spec.stop] == data(name)


def test_copying_works_without_the_help_of_the_kernel(folder, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range")
    save_file(TENSORS, tmp_path / "source.safetensors")
    with open_checkpoint(reference(tmp_path / "source.safetensors")) as source:
        for name, spec in source.tensors.items():
            folder.copy_from(name, source, spec, 0, spec.nbytes)
    folder.verify()


def test_copying_from_a_truncated_file_names_file_and_tensor(folder, tmp_path):
    path = tmp_path / "source.safetensors"
    save_file(TENSORS, path)
    with open_checkpoint(reference(path)) as source:
        spec = source.tensors["large"]
        os.truncate(path, spec.start + 1000)
        with pytest.raises(CheckpointError, match=r"source\.safetensors: .* ends inside tensor 'large'"):
            folder.copy_from("large", source, spec, 0, spec.nbytes)


def test_what_is_finished_is_known(folder):
    write_all(folder, [("large", 500, 900), ("large", 0, 500), ("scalar", 0, 4), ("empty", 0, 0)])
    assert folder.finished == {"large": [(0, 500), (500, 900)], "scalar": [(0, 4)]}


def test_a_span_that_is_written_twice_counts_once(folder):
    folder.write("scalar", 0, bytes(4), non_finite=1)
    write_all(folder)
    assert folder.verify() == {}


def test_side_files_are_written_and_may_be_replaced(folder, target):
    folder.add_file("README.md", b"a long first version")
    folder.add_file("README.md", b"short")
    folder.add_file("1_Pooling/config.json", b"{}")
    write_all(folder)
    folder.commit()
    assert (target / "README.md").read_bytes() == b"short"
    assert (target / "1_Pooling" / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    "name",
    ["../outside", "/absolute", "a/../../b", "", ".", "..", "a//b", "back\\slash", "zero\0",
     "model.safetensors.index.json", "model-00001-of-00002.safetensors", "stale.safetensors", ".mixdesk-journal"],
)  # fmt: skip
def test_side_files_cannot_leave_the_folder_or_replace_weights(folder, name):
    before = contents(folder.path)
    with pytest.raises(OutputError, match="no name for a file"):
        folder.add_file(name, b"x")
    assert contents(folder.path) == before


def test_discarding_leaves_nothing(folder, target):
    write_all(folder, spans()[:3])
    folder.discard()
    assert list(target.parent.iterdir()) == []


def test_abandoning_keeps_the_work(folder, target):
    write_all(folder, spans()[:3])
    folder.abandon()
    folder.abandon()
    assert [path.name for path in target.parent.iterdir()] == [".out.partial"]


def test_no_time_or_place_enters_the_output(folder, target, tmp_path):
    write_all(folder)
    folder.commit()
    other = tmp_path / "elsewhere" / "deeper" / "name"
    with OutputFolder.create(other, layouts(), FINGERPRINT) as second:
        write_all(second)
        second.commit()
    assert contents(other) == contents(target)
    assert str(tmp_path).encode() not in b"".join(contents(target).values())


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_too_small_is_noticed_at_the_start_and_leaves_nothing(target, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.raises(OutputError, match="disk is full"):
        OutputFolder.create(target, layouts(), FINGERPRINT)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("call", ["pwrite", "write"])
def test_a_disk_that_fills_up_is_told_and_keeps_the_work(folder, monkeypatch, call):
    folder.write("large", 0, bytes(1000))
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(OutputError, match="disk is full"):
        folder.write("large", 1000, bytes(1000))
    assert folder.finished == {"large": [(0, 1000)]}


def test_threads_and_files_are_given_back(target):
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for ending in ("commit", "abandon", "discard"):
        folder = OutputFolder.create(target.with_name(ending), layouts(), FINGERPRINT)
        write_all(folder)
        folder.verify()
        getattr(folder, ending)()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)


def test_dtypes_of_the_outputs_are_all_there_are():
    assert {spec.dtype for spec in OUTPUTS} == {dtype.code for dtype in DTYPE_BY_NAME.values()}
