"""The layout of a zip archive, checked against Python's reader and against zip64's limits."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import zipfile
import zlib

import pytest

from components.archive import Archive, Entry, layout

FILES = {"m/a.txt": b"hello", "m/empty": b"", "m/1_Pooling/config.json": b"{}" * 500, "m/größe.bin": bytes(range(256))}


def entries_of(files: dict[str, bytes]) -> list[Entry]:
    return [Entry(name, len(data), zlib.crc32(data)) for name, data in files.items()]


def built(archive: Archive, contents: list[bytes]) -> bytes:
    return b"".join(part.data if part.entry is None else contents[part.entry] for part in archive.parts)


def test_every_reader_opens_it(tmp_path):
    archive = layout(entries_of(FILES))
    data = built(archive, list(FILES.values()))
    assert archive.size == len(data)
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None
        assert {info.filename: opened.read(info) for info in opened.infolist()} == FILES
        assert {info.date_time for info in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in opened.infolist()} == {0o100644}
        assert {info.compress_type for info in opened.infolist()} == {zipfile.ZIP_STORED}
    if unzip := shutil.which("unzip"):
        (tmp_path / "x.zip").write_bytes(data)
        assert subprocess.run([unzip, "-t", tmp_path / "x.zip"], capture_output=True, check=False).returncode == 0


def test_the_same_files_give_the_same_bytes_and_others_another_digest():
    assert layout(entries_of(FILES)) == layout(entries_of(FILES))
    changed = {**FILES, "m/a.txt": b"hellO"}
    assert layout(entries_of(changed)).digest != layout(entries_of(FILES)).digest


def test_an_empty_archive_is_an_archive():
    assert zipfile.ZipFile(io.BytesIO(built(layout([]), []))).namelist() == []


class SparseFile(io.RawIOBase):
    """A file of zeros with the headers of an archive in their places."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.position = archive, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = (0, self.position, self.archive.size)[whence] + offset
        return self.position

    def read(self, size: int = -1) -> bytes:
        stop = self.archive.size if size < 0 else min(self.archive.size, self.position + size)
        wanted, data = range(self.position, stop), b""
        for part in self.archive.parts:
            first, last = max(part.start, wanted.start), min(part.stop, wanted.stop)
            if first < last:
                data += (
                    bytes(last - first) if part.entry is not None else part.data[first - part.start : last - part.start]
                )
        self.position = stop
        return data


@pytest.mark.parametrize(
    "sizes",
    [
        [5_000_000_000, 5_000_000_000, 7],
        [2**32 - 2, 3],
        [2**32 - 1, 3],
        [2**32, 3],
        [2**31, 2**31, 0, 1],
        [10**13],
    ],
)
def test_archives_beyond_four_gigabytes(sizes):
    archive = layout(
        [Entry(f"f{number}", size, zlib.crc32(bytes(size)) if size < 9 else 0) for number, size in enumerate(sizes)]
    )

    with zipfile.ZipFile(SparseFile(archive)) as opened:
        assert [info.file_size for info in opened.infolist()] == sizes
        assert [info.compress_size for info in opened.infolist()] == sizes
        for info, part in zip(opened.infolist(), archive.parts[::2], strict=False):
            assert info.header_offset == part.start
            with opened.open(info) as file:  # checks the local header
                assert file.read(3) == bytes(min(3, info.file_size))
    bodies = [part for part in archive.parts if part.entry is not None]
    assert [part.stop - part.start for part in bodies] == sizes


def test_more_files_than_sixteen_bits_can_count():
    archive = layout([Entry(f"{number}", 0, 0) for number in range(70_000)])
    assert len(zipfile.ZipFile(io.BytesIO(built(archive, [b""] * 70_000))).namelist()) == 70_000


def test_small_archives_carry_no_zip64_fields():
    data = built(layout(entries_of(FILES)), list(FILES.values()))
    assert b"PK\x06\x06" not in data
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert {info.extract_version for info in opened.infolist()} == {20}


def test_parts_follow_each_other_without_gaps():
    generator = random.Random(0)
    archive = layout([Entry(f"{number}", generator.randrange(2**34), 0) for number in range(50)])
    assert archive.parts[0].start == 0
    assert archive.parts[-1].stop == archive.size
    assert all(left.stop == right.start for left, right in zip(archive.parts, archive.parts[1:], strict=False))
