"""Where an output may stand: never on an input, never on what is not ours, never two at once."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from merger.checkpoints.layout import plan_shards
from merger.checkpoints.target import check_target, repair
from merger.checkpoints.writer import OutputFolder
from merger.errors import OutputError
from tests.checkpoints.making import spec

REPOSITORY = Path(__file__).resolve().parents[2]
FINGERPRINT = {"recipe": "r", "inputs": {}}


def create(target: Path | str, *, tensors: int = 1, shard: int = 1000, **options: object) -> OutputFolder:
    layouts = plan_shards([spec(f"t{number}") for number in range(tensors)], shard, {"format": "pt"})
    return OutputFolder.create(target, layouts, FINGERPRINT, **options)  # type: ignore[arg-type]


def complete(folder: OutputFolder) -> None:
    with folder:
        for layout in folder.layouts:
            for tensor in layout.tensors:
                folder.write(tensor.name, 0, bytes(tensor.nbytes))
        folder.commit()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "target", ["models/base", "models/base/merged", "models/base/a/b", "models", ".", "models/../models/base", "link"]
)
def test_an_output_that_is_an_input_or_inside_or_above_one_is_refused(tmp_path, model, target):
    (tmp_path / "link").symlink_to("models/base")
    with pytest.raises(OutputError, match=f"the input {model}"):
        check_target(tmp_path / target, [model])
    with pytest.raises(OutputError, match=f"the input {model}"):
        create(tmp_path / target, inputs=[model], overwrite=True)
    assert sorted(path.name for path in model.iterdir()) == ["model.safetensors"]


@pytest.mark.parametrize("target", ["models/merged", "merged", "models/base-merged", "models/bas"])
def test_an_output_beside_an_input_is_welcome(tmp_path, model, target):
    check_target(tmp_path / target, [model, model / "model.safetensors"])


def test_an_input_that_is_a_file_is_protected_with_its_folder(tmp_path, model):
    with pytest.raises(OutputError, match="holds the input"):
        check_target(model, [model / "model.safetensors"])
    check_target(model / "merged", [model / "model.safetensors"])


def test_links_to_inputs_are_followed(tmp_path, model):
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(model / "model.safetensors")
    with pytest.raises(OutputError, match="holds the files of the input"):
        check_target(model, [tmp_path / "snapshot"])
    (tmp_path / "named").symlink_to(model)
    with pytest.raises(OutputError, match="lies inside the input"):
        check_target(model / "merged", [tmp_path / "named"])


def test_a_link_that_is_an_input_is_not_deleted(tmp_path, model):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "named").symlink_to(model)
    with pytest.raises(OutputError, match="holds the input"):
        check_target(tmp_path / "links", [tmp_path / "links" / "named"])


@pytest.mark.parametrize("place", [".merged.partial", ".merged.backup"])
def test_the_hidden_folders_beside_the_target_are_no_inputs_either(tmp_path, place):
    (tmp_path / place).mkdir()
    with pytest.raises(OutputError, match="the input"):
        check_target(tmp_path / "merged", [tmp_path / place])


def test_a_target_that_holds_something_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"not empty.*--overwrite"):
        create(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_resuming_a_finished_result_says_that_nothing_is_left(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"finished")
    with pytest.raises(OutputError, match="nothing to resume"):
        create(tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"finished"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_that_is_a_file_is_refused(tmp_path, overwrite):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputError, match="a file of this name exists"):
        create(tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out").read_text() == "mine"


def test_an_empty_folder_is_a_fine_target(tmp_path):
    (tmp_path / "out").mkdir()
    complete(create(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_target_that_fills_up_during_the_merge_is_not_replaced(tmp_path):
    folder = create(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        complete(folder)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    complete(create(tmp_path / "out", resume=True, overwrite=True))
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_overwriting_twelve_files_with_one_leaves_no_stale_file(tmp_path):
    complete(create(tmp_path / "out", tensors=12, shard=16))
    assert len(list((tmp_path / "out").iterdir())) == 13
    (tmp_path / "out" / "extra").mkdir()
    complete(create(tmp_path / "out", overwrite=True))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_old_folder_stays_whole_until_the_new_one_is_finished(tmp_path):
    complete(create(tmp_path / "out", tensors=3, shard=16))
    folder = create(tmp_path / "out", overwrite=True)
    folder.write("t0", 0, bytes(16))
    folder.verify()
    assert len(list((tmp_path / "out").iterdir())) == 4
    folder.discard()
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_a_link_as_target_leads_to_the_folder_behind_it(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    complete(create(tmp_path / "out"))
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["model.safetensors"]


def test_folders_above_the_target_are_made(tmp_path):
    complete(create(tmp_path / "a" / "b" / "out"))
    assert (tmp_path / "a" / "b" / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_current_folder_and_home_are_never_replaced(tmp_path, monkeypatch, overwrite):
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "here" / "deeper")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for target in (".", "..", "~", "/"):
        with pytest.raises(OutputError):
            create(target, overwrite=overwrite)
    assert (tmp_path / "here" / "deeper").is_dir() and (tmp_path / "home").is_dir()
    complete(create("fresh", overwrite=overwrite))
    assert (tmp_path / "here" / "deeper" / "fresh" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["x" * 250, "zero\0byte"])
def test_impossible_names_are_refused_at_once(tmp_path, name):
    with pytest.raises(OutputError):
        create(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_above_is_an_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="writing failed"):
        create(tmp_path / "file" / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="permissions"):
        create(tmp_path / "out")
    tmp_path.chmod(0o700)


def test_a_hidden_folder_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(OutputError, match="was not made by a merge"):
            create(tmp_path / "out", resume=resume)
    assert (tmp_path / ".out.partial" / "notes.txt").read_text() == "mine"


def test_a_link_in_place_of_the_hidden_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".out.partial").symlink_to("elsewhere")
    with pytest.raises(OutputError, match="was not made by a merge"):
        create(tmp_path / "out")


def test_an_empty_hidden_folder_of_a_killed_merge_is_used(tmp_path):
    (tmp_path / ".out.partial").mkdir()
    complete(create(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_backup_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / ".out.backup").mkdir()
    (tmp_path / ".out.backup" / "notes.txt").write_text("mine")
    repair(tmp_path / "out")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"\.out\.backup is in the way"):
            create(tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / ".out.backup" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_two_merges_into_one_place_are_refused(tmp_path, resume):
    with create(tmp_path / "out") as first:
        with pytest.raises(OutputError, match="another merge is writing"):
            create(tmp_path / "out", resume=resume, overwrite=True)
        complete(first)
    with pytest.raises(OutputError, match="not empty"):
        create(tmp_path / "out")


@pytest.mark.parametrize("ending", ["abandon", "discard"])
def test_the_place_is_free_again_after_the_end(tmp_path, ending):
    getattr(create(tmp_path / "out"), ending)()
    complete(create(tmp_path / "out"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_can_be_used(tmp_path, monkeypatch, number):
    def flock(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    complete(create(tmp_path / "out"))
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_merge_of_another_process_is_noticed(tmp_path):
    script = (
        "import sys\nfrom tests.checkpoints.test_output_target import create\n"
        "folder = create(sys.argv[1])\nprint('begun', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    with pytest.raises(OutputError, match="another merge is writing"):
        create(tmp_path / "out")
    process.kill()
    process.communicate()
    complete(create(tmp_path / "out", resume=True))


def test_repairing_needs_no_target(tmp_path):
    repair(tmp_path / "nothing")
    repair("/")
    assert list(tmp_path.iterdir()) == []
