"""The place of an output: what may stand there, and how a finished folder takes it.

While a merge runs there is ``.<name>.partial`` beside the target.  Taking the target's place:
the journal moves out to ``.<name>.mixdesk-journal``, an old target moves to ``.<name>.backup``, the
partial folder becomes the target, backup and journal are deleted.  Each step is one rename,
and `repair` leads back to a sound state from between any two of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from merger.checkpoints.fileio import sync_folder
from merger.checkpoints.journal import JOURNAL_FILE, Journal
from merger.errors import OutputError

_MAX_NAME_BYTES = 255
_HINTS = {
    errno.ENOSPC: "The disk is full: make room or choose another disk.",
    errno.EDQUOT: "Your quota is used up: make room or choose another disk.",
    errno.EROFS: "This disk can only be read: choose another place.",
}


def resolved(target: str | os.PathLike[str]) -> Path:
    """The real, absolute place of a target, links followed.

    Raises:
        OutputError: no file system can have such a name.
    """
    text = os.path.expanduser(target)
    if "\0" in text:
        raise OutputError("a path cannot hold a zero byte.", where=ascii(text), hint="Name another folder.")
    return Path(os.path.realpath(text))


def partial_folder(target: Path) -> Path:
    """The folder in which the output is built."""
    return target.with_name(f".{target.name}.partial")


def backup_folder(target: Path) -> Path:
    """Where an old target waits while the new one takes its place."""
    return target.with_name(f".{target.name}.backup")


def commit_journal(target: Path) -> Path:
    """Where the journal is while a finished folder takes the target's place."""
    return target.with_name(f".{target.name}{JOURNAL_FILE}")


def check_target(target: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse an output that is an input, lies inside one, or would swallow one.  Links are followed.

    Args:
        target: the output folder; it need not exist.
        inputs: model folders and files.

    Raises:
        OutputError: naming the input.
    """
    place = resolved(target)
    for model in inputs:
        link, folder = _own_place(model), resolved(model)
        files = map(resolved, folder.glob("*.safetensors")) if folder.is_dir() else ()
        relation = _relation(place, link) or _relation(place, folder)
        if relation is None and any(_relation(place, file) for file in files):
            relation = "holds the files of"
        if relation is not None:
            raise OutputError(
                f"the output folder {relation} the input {os.fspath(model)}.",
                where=str(target),
                hint="Inputs are never changed: choose another output folder.",
            )


def check_free(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that holds something, or whose place cannot be taken by a rename.

    Args:
        target: a resolved path.
        overwrite: whether an existing folder will be replaced.

    Raises:
        OutputError: with what stands there.
    """
    if not target.name or len(os.fsencode(commit_journal(target).name)) > _MAX_NAME_BYTES:
        raise OutputError("this is no name for an output folder.", where=str(target), hint="Choose a shorter name.")
    if backup_folder(target).exists():
        raise OutputError(
            f"{backup_folder(target)} is in the way.", where=str(target), hint="Move it or delete it, then start again."
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError("a file of this name exists.", where=str(target), hint="Choose another output folder.")
    homes = (Path.cwd(), resolved("~"))
    if os.path.ismount(target) or any(target in (home, *home.parents) for home in homes):
        raise OutputError(
            "this folder cannot be replaced as a whole: it is a mounted disk, the current folder, your home, "
            "or above one of them.",
            where=str(target),
            hint="Name a new folder inside it.",
        )
    if not overwrite and any(target.iterdir()):
        raise OutputError(
            "the output folder is not empty.",
            where=str(target),
            hint="Choose another, or allow its replacement with --overwrite.",
        )


def check_unfinished(target: Path, files: Sequence[str]) -> None:
    """Refuse to resume where a result stands and nothing of an interrupted merge.

    Args:
        target: a resolved path.
        files: the weight files of the output.

    Raises:
        OutputError: it is so.
    """
    if not partial_folder(target).exists() and files and all((target / name).is_file() for name in files):
        raise OutputError(
            "there is nothing to resume: the output folder holds a finished result.",
            where=str(target),
            hint="Use it, or merge anew with --overwrite.",
        )


def claim(target: Path) -> Journal:
    """Make or adopt the partial folder of a target, and lock its journal.

    Raises:
        OutputError: another merge has it, or a folder of that name is not ours.
    """
    partial = partial_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.mkdir()
    except FileExistsError:
        ours = partial.is_dir() and not partial.is_symlink()
        if not ours or (any(partial.iterdir()) and not (partial / JOURNAL_FILE).is_file()):
            raise OutputError(
                f"{partial} is in the way and was not made by a merge.",
                where=str(target),
                hint="Move it or delete it, then start again.",
            ) from None
    return Journal(partial / JOURNAL_FILE, target)


def take_place(partial: Path, target: Path) -> None:
    """Make a finished folder the target; an old target disappears once the new one stands.

    The journal in ``partial`` must be locked by the caller.
    """
    os.rename(partial / JOURNAL_FILE, commit_journal(target))
    sync_folder(partial)
    if target.exists():
        os.rename(target, backup_folder(target))
    os.rename(partial, target)
    _clean_up(target)
    sync_folder(target.parent)


def repair(target: str | os.PathLike[str]) -> None:
    """Put in order what a merge left behind when it was killed while taking the target's place.

    Without such leftovers it does nothing.  Afterwards the target is the old or the new
    folder, whole; in the first case the new one can be resumed.

    Raises:
        OutputError: another merge is just taking this place, or the disk refuses.
    """
    place = resolved(target)
    with output_errors(place):
        if not place.name or not commit_journal(place).exists():
            return
        journal = Journal(commit_journal(place), place)
        try:
            if not partial_folder(place).exists():
                _clean_up(place)
                return
            if backup_folder(place).exists() and not place.exists():
                os.rename(backup_folder(place), place)
            os.rename(commit_journal(place), partial_folder(place) / JOURNAL_FILE)
        finally:
            journal.close()


@contextmanager
def output_errors(target: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an `OutputError` about ``target``."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "Check the place and its permissions.")
        what = f" {error.filename}" if error.filename and str(error.filename) != str(target) else ""
        raise OutputError(f"writing failed{what} ({error.strerror}).", where=str(target), hint=hint) from error


def _own_place(model: str | os.PathLike[str]) -> Path:
    """Where a model's name itself lies, be it a link or not."""
    path = Path(os.path.abspath(os.path.expanduser(model)))
    return resolved(path.parent) / path.name


def _relation(place: Path, model: Path) -> str | None:
    for own in (place, partial_folder(place), backup_folder(place)) if place.name else (place,):
        if _same(own, model):
            return "is"
        if any(_same(own, above) for above in model.parents):
            return "holds"
    return "lies inside" if any(_same(above, model) for above in place.parents) else None


def _same(left: Path, right: Path) -> bool:
    return left == right or (left.exists() and right.exists() and left.samefile(right))


def _clean_up(target: Path) -> None:
    backup = backup_folder(target)
    if backup.exists():
        # The old folder goes only when the new one is sure to stay.
        sync_folder(target.parent)
        shutil.rmtree(backup)
    os.unlink(commit_journal(target))
