"""Which output tensor lies where: shard files, byte offsets, headers and the index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from merger.checkpoints.folder import SINGLE_FILE
from merger.checkpoints.header import LENGTH_BYTES, MAX_HEADER_BYTES, METADATA_KEY
from merger.errors import OutputError
from merger.types import DTYPES, TensorSpec

_ALIGNMENT = 8


@dataclass(frozen=True)
class ShardLayout:
    """One output file, complete but for the tensors' bytes.

    Attributes:
        file: its name.
        header: its first bytes: length and JSON, a multiple of 8 bytes long.
        tensors: specs in the order of their bytes, counted from the beginning of the file.
        size: bytes of the whole file.
    """

    file: str
    header: bytes
    tensors: tuple[TensorSpec, ...]
    size: int


def plan_shards(outputs: Sequence[TensorSpec], max_shard_bytes: int, metadata: Mapping[str, str]) -> list[ShardLayout]:
    """Distribute tensors over files; the same arguments give the same bytes.

    Tensors fill shards in the given order.  Inside a shard wider dtypes come first, so that
    every tensor begins at a multiple of its element size.

    Args:
        outputs: name, dtype and shape of every tensor; file and offsets are ignored.
        max_shard_bytes: tensor bytes of one file; a larger tensor gets a file of its own.
        metadata: texts for every shard's header.

    Raises:
        OutputError: names clash, or a header grows beyond what readers accept.
    """
    _check_names(outputs)
    groups = list(_fill_shards(outputs, max_shard_bytes)) or [[]]
    names = [SINGLE_FILE]
    if len(groups) > 1:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    return [_shard(name, group, metadata) for name, group in zip(names, groups, strict=True)]


def index_bytes(layouts: Sequence[ShardLayout]) -> bytes | None:
    """The index file of several shards, or None for a single one."""
    if len(layouts) == 1:
        return None
    specs = [spec for layout in layouts for spec in layout.tensors]
    content = {
        "metadata": {
            "total_parameters": sum(spec.numel for spec in specs),
            "total_size": sum(spec.nbytes for spec in specs),
        },
        "weight_map": {spec.name: spec.shard for spec in specs},
    }
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _check_names(outputs: Sequence[TensorSpec]) -> None:
    seen: set[str] = {METADATA_KEY}
    for spec in outputs:
        if spec.name in seen:
            raise OutputError(
                f"two output tensors would be named '{spec.name}', or the name is reserved.", hint="Rename one."
            )
        seen.add(spec.name)


def _size(spec: TensorSpec) -> int:
    return spec.numel * DTYPES[spec.dtype].itemsize


def _fill_shards(outputs: Iterable[TensorSpec], limit: int) -> Iterator[list[TensorSpec]]:
    group: list[TensorSpec] = []
    used = 0
    for spec in outputs:
        if group and used + _size(spec) > limit:
            yield group
            group, used = [], 0
        group.append(spec)
        used += _size(spec)
    if group:
        yield group


def _shard(file: str, group: Iterable[TensorSpec], metadata: Mapping[str, str]) -> ShardLayout:
    specs = []
    position = 0
    for spec in sorted(group, key=lambda spec: -DTYPES[spec.dtype].itemsize):
        specs.append(replace(spec, shard=file, start=position, stop=position + _size(spec)))
        position += _size(spec)
    header = _header(specs, metadata, file)
    tensors = tuple(replace(spec, start=spec.start + len(header), stop=spec.stop + len(header)) for spec in specs)
    return ShardLayout(file, header, tensors, len(header) + position)


def _header(specs: Iterable[TensorSpec], metadata: Mapping[str, str], file: str) -> bytes:
    entries: dict[str, Any] = {METADATA_KEY: dict(metadata)} if metadata else {}
    for spec in specs:
        entries[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [spec.start, spec.stop]}
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise OutputError(
            f"its header would have {len(text)} bytes, more than readers accept.",
            where=file,
            hint="Use smaller shards.",
        )
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
