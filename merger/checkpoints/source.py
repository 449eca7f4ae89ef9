"""Opening a model by the name a user gave."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from merger.checkpoints.base import Checkpoint
from merger.checkpoints.safetensors import SafetensorsCheckpoint
from merger.errors import CheckpointError, nearest
from merger.types import ModelReference

_OTHER_FILES = {
    ".bin": "a PyTorch file",
    ".pt": "a PyTorch file",
    ".pth": "a PyTorch file",
    ".ckpt": "a PyTorch file",
    ".gguf": "a GGUF file, which is quantised",
    ".json": "a text file",
}
_SIBLINGS_SEEN = 1000


def open_checkpoint(reference: ModelReference) -> Checkpoint:
    """Open a local folder or safetensors file; only headers are read.

    Raises:
        CheckpointError: there is no such model, or it is damaged or of an unsupported kind.
    """
    if reference.lora is not None:
        raise CheckpointError(
            "adapters cannot be applied yet.",
            where=str(reference),
            hint="Merge the adapter into its model with peft's merge_and_unload, and give the result.",
        )
    path = Path(os.path.expanduser(reference.path))
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
        if not is_folder and not is_file:
            raise _not_found(reference, path)
    except OSError as error:
        raise CheckpointError(
            f"this place cannot be looked at ({error.strerror}).", where=reference.path, hint="Check the path."
        ) from error
    if reference.revision is not None:
        raise CheckpointError(
            f"a local model has no revision '{reference.revision}'.", where=reference.path, hint="Leave it out."
        )
    if is_folder:
        return SafetensorsCheckpoint.from_folder(path, reference)
    if path.suffix.lower() in _OTHER_FILES:
        raise CheckpointError(
            f"this is {_OTHER_FILES[path.suffix.lower()]}.",
            where=reference.path,
            hint="Give the model's folder, or a file in safetensors format.",
        )
    return SafetensorsCheckpoint.from_file(path, reference)


def _not_found(reference: ModelReference, path: Path) -> CheckpointError:
    if not path.parent.is_dir():
        if _looks_like_hub_id(reference.path):
            hint = f"To use a model of the Hub, download it: hf download {reference.path} --local-dir {path.name}"
        else:
            hint = f"The folder {path.parent} does not exist either; check the path."
    else:
        siblings = [entry.name for entry in itertools.islice(path.parent.iterdir(), _SIBLINGS_SEEN)]
        close = nearest(path.name, [name for name in siblings if name != path.name])
        hint = f"Did you mean '{path.with_name(close)}'?" if close else "Check the path."
    return CheckpointError("there is no such folder or file.", where=str(reference), hint=hint)


def _looks_like_hub_id(text: str) -> bool:
    return text.count("/") == 1 and not text.startswith(("/", ".", "~"))
