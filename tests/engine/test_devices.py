"""Blocks are computed on another device with the same result, and nothing races on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

import merger
from merger import MergeMethod, MergeTensorInput, MethodError, ModelReference, Recipe, RunOptions, Task, UserError
from merger.devices import find_devices
from merger.devices.base import Device
from merger.devices.streamed import Lane
from merger.methods import registry
from merger.types import BLOCK_ELEMENTS
from tests.engine.far_device import FAR, FarLanes
from tests.engine.late_device import LateDevice, LateLanes, Moment, Race

SETTINGS = {"weight": 0.6, "density": 0.5, "t": 0.3}
SHAPES = {
    "model.layers.0.mlp.weight": (520, 512),
    "model.layers.0.norm.weight": (1024,),
    "model.layers.1.mlp.weight": (65, 4100),
    "model.layers.1.scale": (),
}
"""The matrices have two blocks."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and two fine-tunes: bfloat16, with one tensor of float32 and one of float64."""
    root = tmp_path_factory.mktemp("devices")
    generator = torch.Generator().manual_seed(5)
    base = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    folders = []
    for number in range(3):
        folder = root / f"model{number}"
        folder.mkdir()
        tensors = {
            name: (w + 0.02 * number * torch.randn(w.shape, generator=generator)).to(_stored(name))
            for name, w in base.items()
        }
        save_file(tensors, folder / "model.safetensors")
        folders.append(folder)
    return folders


def _stored(name: str) -> torch.dtype:
    if name.endswith("1.mlp.weight"):
        return torch.float64
    return torch.float32 if name.endswith("norm.weight") else torch.bfloat16


def recipe(models: list[Path], method: str) -> Recipe:
    """A recipe that fits the method, whatever it is."""
    found = registry.get(method)
    own = {p.name: SETTINGS[p.name] for p in found.tensor_parameters() if p.name in SETTINGS}
    shared = {p.name: SETTINGS[p.name] for p in found.parameters() if p.name in SETTINGS}
    base, *others = models
    needs_base = found.base in ("required", "optional")
    entries = [(str(path), own) for path in others[: found.max_models]]
    return Recipe.build(method, entries, base=str(base) if needs_base else None, parameters=shared)


def merged(
    models: list[Path], method: str, out: Path, devices: list[Device], monkeypatch, **options: object
) -> dict[str, torch.Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr("merger.merging.find_devices", lambda wanted: devices)
        *_, last = merger.merge(recipe(models, method), out, RunOptions(**options))
    assert isinstance(last, merger.Merged)
    return load_file(out / "model.safetensors")


def on_the_processor(models: list[Path], method: str, out: Path) -> dict[str, torch.Tensor]:
    list(merger.merge(recipe(models, method), out, RunOptions(device="cpu", workers=1)))
    return load_file(out / "model.safetensors")


def same_bytes(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name].reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))
        for name in left
    )


@pytest.mark.parametrize("method", sorted(registry.names()))
def test_every_method_gives_the_same_bytes_through_a_devices_buffers(models, method, tmp_path, monkeypatch):
    device = LateDevice()
    result = merged(models, method, tmp_path / "late", [device], monkeypatch, workers=2)
    assert same_bytes(result, on_the_processor(models, method, tmp_path / "processor"))
    assert 1 <= device.threads <= 2


@pytest.mark.parametrize("method", sorted(registry.names()))
def test_no_method_mixes_the_devices_memory_with_the_processors(models, method, tmp_path, monkeypatch):
    device = LateDevice(lanes=FarLanes)
    result = merged(models, method, tmp_path / "far", [device], monkeypatch, workers=1)
    assert same_bytes(result, on_the_processor(models, method, tmp_path / "processor"))


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (1, 5), (3, 1), (3, 5)])
def test_any_number_of_devices_gives_the_same_bytes(models, count, workers, tmp_path, monkeypatch):
    devices = [LateDevice(f"late:{number}") for number in range(count)]
    result = merged(models, "dare_ties", tmp_path / "late", list(devices), monkeypatch, workers=workers)
    assert same_bytes(result, on_the_processor(models, "dare_ties", tmp_path / "processor"))


def test_every_device_gets_threads_of_its_own(models, tmp_path, monkeypatch):
    devices = [LateDevice(f"late:{number}") for number in range(3)]
    method = type(registry.get("task_arithmetic"))
    combine, everyone, met = method.combine, threading.Barrier(3, timeout=30), threading.local()

    def meeting(self, context, block, measured):
        if not hasattr(met, "already"):
            met.already = everyone.wait()
        return combine(self, context, block, measured)

    monkeypatch.setattr(method, "combine", meeting)
    merged(models, "task_arithmetic", tmp_path / "late", list(devices), monkeypatch, workers=3)
    assert [device.threads for device in devices] == [1, 1, 1]
    assert all(device.log.count("upload") > 0 for device in devices)


def test_the_next_block_is_on_its_way_while_one_is_computed(tmp_path, monkeypatch):
    for number in range(2):
        (tmp_path / f"model{number}").mkdir()
        tensor = torch.full((4 * BLOCK_ELEMENTS,), float(number))
        save_file({"w": tensor}, tmp_path / f"model{number}" / "model.safetensors")
    device, two = LateDevice(), [tmp_path / "model0", tmp_path / "model1"]
    merged(two, "task_arithmetic", tmp_path / "late", [device], monkeypatch, workers=1)
    both = ["upload", "upload"]
    assert [step for step in device.log if step != "download"] == [
        *[*both, *both, "compute"],  # the second block leaves before the first is computed
        *[*both, "compute"],
        *[*both, "compute"],
        *["deliver", "compute"],  # a result is written when its buffer is needed again
        *["deliver", "deliver", "deliver"],
    ]


