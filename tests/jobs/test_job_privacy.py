"""What the store keeps to itself: files, secrets, paths, and the addresses of downloads."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest

from merger import JobNotFound, OutputError, new_owner
from merger.jobs.scrub import Scrubber


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_this_user_can_read_the_store(store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    private = store.data_dir / "jobs" / job.id
    assert [mode(folder) for folder in (store.data_dir, store.data_dir / "jobs", private)] == [0o700] * 3
    kept = [
        *store.data_dir.glob("jobs.sqlite3*"),
        store.data_dir / "lock",
        private / "recipe.yaml",
        private / "log.txt",
    ]
    assert len(kept) >= 5
    assert [mode(file) for file in kept] == [0o600] * len(kept)


def test_a_folder_that_is_too_open_is_closed(make_store, data_dir):
    data_dir.mkdir(mode=0o777)
    os.chmod(data_dir, 0o777)
    make_store()
    assert mode(data_dir) == 0o700


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(make_store, data_dir):
    data_dir.mkdir()
    (data_dir / "thesis.txt").write_text("mine")
    before = mode(data_dir)
    with pytest.raises(OutputError, match="already holds other files"):
        make_store()
    assert [entry.name for entry in data_dir.iterdir()] == ["thesis.txt"]
    assert mode(data_dir) == before


def test_a_folder_that_cannot_be_made_is_explained(make_store, data_dir):
    data_dir.write_text("a file")
    with pytest.raises(OutputError, match="cannot be used"):
        make_store()


def test_the_store_never_holds_an_owners_secret(store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    store.shutdown()
    written = b"".join(file.read_bytes() for file in store.data_dir.rglob("*") if file.is_file())
    assert owner.encode() not in written
    assert hashlib.sha256(owner.encode()).hexdigest().encode() in written


def test_owners_are_256_random_bits():
    assert len({new_owner() for _ in range(100)}) == 100
    assert len(new_owner()) == 43


def test_errors_hold_no_path_of_the_server_and_no_token(store, owner, recipe, until):
    text = f"in {store.data_dir}/jobs/x and /opt/My Models/a b/model.safetensors with hf_abcdefgh12345678"
    orders = {
        "model": "/opt/My Models/a b",
        "end": "fail",
        "problems": [{"message": text, "where": "/opt/My Models/a b", "hint": "", "level": "error"}],
    }
    job = until(store, store.submit(recipe(**orders), owner).id, "failed")
    assert job.error == "a b: in x and a b/model.safetensors with hf_***"


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("No such file: '/home/ann/models/base/config.json'", "No such file: 'config.json'"),
        ("file:///srv/data/x.bin is odd", "x.bin is odd"),
        ("see https://example.org/a/b/c", "see https://example.org/a/b/c"),
        ("https://ann:secret@example.org/x", "https://***@example.org/x"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
        ("HF_TOKEN=abcdef, retry", "HF_TOKEN=***, retry"),
        ("shape [2, 3] and/or 1/2, model.layers.0/x", "shape [2, 3] and/or 1/2, model.layers.0/x"),
        ("tokenizer: missing in ../base or ~/base", "tokenizer: missing in ../base or ~/base"),
    ],
)
def test_scrubbing(told, kept):
    assert Scrubber()(told) == kept
    assert Scrubber().values({"a": [told, 1, None]}) == {"a": [kept, 1, None]}


def test_a_signature_opens_one_thing_for_a_while(store, owner, recipe, until):
    job = store.submit(recipe(files={"a.txt": "a", "b.txt": "b"}), owner)
    other = store.submit(recipe(files={"a.txt": "a"}), owner)
    until(store, other.id, "verified")
    expires, token = store.sign_download(job.id, owner, "a.txt")

    assert [file.name for file in store.check_download(job.id, "a.txt", expires, token)] == ["a.txt"]
    for wrong in (
        (job.id, "b.txt", expires, token),
        (job.id, None, expires, token),
        (other.id, "a.txt", expires, token),
        (job.id, "a.txt", expires + 1, token),
        (job.id, "a.txt", expires, token[:-1] + "x"),
        (job.id, "a.txt", expires, "\ud800"),
        (job.id, "a.txt", *store.sign_download(job.id, owner, "a.txt", seconds=-1)),
        (job.id, "c.txt", *store.sign_download(job.id, owner, "c.txt")),
    ):
        with pytest.raises(JobNotFound):
            store.check_download(*wrong)


def test_the_archive_signature_opens_everything(store, owner, recipe, until):
    job = store.submit(recipe(files={"a.txt": "a", "b.txt": "b"}), owner)
    until(store, job.id, "verified")
    names = [file.name for file in store.check_download(job.id, None, *store.sign_download(job.id, owner, None))]
    assert names == ["a.txt", "arguments.json", "b.txt"]


def test_signatures_end_with_the_server(make_store, store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    signed = store.sign_download(job.id, owner, None)
    store.shutdown()
    with pytest.raises(JobNotFound):
        make_store().check_download(job.id, None, *signed)


def test_links_and_changed_files_are_not_opened(store, owner, recipe, until, tmp_path):
    job = store.submit(recipe(files={"a.txt": "aaaa", "b/c.txt": "c", "d.txt": "d"}), owner)
    until(store, job.id, "verified")
    files = {file.name: file for file in store.check_download(job.id, None, *store.sign_download(job.id, owner, None))}
    output = store.output_path(job.id)
    (tmp_path / "secret").write_text("aaaa")
    (output / "a.txt").unlink()
    (output / "a.txt").symlink_to(tmp_path / "secret")
    (output / "b").rename(tmp_path / "b")
    (output / "b").symlink_to(tmp_path / "b")
    (output / "d.txt").write_text("changed")
    for name in ("a.txt", "b/c.txt", "d.txt"):
        with pytest.raises(JobNotFound):
            store.open_file(job.id, files[name])
