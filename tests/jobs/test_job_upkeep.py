"""The versioned table and how long outputs are kept."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time

import pytest

from merger import JobNotFound, OutputError
from merger.jobs import database


def version_of(data_dir) -> int:
    with contextlib.closing(sqlite3.connect(data_dir / "jobs.sqlite3")) as table:
        return table.execute("PRAGMA user_version").fetchone()[0]


def test_a_new_table_has_the_newest_version_and_a_write_ahead_log(store):
    assert version_of(store.data_dir) == len(database.MIGRATIONS)
    with contextlib.closing(sqlite3.connect(store.data_dir / "jobs.sqlite3")) as table:
        assert table.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_older_table_is_brought_forward_and_keeps_its_jobs(make_store, store, owner, recipe, until, monkeypatch):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    store.shutdown()
    step = "CREATE TABLE likes (job TEXT); INSERT INTO likes SELECT id FROM jobs;"
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, step))

    assert make_store().get(job.id).state == "verified"

    assert version_of(store.data_dir) == len(database.MIGRATIONS)
    with contextlib.closing(sqlite3.connect(store.data_dir / "jobs.sqlite3")) as table:
        assert table.execute("SELECT job FROM likes").fetchall() == [(job.id,)]


def test_a_step_that_fails_changes_nothing(make_store, store, monkeypatch):
    store.shutdown()
    version = version_of(store.data_dir)
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, "CREATE TABLE half (x); SELECT nonsense;"))
    with pytest.raises(sqlite3.OperationalError):
        make_store()
    monkeypatch.undo()
    make_store()
    assert version_of(store.data_dir) == version


def test_a_table_from_the_future_is_refused_and_the_folder_let_go(make_store, store):
    store.shutdown()
    for _ in range(2):
        with contextlib.closing(sqlite3.connect(store.data_dir / "jobs.sqlite3")) as table:
            table.execute("PRAGMA user_version = 99")
        with pytest.raises(OutputError, match="newer version"):
            make_store()


def test_old_outputs_expire_and_the_entry_stays(make_store, owner, recipe, until):
    store = make_store(keep_hours=1 / 3600)
    job = store.submit(recipe(), owner)
    done = until(store, job.id, "verified")
    assert store.kept_until(done) == pytest.approx(done.finished + 1)

    gone = until(store, job.id, "expired")

    assert time.time() >= done.finished + 1
    assert gone.recipe == job.recipe
    assert store.kept_until(gone) is None
    assert store.files(job.id) == []
    with pytest.raises(JobNotFound):
        store.output_path(job.id)
    store.shutdown()
    assert [list((store.data_dir / name).iterdir()) for name in ("jobs", "trash")] == [[], []]


def test_an_expired_job_can_be_merged_again(make_store, owner, recipe, until):
    store = make_store(keep_hours=0.5 / 3600)
    job = store.submit(recipe(), owner)
    until(store, job.id, "expired")
    store.resume(job.id, owner)
    until(store, job.id, "verified")


def test_outputs_are_kept_when_nobody_says_otherwise(store, owner, recipe, until):
    done = until(store, store.submit(recipe(), owner).id, "verified")
    assert store.kept_until(done) is None


def test_deleting_never_follows_a_link_out_of_the_jobs_folder(store, owner, recipe, until, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    (store.data_dir / "jobs" / job.id / "link").symlink_to(precious)
    neighbour = store.submit(recipe(), owner)
    until(store, neighbour.id, "verified")

    store.delete(job.id, owner)

    assert (precious / "thesis.txt").read_text() == "mine"
    assert ("model.safetensors", 7) in store.files(neighbour.id)
    assert store.output_path(neighbour.id).is_dir()


def test_a_job_whose_folder_someone_removed_can_still_be_deleted(store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    shutil.rmtree(store.data_dir / "jobs" / job.id)
    store.delete(job.id, owner)
    assert store.get(job.id) is None


def test_what_an_interrupted_deletion_left_is_removed_at_the_next_start(make_store, store):
    store.shutdown()
    (store.data_dir / "trash" / "x.1" / "model").mkdir(parents=True)
    make_store()
    assert list((store.data_dir / "trash").iterdir()) == []