def forgetting(method: str, lane: Lane | None) -> type[LateLanes]:
    """Lanes to which one kind of waiting does not get through."""

    class Forgetting(LateLanes):
        def wait(self, waiting: Lane, mark: Moment) -> None:
            if (method, lane) != ("wait", waiting):
                super().wait(waiting, mark)

        def synchronize(self, mark: Moment) -> None:
            if (method, lane) != ("synchronize", mark.lane):
                super().synchronize(mark)

    return Forgetting


@pytest.mark.parametrize(
    ("method", "lane"),
    [("wait", Lane.UP), ("wait", Lane.DOWN), ("synchronize", Lane.UP)],
)
def test_a_transport_that_does_not_wait_is_caught(models, method, lane, tmp_path, monkeypatch):
    device = LateDevice(lanes=forgetting(method, lane))
    with pytest.raises(Race):
        merged(models, "task_arithmetic", tmp_path / "late", [device], monkeypatch, workers=1)


@pytest.mark.parametrize(("method", "lane"), [("wait", Lane.COMPUTE), ("synchronize", Lane.DOWN)])
def test_data_that_is_not_waited_for_is_garbage(models, method, lane, tmp_path, monkeypatch):
    device = LateDevice(lanes=forgetting(method, lane))
    result = merged(models, "task_arithmetic", tmp_path / "late", [device], monkeypatch, workers=1)
    assert not same_bytes(result, on_the_processor(models, "task_arithmetic", tmp_path / "processor"))


def test_an_error_of_a_method_leaves_nothing_on_its_way(models, tmp_path, monkeypatch):
    calls = []
    method = type(registry.get("task_arithmetic"))
    combine = method.combine

    def failing(self, context, block, measured):
        calls.append(block)
        if len(calls) == 2:
            raise MethodError("this block cannot be merged.")
        return combine(self, context, block, measured)

    monkeypatch.setattr(method, "combine", failing)
    device = LateDevice()
    with pytest.raises(MethodError, match="this block cannot be merged"):
        merged(models, "task_arithmetic", tmp_path / "late", [device], monkeypatch, workers=1)
    assert not (tmp_path / "late").exists()
    monkeypatch.undo()
    options = RunOptions(device="cpu", workers=1, resume=True)
    list(merger.merge(recipe(models, "task_arithmetic"), tmp_path / "late", options))
    expected = on_the_processor(models, "task_arithmetic", tmp_path / "processor")
    assert same_bytes(load_file(tmp_path / "late" / "model.safetensors"), expected)


class WhereTask(Task[torch.Tensor]):
    """Notes where its arguments are."""

    tensors: MergeTensorInput
    wants: bool
    seen: ClassVar[list[torch.device]] = []

    def uses_accelerator(self) -> bool:
        return self.wants

    def execute(self, tensors: dict[ModelReference, torch.Tensor]) -> torch.Tensor:
        self.seen.extend(tensor.device for tensor in tensors.values())
        return next(iter(tensors.values())) * 2


class Where(MergeMethod):
    def __init__(self, wants: bool) -> None:
        self.wants = wants

    def name(self) -> str:
        return "where_for_test"

    def make_task(self, *, tensors: MergeTensorInput, **kwargs: object) -> Task[torch.Tensor]:
        return WhereTask(tensors=tensors, wants=self.wants)


@pytest.mark.parametrize("wants", [True, False])
def test_the_tensors_of_a_task_of_its_own_kind_are_moved_if_it_wants_them_so(models, wants, tmp_path, monkeypatch):
    WhereTask.seen.clear()
    registry.register(Where(wants))
    try:
        device = LateDevice(lanes=FarLanes)
        result = merged(models[:2], "where_for_test", tmp_path / "far", [device], monkeypatch, workers=1)
    finally:
        registry.unregister("where_for_test")
    assert set(WhereTask.seen) == {FAR if wants else torch.device("cpu")}
    first = load_file(models[1] / "model.safetensors")
    assert same_bytes(result, {name: (tensor.float() * 2).to(tensor.dtype) for name, tensor in first.items()})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:all"])
def test_a_gpu_that_is_not_there_is_an_error_before_anything_is_made(models, device, tmp_path):
    with pytest.raises(UserError, match="no CUDA device was found"):
        list(merger.merge(recipe(models, "linear"), tmp_path / "out", RunOptions(device=device)))
    assert list(tmp_path.iterdir()) == []


def test_devices_are_found_by_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = {
        wanted: [device.name for device in find_devices(wanted)]
        for wanted in ("cpu", "auto", "cuda", "cuda:1", "cuda:all")
    }
    assert found == {
        "cpu": ["cpu"],
        "auto": ["cuda:0"],
        "cuda": ["cuda:0"],
        "cuda:1": ["cuda:1"],
        "cuda:all": ["cuda:0", "cuda:1"],
    }
    with pytest.raises(UserError, match="there is no GPU number 2") as error:
        find_devices("cuda:2")
    assert "cuda:0, cuda:1" in error.value.problems[0].hint
