"""Checkpoints in safetensors files: a folder or a single file, one shard or many."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from merger.checkpoints.base import Checkpoint, SideFile
from merger.checkpoints.folder import SINGLE_FILE, check_complete, find_shards, listing, weight_files
from merger.checkpoints.shard import ShardFile
from merger.checkpoints.sidefiles import read_config, side_files
from merger.errors import CheckpointError
from merger.types import ModelReference, TensorSpec


class SafetensorsCheckpoint(Checkpoint):
    """A model whose tensors lie in local safetensors files.  Opening it reads only headers.

    Use `from_folder` or `from_file`.
    """

    def __init__(
        self,
        reference: ModelReference,
        paths: Sequence[Path],
        index: Mapping[str, str] | None = None,
        config: dict[str, Any] | None = None,
        files: Mapping[str, SideFile] | None = None,
    ) -> None:
        self._shards: dict[str, ShardFile] = {}
        try:
            for path in paths:
                self._shards[path.name] = ShardFile(path)
            tensors = _collect(self._shards)
            if index is not None:
                _check_index(index, tensors, str(paths[0].parent))
        except BaseException:
            self.close()
            raise
        super().__init__(reference, tensors, _digest(self._shards), config, files)

    @classmethod
    def from_folder(cls, folder: Path, reference: ModelReference | None = None) -> SafetensorsCheckpoint:
        """Open a model folder.

        Raises:
            CheckpointError: it holds no complete and sound model.
        """
        with _folder_errors(folder):
            paths, index = find_shards(folder)
            config, files = read_config(folder), side_files(folder)
        return cls(reference or ModelReference(str(folder)), paths, index, config, files)

    @classmethod
    def from_file(cls, path: Path, reference: ModelReference | None = None) -> SafetensorsCheckpoint:
        """Open a single safetensors file.

        A file that is the only one of its folder, or named ``model.safetensors``, brings the
        configuration and tokenizer that lie beside it; any other is nothing but weights.

        Raises:
            CheckpointError: it is damaged, or one of several shards.
        """
        check_complete(path.name, path)
        reference = reference or ModelReference(str(path))
        with _folder_errors(path.parent):
            if path.name != SINGLE_FILE and weight_files(path.parent) != [path.name]:
                return cls(reference, [path])
            config, files = read_config(path.parent), side_files(path.parent)
        return cls(reference, [path], config=config, files=files)

    @property
    def metadata(self) -> dict[str, dict[str, str]]:
        """The texts in each shard's header, by file name."""
        return {name: shard.metadata for name, shard in self._shards.items()}

    @property
    def state(self) -> str:
        text = "\n".join([self.digest, *(shard.state for shard in self._shards.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    def _fill(self, spec: TensorSpec, start: int, view: memoryview) -> None:
        self._shards[spec.shard].fill(view, spec.start + start, f"tensor '{spec.name}'")

    def prefetch(self, spec: TensorSpec, start: int, stop: int) -> None:
        self._shards[spec.shard].prefetch(spec, start, stop)

    def shard_path(self, spec: TensorSpec) -> Path | None:
        return self._shards[spec.shard].path

    def verify_unchanged(self) -> None:
        for shard in self._shards.values():
            shard.verify_unchanged()

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the folder cannot be read ({error.strerror}).", where=str(folder), hint="Check its permissions."
        ) from error


def _collect(shards: Mapping[str, ShardFile]) -> dict[str, TensorSpec]:
    tensors: dict[str, TensorSpec] = {}
    for shard in shards.values():
        for name in shard.tensors.keys() & tensors.keys():
            raise CheckpointError(
                f"tensor '{name}' lies in two files, {tensors[name].shard} and {shard.path.name}.",
                where=str(shard.path.parent),
                hint="Remove the file that does not belong to the model, or download it again.",
            )
        tensors.update(shard.tensors)
    return tensors


def _check_index(index: Mapping[str, str], tensors: Mapping[str, TensorSpec], where: str) -> None:
    missing = [name for name in index if name not in tensors]
    if missing:
        raise CheckpointError(
            f"the index lists tensors that {index[missing[0]]} does not hold: {listing(missing)}.",
            where=where,
            hint="Index and files are from different versions; download both again.",
        )
    for name, file in index.items():
        if tensors[name].shard != file:
            raise CheckpointError(
                f"the index puts tensor '{name}' into {file}, but it lies in {tensors[name].shard}.",
                where=where,
                hint="Index and files are from different versions; download both again.",
            )


def _digest(shards: Mapping[str, ShardFile]) -> str:
    digest = hashlib.sha256()
    for name, shard in shards.items():
        digest.update(f"{name}\0{shard.size}\0".encode(errors="surrogateescape"))
        digest.update(shard.read_header())
    return digest.hexdigest()
