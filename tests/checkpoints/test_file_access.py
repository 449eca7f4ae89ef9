"""Reading, writing and copying at an offset, also where the system offers less than Linux."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from merger.checkpoints import fileio

CONTENT = bytes(range(256)) * 50
READERS = [fileio.read_vectored, fileio.read_positioned, fileio.read_seeking]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(CONTENT)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("read_some", READERS)
def test_every_way_of_reading_fills_the_buffer(file, monkeypatch, read_some):
    monkeypatch.setattr(fileio, "_read_some", read_some)
    buffer = bytearray(1000)
    assert fileio.read_fully(file, memoryview(buffer), 300) == 1000
    assert buffer == CONTENT[300:1300]


@pytest.mark.parametrize("read_some", READERS)
def test_every_way_of_reading_works_from_many_threads(file, monkeypatch, read_some):
    monkeypatch.setattr(fileio, "_read_some", read_some)

    def read(place: int) -> bool:
        buffer = bytearray(100)
        fileio.read_fully(file, memoryview(buffer), place)
        return buffer == CONTENT[place : place + 100]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(0, 12_000, 7)))


def test_reading_that_comes_in_small_pieces_is_put_together(file, monkeypatch):
    monkeypatch.setattr(fileio, "_read_some", lambda fd, view, offset: fileio.read_vectored(fd, view[:7], offset))
    buffer = bytearray(1000)
    assert fileio.read_fully(file, memoryview(buffer), 1) == 1000
    assert buffer == CONTENT[1:1001]


@pytest.mark.parametrize("read_some", READERS)
def test_reading_stops_at_the_end_of_the_file(file, monkeypatch, read_some):
    monkeypatch.setattr(fileio, "_read_some", read_some)
    assert fileio.read_fully(file, memoryview(bytearray(1000)), len(CONTENT) - 10) == 10


@pytest.mark.parametrize("write_some", [fileio.write_positioned, fileio.write_seeking])
def test_every_way_of_writing_puts_all_bytes_in_place(file, monkeypatch, write_some):
    monkeypatch.setattr(fileio, "_write_some", lambda fd, view, offset: write_some(fd, view[:99], offset))
    fileio.write_fully(file, memoryview(b"w" * 1000), 500)
    assert os.pread(file, 20_000, 0) == CONTENT[:500] + b"w" * 1000 + CONTENT[1500:]


def refusing(number: int):
    def copy(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return copy


@pytest.mark.parametrize("problem", [None, errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, "missing", "midway"])
def test_copying_works_where_the_kernel_does_not_help(file, tmp_path, monkeypatch, problem):
    if problem == "missing":
        monkeypatch.delattr(os, "copy_file_range")
    elif problem == "midway":
        kernel, calls = os.copy_file_range, iter([1, 2])

        def copy(source: int, target: int, count: int, *places: int) -> int:
            return kernel(source, target, 100, *places) if next(calls) == 1 else refusing(errno.EXDEV)()

        monkeypatch.setattr(os, "copy_file_range", copy)
    elif problem is not None:
        monkeypatch.setattr(os, "copy_file_range", refusing(problem))
    with open(tmp_path / "copy", "w+b") as copied:
        assert fileio.copy_range(file, copied.fileno(), 10, 5, 9000) == 9000
        assert copied.read() == bytes(5) + CONTENT[10:9010]


def test_copying_says_how_much_there_was(file, tmp_path):
    with open(tmp_path / "copy", "w+b") as copied:
        assert fileio.copy_range(file, copied.fileno(), len(CONTENT) - 10, 0, 100) == 10


def test_a_full_disk_is_not_taken_for_a_missing_feature(file, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with open(tmp_path / "copy", "w+b") as copied, pytest.raises(OSError, match="No space"):
        fileio.copy_range(file, copied.fileno(), 0, 0, 100)


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_allocating_sets_the_size_and_keeps_the_content(file, size):
    fileio.allocate(file, size)
    assert os.pread(file, 200_000, 0) == CONTENT[:size].ljust(size, b"\0")


def test_allocating_works_on_file_systems_that_cannot_reserve(file, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP))
    fileio.allocate(file, 50_000)
    assert os.fstat(file).st_size == 50_000
