"""What is special about checkpoints of tensors in memory."""

from __future__ import annotations

import pytest
import torch

from merger.checkpoints.memory import MemoryCheckpoint
from merger.errors import CheckpointError
from merger.types import ModelReference

MODEL = ModelReference("in memory")


def content(checkpoint: MemoryCheckpoint, name: str) -> torch.Tensor:
    spec = checkpoint.tensors[name]
    buffer = bytearray(spec.nbytes)
    checkpoint.read_into(spec, 0, buffer)
    return torch.frombuffer(buffer, dtype=torch.float32).reshape(spec.shape)


def test_tensors_with_strides_are_read_in_order():
    matrix = torch.arange(12.0).reshape(3, 4)
    checkpoint = MemoryCheckpoint(MODEL, {"turned": matrix.T, "part": matrix[:, 1:3]})
    assert torch.equal(content(checkpoint, "turned"), matrix.T)
    assert torch.equal(content(checkpoint, "part"), matrix[:, 1:3])


def test_parameters_that_need_gradients_are_read():
    parameter = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(content(MemoryCheckpoint(MODEL, {"w": parameter}), "w"), torch.ones(3))


def test_tensors_are_used_in_place():
    tensor = torch.zeros(4)
    checkpoint = MemoryCheckpoint(MODEL, {"w": tensor})
    tensor[2] = 5
    assert content(checkpoint, "w")[2] == 5


def test_the_state_tells_values_apart_and_the_digest_does_not_read_them():
    checkpoints = [MemoryCheckpoint(MODEL, {"w": torch.full((4,), value)}) for value in (1.0, 2.0, 3.0)]
    assert len({checkpoint.state for checkpoint in checkpoints}) == 3
    assert len({checkpoint.digest for checkpoint in checkpoints}) == 1


def test_it_has_a_configuration_and_no_files():
    checkpoint = MemoryCheckpoint(MODEL, {"w": torch.ones(1)}, {"model_type": "toy"})
    assert checkpoint.config == {"model_type": "toy"}
    assert not checkpoint.files
    assert checkpoint.shard_path(checkpoint.tensors["w"]) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=["complex", "sparse", "meta"],
)
def test_a_tensor_that_no_file_could_hold_is_named(tensor):
    with pytest.raises(CheckpointError, match="'odd'"):
        MemoryCheckpoint(MODEL, {"odd": tensor})
