"""What can go wrong outside of this program: one clear error, inputs as they were, and no work lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import merger
from merger import CheckpointError, InputChangedError, MergerError, OutputError, RunOptions
from tests.engine.families import SHARD_SIZE, contents, copies_of, recipe_text, write_family

METHODS = ["dare_ties", "passthrough"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_family(tmp_path_factory.mktemp("originals"))


@pytest.fixture
def models(originals, tmp_path) -> list[Path]:
    """Models of this test's own."""
    return copies_of(originals, tmp_path / "inputs")


def text_of(models: list[Path], method: str) -> str:
    if method == "passthrough":
        return f"merge_method: passthrough\nmodels:\n  - model: {models[1]}\n"
    return recipe_text(models, method)


def merge(models: list[Path], out: Path, method: str = "dare_ties", *, after_first=lambda: None, **options) -> Path:
    """Merge; ``after_first`` happens when one tensor is complete."""
    first = True
    recipe = merger.load_recipe(text_of(models, method))
    for event in merger.merge(recipe, out, RunOptions(shard_size=SHARD_SIZE, workers=1, device="cpu", **options)):
        if first and isinstance(event, merger.TensorMerged):
            first = False
            after_first()
    assert isinstance(event, merger.Merged)
    return out


def fails(kind: type[MergerError], run: Callable[[], object]) -> str:
    """The one problem that a merge ends with, as people read it."""
    with pytest.raises(kind) as caught:
        run()
    assert len(caught.value.problems) == 1
    problem = caught.value.problems[0]
    assert problem.hint
    return str(problem)


def journal(out: Path) -> list[str]:
    """The finished spans that an unfinished merge remembers."""
    (path,) = out.parent.glob(f".{out.name}.partial/*journal*")
    return path.read_text().splitlines()[1:]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB, on which a merge of the family fits once."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    """Another program takes the room that is left."""
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


@pytest.mark.parametrize("method", METHODS)
def test_a_disk_that_fills(models, originals, small_disk, tmp_path, monkeypatch, method):
    expected = contents(merge(originals, tmp_path / "expected", method))
    # So that room is taken as bytes are written, as on disks that cannot reserve it.
    monkeypatch.delattr(os, "posix_fallocate")
    out = small_disk / "out"
    message = fails(OutputError, lambda: merge(models, out, method, after_first=lambda: fill(small_disk)))
    assert str(out) in message and "The disk is full" in message
    assert not out.exists() and journal(out)
    assert [contents(model) for model in models] == [contents(model) for model in originals]
    (small_disk / "filler").unlink()
    assert weights(contents(merge(models, out, method, resume=True))) == weights(expected)


def weights(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".safetensors")}


def test_a_disk_without_room_for_the_result_is_an_error_at_the_beginning(models, small_disk):
    fill(small_disk)
    message = fails(MergerError, lambda: merge(models, small_disk / "out"))
    assert "of disk" in message
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def truncate(model: Path) -> None:
    """Another program cuts a file off."""
    command = "import os, sys; os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) // 2)"
    subprocess.run([sys.executable, "-c", command, str(model / "model.safetensors")], check=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_shrinks_while_it_is_read(models, originals, tmp_path, method):
    expected = contents(merge(originals, tmp_path / "expected", method))
    out, victim = tmp_path / "out", models[1] / "model.safetensors"
    before, times = victim.read_bytes(), victim.stat()
    message = fails(CheckpointError, lambda: merge(models, out, method, after_first=lambda: truncate(models[1])))
    assert str(victim) in message and "truncated" in message
    assert not out.exists() and journal(out)
    assert victim.read_bytes() == before[: len(before) // 2]
    victim.write_bytes(before)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights(contents(merge(models, out, method, resume=True))) == weights(expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_is_written_to_while_it_is_read(models, tmp_path, method):
    out, victim = tmp_path / "out", models[1] / "model.safetensors"

    def change() -> None:
        with open(victim, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")

    message = fails(InputChangedError, lambda: merge(models, out, method, after_first=change))
    assert str(victim) in message and "changed" in message
    assert not out.exists() and journal(out)
    message = fails(OutputError, lambda: merge(models, out, method, resume=True))
    assert str(models[1]) in message and "cannot be resumed" in message


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_disappears_while_it_is_read(models, tmp_path, method):
    out, victim = tmp_path / "out", models[1] / "model.safetensors"
    message = fails(InputChangedError, lambda: merge(models, out, method, after_first=victim.unlink))
    assert str(victim) in message and "disappeared" in message
    assert not out.exists() and journal(out)


@pytest.mark.parametrize("method", METHODS)
def test_a_disk_that_cannot_be_read_any_more(models, originals, tmp_path, monkeypatch, method):
    expected = contents(merge(originals, tmp_path / "expected", method))
    out, victim = tmp_path / "out", models[1] / "model.safetensors"
    message = fails(
        CheckpointError, lambda: merge(models, out, method, after_first=lambda: damage(victim, monkeypatch))
    )
    assert str(victim) in message and "Input/output error" in message
    assert not out.exists() and journal(out)
    monkeypatch.undo()
    assert weights(contents(merge(models, out, method, resume=True))) == weights(expected)


def damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the operating system refuses to read a file, in whatever way it is asked."""
    identity = path.stat().st_ino

    def refusing(call: Callable[..., int]) -> Callable[..., int]:
        def wrapped(fd: int, *rest: object) -> int:
            if os.fstat(fd).st_ino == identity:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(fd, *rest)

        return wrapped

    for name in ("preadv", "pread", "copy_file_range"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link", "no permission"])
def test_a_shard_that_cannot_be_opened_is_named_before_anything_is_made(models, tmp_path, kind):
    victim = models[2] / "model.safetensors"
    if kind == "no permission":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        victim.chmod(0)
    else:
        victim.unlink()
        {"folder": victim.mkdir, "pipe": lambda: os.mkfifo(victim), "dangling link": lambda: victim.symlink_to("gone")}[
            kind
        ]()
    message = fails(CheckpointError, lambda: merge(models, tmp_path / "out"))
    assert str(victim) in message or str(models[2]) in message
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]
