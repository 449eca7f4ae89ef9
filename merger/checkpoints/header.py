"""The header of a safetensors file: read strictly, trusted by nobody before.

A file is eight bytes with the header's length N (little endian), N bytes of JSON, and the
tensors' bytes without holes.  See https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import string
import sys
from collections import Counter
from typing import Any, NoReturn, TypeGuard

from merger.errors import CheckpointError
from merger.types import DTYPES, TensorSpec

MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"
_MAX_TENSOR_BYTES = 1 << 63

_OTHER_FORMATS = (
    (b"version ", "a Git LFS pointer, not the weights", "Run `git lfs pull` in the model's folder."),
    (b"PK\x03\x04", "a PyTorch or zip file", "Convert it to safetensors."),
    (b"\x80\x02", "a Python pickle", "Convert it to safetensors."),
    (b"GGUF", "a GGUF file", "Use the model's safetensors files instead."),
    (b"<", "a web page", "Download the file again, signed in if the model needs it."),
)
_TEXT = string.printable.encode()


def header_length(prefix: bytes, file_size: int, where: str) -> int:
    """The length of the JSON text, as the file's first eight bytes say.

    Args:
        prefix: the first eight bytes, or fewer of a shorter file.
        file_size: bytes of the whole file.
        where: the file's name for messages.

    Raises:
        CheckpointError: the file is something else, cut short, or lies about the length.
    """
    if len(prefix) < LENGTH_BYTES:
        _refuse(where, f"the file is too short: {file_size} bytes are no safetensors file.")
    length = int.from_bytes(prefix, "little")
    if LENGTH_BYTES + length <= file_size and length <= MAX_HEADER_BYTES:
        return length
    for magic, kind, hint in _OTHER_FORMATS:
        if prefix.startswith(magic):
            raise CheckpointError(f"this is {kind}.", where=where, hint=hint)
    if all(byte in _TEXT for byte in prefix):
        raise CheckpointError(
            "this is a text file.", where=where, hint="Give a model's folder or its safetensors file."
        )
    if LENGTH_BYTES + length > file_size:
        _refuse(where, f"the header claims {length} bytes, but the whole file has only {file_size}.")
    _refuse(where, f"the header claims {length} bytes, more than the {MAX_HEADER_BYTES} that are allowed.")


def parse_header(text: bytes, file_size: int, shard: str, where: str) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """Read and check the JSON text of a header.

    Args:
        text: the JSON bytes, without the length in front.
        file_size: bytes of the whole file.
        shard: the file's name inside its checkpoint, for the specs.
        where: the file's name for messages.

    Returns:
        The specs in the order of their bytes, and the metadata.

    Raises:
        CheckpointError: any lie about names, types, shapes or bytes, naming the tensor.
    """
    entries = _load(text, where)
    metadata = _metadata(entries.pop(METADATA_KEY, {}), where)
    data_start = LENGTH_BYTES + len(text)
    specs = [_spec(name, entry, data_start, shard, where) for name, entry in entries.items()]
    specs.sort(key=lambda spec: (spec.start, spec.stop))
    _check_cover(specs, data_start, file_size, where)
    return {spec.name: spec for spec in specs}, metadata


def _load(text: bytes, where: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        _refuse(where, "the header does not begin with '{', so this is no safetensors file.")
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=unique_names)
    except UnicodeDecodeError as error:
        _refuse(where, f"the header is not UTF-8 (byte {error.start}).")
    except (ValueError, RecursionError) as error:
        _refuse(where, f"the header is not valid JSON ({error}).")
    assert isinstance(entries, dict)
    return entries


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Object hook for `json.loads` that refuses a name which stands twice in one object.

    Raises:
        ValueError: with the name.
    """
    result = dict(pairs)
    if len(result) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name '{name}' stands in it twice")
    return result


def _metadata(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _refuse(where, f"'{METADATA_KEY}' in the header must map names to texts.")
    return value


def _spec(name: str, entry: Any, data_start: int, shard: str, where: str) -> TensorSpec:
    if not isinstance(entry, dict):
        _refuse(where, f"tensor '{name}' is described by {_short(entry)}, not by dtype, shape and data_offsets.")
    code, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise CheckpointError(
            f"tensor '{name}' has the dtype {_short(code)}, which is not supported.",
            where=where,
            hint=f"Supported: {', '.join(DTYPES)}.",
        )
    if not _is_naturals(shape):
        _refuse(where, f"tensor '{name}' has the shape {_short(shape)}; it must be a list of numbers from 0 up.")
    if not _is_naturals(offsets) or len(offsets) != 2:
        _refuse(where, f"tensor '{name}' has the data_offsets {_short(offsets)}; they must be two numbers from 0 up.")
    start, stop = offsets
    nbytes = _nbytes(shape, dtype.itemsize)
    if nbytes is None:
        _refuse(where, f"tensor '{name}' has the shape {_short(shape)}, which is too large.")
    if stop < start:
        _refuse(where, f"tensor '{name}' ends before it begins (data_offsets {start} and {stop}).")
    if stop - start != nbytes:
        _refuse(
            where,
            f"tensor '{name}' needs {nbytes} bytes for its shape {_short(shape)} as {code}, "
            f"but its data_offsets give it {stop - start}.",
        )
    _check_name(name, where)
    # The models of one merge have the same names: they are kept once.
    return TensorSpec(sys.intern(name), dtype.code, tuple(shape), shard, data_start + start, data_start + stop)


def _is_naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all([type(item) is int and item >= 0 for item in value])


def _nbytes(shape: list[int], itemsize: int) -> int | None:
    count = itemsize
    for size in shape:
        count *= size
        # Checked at each step, so that a long list of huge numbers costs nothing.
        if count >= _MAX_TENSOR_BYTES:
            return None
    return count


def _check_name(name: str, where: str) -> None:
    if name.isascii():
        return
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(where, f"the tensor name {name!a} is not valid Unicode.")


def _check_cover(specs: list[TensorSpec], data_start: int, file_size: int, where: str) -> None:
    position, before = data_start, ""
    for spec in specs:
        if spec.start < position:
            _refuse(where, f"tensor '{spec.name}' overlaps tensor '{before}'.")
        if spec.start > position:
            _refuse(where, f"there is a hole of {spec.start - position} bytes before tensor '{spec.name}'.")
        position, before = spec.stop, spec.name
    if position > file_size:
        _refuse(where, f"the file is truncated: tensor '{before}' ends {position - file_size} bytes behind its end.")
    if position < file_size:
        _refuse(where, f"{file_size - position} bytes behind the last tensor belong to no tensor.")


def _short(value: Any) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(where: str, message: str) -> NoReturn:
    raise CheckpointError(message, where=where, hint="The file is damaged: download or export it again.")
