"""What every source of tensors must do, whatever it is made of."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from merger import checkpoints
from merger.checkpoints.base import Checkpoint
from merger.checkpoints.memory import MemoryCheckpoint
from merger.checkpoints.source import open_checkpoint
from merger.errors import CheckpointError
from merger.types import DTYPE_BY_NAME, DTYPES, ModelReference
from tests.checkpoints.making import many_kinds, reference, save_sharded

Tensors = dict[str, torch.Tensor]


def from_folder(tensors: Tensors, place: Path) -> Checkpoint:
    folder = place / "model"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return open_checkpoint(reference(folder))


def from_file(tensors: Tensors, place: Path) -> Checkpoint:
    save_file(tensors, place / "weights.safetensors")
    return open_checkpoint(reference(place / "weights.safetensors"))


def from_shards(tensors: Tensors, place: Path) -> Checkpoint:
    return open_checkpoint(reference(save_sharded(place / "sharded", tensors)))


def from_links(tensors: Tensors, place: Path) -> Checkpoint:
    """As the Hub's cache keeps a model: links to files that are named by their content."""
    (place / "blobs").mkdir()
    (place / "snapshot").mkdir()
    save_file(tensors, place / "blobs" / "0a1b2c")
    (place / "snapshot" / "model.safetensors").symlink_to(Path("..", "blobs", "0a1b2c"))
    return open_checkpoint(reference(place / "snapshot"))


def from_memory(tensors: Tensors, place: Path) -> Checkpoint:
    return MemoryCheckpoint(ModelReference("memory"), tensors)


SOURCES = [from_folder, from_file, from_shards, from_links, from_memory]


def test_every_source_is_held_to_this_contract(tmp_path):
    for module in pkgutil.iter_modules(checkpoints.__path__):
        importlib.import_module(f"{checkpoints.__name__}.{module.name}")
    ours = {kind for kind in Checkpoint.__subclasses__() if kind.__module__.startswith("merger.")}
    held = set()
    for source in SOURCES:
        place = tmp_path / source.__name__
        place.mkdir()
        with source({"w": torch.zeros(2)}, place) as opened:
            held.add(type(opened))
    assert held == ours


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__)
def source(request: pytest.FixtureRequest) -> Callable[[Tensors, Path], Checkpoint]:
    return request.param


@pytest.fixture
def checkpoint(source, tmp_path) -> Iterator[Checkpoint]:
    with source(many_kinds(), tmp_path) as opened:
        yield opened


def stored_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes as the safetensors library writes them."""
    return save({"only": tensor})[-tensor.numel() * tensor.element_size() :] if tensor.numel() else b""


def read(checkpoint: Checkpoint, name: str, start: int = 0, count: int | None = None) -> bytes:
    spec = checkpoint.tensors[name]
    buffer = bytearray(spec.nbytes - start if count is None else count)
    checkpoint.read_into(spec, start, buffer)
    return bytes(buffer)


def test_names_dtypes_and_shapes_are_those_that_were_saved(checkpoint):
    tensors = many_kinds()
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        spec = checkpoint.tensors[name]
        code = DTYPE_BY_NAME[str(tensor.dtype).removeprefix("torch.")].code
        assert (spec.name, spec.dtype, spec.shape) == (name, code, tuple(tensor.shape))
        assert spec.nbytes == tensor.numel() * tensor.element_size()


def test_every_supported_dtype_is_among_them(checkpoint):
    assert {spec.dtype for spec in checkpoint.tensors.values()} == set(DTYPES)


def test_whole_tensors_have_the_bytes_that_were_saved(checkpoint):
    for name, tensor in many_kinds().items():
        assert read(checkpoint, name) == stored_bytes(tensor), name


def test_any_piece_of_a_tensor_can_be_read(checkpoint):
    expected = stored_bytes(many_kinds()["large"])
    chance = random.Random(0)
    for _ in range(50):
        start, stop = sorted(chance.choices(range(len(expected) + 1), k=2))
        assert read(checkpoint, "large", start, stop - start) == expected[start:stop]


def test_tensors_come_in_the_order_of_their_bytes(checkpoint):
    places = [(spec.shard, spec.start) for spec in checkpoint.tensors.values()]
    assert places == sorted(places)


def test_reading_goes_straight_into_a_numpy_array(checkpoint):
    array = torch.empty(300, 1000).numpy()
    checkpoint.read_into(checkpoint.tensors["large"], 0, array)
    assert torch.equal(torch.from_numpy(array), many_kinds()["large"])


@pytest.mark.parametrize(("start", "count"), [(0, 9), (8, 1), (1, 4), (-1, 2), (-1, 0), (5, 0)])
def test_reading_outside_a_tensor_is_refused_and_names_it(checkpoint, start, count):
    with pytest.raises(CheckpointError, match="'scalar'"):
        read(checkpoint, "scalar", start, count)
    assert checkpoint.bytes_read == 0


def test_what_was_read_is_counted(checkpoint):
    assert checkpoint.bytes_read == 0
    read(checkpoint, "large", 100, 5000)
    read(checkpoint, "large", 0, 5000)
    read(checkpoint, "empty")
    assert checkpoint.bytes_read == 10_000


def test_many_threads_read_at_once(checkpoint):
    expected = stored_bytes(many_kinds()["large"])
    starts = [number * 1000 for number in range(1000)]
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda start: read(checkpoint, "large", start, 1000), starts))
    assert pieces == [expected[start : start + 1000] for start in starts]
    assert checkpoint.bytes_read == 1_000_000


def test_prefetching_changes_nothing(checkpoint):
    spec = checkpoint.tensors["large"]
    checkpoint.prefetch(spec, 0, spec.nbytes)
    checkpoint.prefetch(checkpoint.tensors["empty"], 0, 0)
    assert checkpoint.bytes_read == 0
    assert read(checkpoint, "large") == stored_bytes(many_kinds()["large"])


def test_the_weight_of_all_tensors_is_their_sum(checkpoint):
    assert checkpoint.weight_bytes == sum(t.numel() * t.element_size() for t in many_kinds().values())


def test_the_shard_of_a_tensor_holds_its_bytes_where_the_spec_says(checkpoint):
    spec = checkpoint.tensors["large"]
    path = checkpoint.shard_path(spec)
    if path is not None:
        assert path.read_bytes()[spec.start : spec.stop] == stored_bytes(many_kinds()["large"])


def test_the_digest_is_that_of_the_content_and_not_of_the_place(source, tmp_path):
    places = [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        place.mkdir()
    changed = many_kinds() | {"scalar": torch.zeros(2)}
    with (
        source(many_kinds(), places[0]) as first,
        source(many_kinds(), places[1]) as second,
        source(changed, places[2]) as third,
    ):
        assert first.digest == second.digest != third.digest
        assert len(first.digest) == 64


def test_an_untouched_source_is_unchanged(checkpoint):
    read(checkpoint, "large")
    checkpoint.verify_unchanged()
    assert checkpoint.config is None
