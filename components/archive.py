"""The exact layout of a zip archive before any of its bytes exist.

Files are stored, not compressed (weights do not shrink), and their checksums are known, so every
offset follows from names and sizes: any range of the archive can be produced from the files alone.
Layout after PKWARE's APPNOTE 6.3.10, with the zip64 fields where a number needs them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_LOCAL, _CENTRAL, _END, _END64, _LOCATOR64 = 0x04034B50, 0x02014B50, 0x06054B50, 0x06064B50, 0x07064B50
_UNIX = 3 << 8
_REGULAR_FILE_0644 = 0o100644 << 16
_TIME, _DATE = 0, (1 << 5) | 1  # 1980-01-01 00:00, the first moment that the format knows
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_PLAIN, _ZIP64 = 20, 45  # version needed to extract
_UTF8_NAME = 0x800


@dataclass(frozen=True)
class Entry:
    """One file of an archive: the name it gets there, its bytes and their CRC-32."""

    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class Part:
    """Consecutive bytes of an archive: headers as they are, or all of entry number ``entry``."""

    start: int
    stop: int
    data: bytes = b""
    entry: int | None = None


@dataclass(frozen=True)
class Archive:
    """The layout of an archive.

    Attributes:
        parts: in order, without gaps.
        size: bytes in all.
    """

    parts: tuple[Part, ...]
    size: int

    @property
    def digest(self) -> str:
        """Names the content: the headers hold every name, size and checksum."""
        headers = b"".join(part.data for part in self.parts)
        return hashlib.sha256(headers).hexdigest()[:32]


def layout(entries: Sequence[Entry]) -> Archive:
    """Lay out an archive of these files in this order."""
    parts: list[Part] = []
    offset = 0
    central: list[bytes] = []
    for number, entry in enumerate(entries):
        central.append(_central_header(entry, offset))
        header = _local_header(entry)
        body = offset + len(header)
        parts += [Part(offset, body, header), Part(body, body + entry.size, entry=number)]
        offset = body + entry.size
    directory = b"".join(central)
    tail = directory + _end(len(entries), len(directory), offset)
    parts.append(Part(offset, offset + len(tail), tail))
    return Archive(tuple(parts), offset + len(tail))


def _name(entry: Entry) -> tuple[bytes, int]:
    return entry.name.encode(), 0 if entry.name.isascii() else _UTF8_NAME


def _local_header(entry: Entry) -> bytes:
    name, flags = _name(entry)
    large = entry.size >= _MAX32
    size, version = (_MAX32, _ZIP64) if large else (entry.size, _PLAIN)
    extra = struct.pack("<HHQQ", 1, 16, entry.size, entry.size) if large else b""
    fixed = (_LOCAL, version, flags, 0, _TIME, _DATE, entry.crc32, size, size, len(name), len(extra))
    return struct.pack("<IHHHHHIIIHH", *fixed) + name + extra


def _central_header(entry: Entry, offset: int) -> bytes:
    name, flags = _name(entry)
    large = [entry.size, entry.size] if entry.size >= _MAX32 else []
    far = [offset] if offset >= _MAX32 else []
    fields = struct.pack(f"<{len(large + far)}Q", *large, *far)
    extra = struct.pack("<HH", 1, len(fields)) + fields if fields else b""
    version = _ZIP64 if extra else _PLAIN
    size = min(entry.size, _MAX32)
    fixed = (_CENTRAL, _UNIX | version, version, flags, 0, _TIME, _DATE, entry.crc32, size, size, len(name), len(extra))
    rest = (0, 0, 0, _REGULAR_FILE_0644, min(offset, _MAX32))
    return struct.pack("<IHHHHHHIIIHH", *fixed) + struct.pack("<HHHII", *rest) + name + extra


def _end(count: int, size: int, offset: int) -> bytes:
    """The end record; ``count`` entries in a directory of ``size`` bytes at ``offset``."""
    numbers = (min(count, _MAX16), min(count, _MAX16), min(size, _MAX32), min(offset, _MAX32))
    plain = struct.pack("<IHHHHIIH", _END, 0, 0, *numbers, 0)
    if count < _MAX16 and size < _MAX32 and offset < _MAX32:
        return plain
    fixed = (_END64, 44, _UNIX | _ZIP64, _ZIP64, 0, 0, count, count, size, offset)
    return struct.pack("<IQHHIIQQQQ", *fixed) + struct.pack("<IIQI", _LOCATOR64, 0, offset + size, 1) + plain
