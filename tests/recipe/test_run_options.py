"""How to run: options and sizes."""

import pytest

from merger.errors import UserError
from merger.recipe import RunOptions, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("5GB", 5_000_000_000),
        ("500MB", 500_000_000),
        ("2GiB", 2 << 30),
        ("1.5 gb", 1_500_000_000),
        ("0.1KiB", 102),
        ("64k", 64_000),
        ("3TB", 3 * 10**12),
        ("123", 123),
        (" 7b ", 7),
        (456, 456),
    ],
)
def test_sizes_are_read_as_people_write_them(written: str | int, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "GB", "5 apples", "-1GB", "0", "1e9", "nan", "5GBB", "9" * 40])
def test_other_sizes_are_refused_with_an_example(written: str) -> None:
    with pytest.raises(UserError, match=r"is not a size\. Write it like 5GB"):
        parse_size(written)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "cuda:all"])
def test_devices(device: str) -> None:
    assert RunOptions(device=device).device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:-1", "cuda:every", "cuda:0,1", "CUDA", "cuda:0\n"])
def test_other_devices_are_refused_with_those_that_exist(device: str) -> None:
    with pytest.raises(UserError, match=r"is not a device\. Use auto, cpu, cuda, cuda:0 or cuda:all"):
        RunOptions(device=device)


def test_all_wrong_options_are_reported_together() -> None:
    with pytest.raises(UserError) as caught:
        RunOptions(device="gpu", workers=0, shard_size=0)
    assert [problem.where for problem in caught.value.problems] == ["device", "workers", "shard_size"]


def test_defaults_are_safe() -> None:
    options = RunOptions()
    assert (options.device, options.shard_size, options.overwrite, options.resume) == ("auto", 5 * 10**9, False, False)
