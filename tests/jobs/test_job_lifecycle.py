"""A merge in the background, from its submission to its deletion."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from merger import JobNotFound, UserError, new_owner
from merger.jobs import Progress
from merger.recipe import RunOptions


def test_a_job_runs_to_a_verified_output(store, owner, recipe, until):
    text = recipe(files={"b/config.json": "{}", "a.txt": "hello"})
    job = store.submit(text, owner, "My merge")
    assert (job.state, job.name, job.recipe) == ("queued", "My merge", text)

    done = until(store, job.id, "verified", "failed")

    assert (done.state, done.error) == ("verified", None)
    assert done.created <= done.started <= done.finished
    assert store.files(job.id) == [("a.txt", 5), ("arguments.json", 60), ("b/config.json", 2)]
    assert done.size == 67
    assert store.output_path(job.id) == store.data_dir / done.output
    assert (store.output_path(job.id) / "a.txt").read_text() == "hello"


def test_what_the_merge_reported_is_kept(store, owner, recipe, until):
    done = until(store, store.submit(recipe(tensors=3), owner).id, "verified", "failed")

    assert done.plan["tensors"] == 3
    assert done.result == {"files": 1, "tensors": 2, "bytes": 200, "non_finite": {}, "seconds": 0.5, "bytes_read": 1000}
    assert done.event == {"event": "Merged", "path": "model", "seconds": 0.5, "bytes_out": 200, "bytes_read": 1000}
    assert done.progress.fraction == 1


def test_progress_can_be_read_while_it_runs(store, owner, recipe, until):
    job = store.submit(recipe(tensors=20, pause=0.2), owner)

    seen = until(store, job.id, when=lambda job: job.progress.done >= 1).progress

    assert seen.phase == "merging"
    assert seen.total == 20
    assert seen.tensor == f"layers.{seen.done - 1}.weight"
    assert seen.fraction == pytest.approx(seen.done / 20, abs=0.06)
    assert (seen.bytes_out, seen.bytes_per_second, seen.seconds_left) == (2000, 2000.0, 1.5)
    store.cancel(job.id, owner)


def test_progress_follows_the_events():
    progress = Progress().after({"event": "Planned", "tensors": 4, "bytes_out": 80, "bytes_done": 20})
    assert (progress.phase, progress.fraction, progress.total) == ("merging", 0.25, 4)

    progress = progress.after({"event": "TensorMerged", "name": "x", "layer": 1, "role": "mlp", "done": 2, "total": 4})
    assert (progress.tensor, progress.layer, progress.done, progress.fraction) == ("x", 1, 2, 0.25)

    progress = progress.after({"event": "Verified", "files": 1})
    assert (progress.phase, progress.fraction, progress.done, progress.seconds_left) == ("packing", 1, 4, None)


def test_jobs_run_one_after_the_other_in_order(store, owner, recipe, until):
    first, second, third = (store.submit(recipe(pause=0.2), owner, name) for name in "abc")
    until(store, first.id, "running")
    assert store.get(second.id).state == "queued"
    assert [store.ahead(job.id) for job in (first, second, third)] == [0, 1, 2]

    ended = [until(store, job.id, "verified", "failed") for job in (first, second, third)]

    assert all(earlier.finished <= later.started for earlier, later in itertools.pairwise(ended))
    assert [job.name for job in store.list(owner)] == ["c", "b", "a"]


def test_several_jobs_may_run_at_once_when_allowed(make_store, owner, recipe, until):
    store = make_store(concurrency=2)
    jobs = [store.submit(recipe(tensors=50, pause=0.2), owner) for _ in range(2)]
    for job in jobs:
        until(store, job.id, "running")
    assert [store.get(job.id).state for job in jobs] == ["running", "running"]


def test_run_options_reach_the_engine(store, owner, recipe, until):
    options = RunOptions(device="cpu", workers=3, shard_size=1000, strict=True)
    job = store.submit(recipe(), owner, options=options)
    until(store, job.id, "verified", "failed")
    arguments = json.loads((store.output_path(job.id) / "arguments.json").read_text())
    assert arguments == ["--json", "--device", "cpu", "--shard-size", "1000", "--workers", "3", "--strict"]


def test_a_merge_runs_with_low_priority_in_its_own_process_group(store, owner, recipe, until):
    job = store.submit(recipe(tensors=50, pause=0.2), owner)
    until(store, job.id, when=lambda job: job.progress.total > 0)
    pid = int((store.data_dir / "jobs" / job.id / "pid").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert (int(fields[2]), int(fields[16])) == (pid, 10)


def test_the_output_folder_and_file_name_never_hold_what_a_user_typed(store, owner, recipe):
    job = store.submit(recipe(), owner, "../../etc/passwd\n\x00<b>" + "x" * 200)
    assert job.output == f"jobs/{job.id}/model"
    assert job.name == "../../etc/passwd <b>" + "x" * 60
    assert job.file_name == "etc-passwd-b-" + "x" * 47
    assert store.submit(recipe(), owner, " \t ").name == "merge"
    assert store.submit(recipe(), owner, "合并").file_name == "merge"
    assert store.submit(recipe(), owner, "Café v1.2").file_name == "Cafe-v1.2"


def test_a_finished_job_can_be_deleted_with_its_files(store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    folder = store.data_dir / "jobs" / job.id
    until(store, job.id, "verified", "failed")
    assert folder.exists()

    store.delete(job.id, owner)

    assert not folder.exists()
    assert store.get(job.id) is None
    assert store.list(owner) == []
    assert store.files(job.id) == []


def test_a_running_job_is_not_deleted(store, owner, recipe, until):
    job = store.submit(recipe(tensors=50, pause=0.2), owner)
    until(store, job.id, "running")
    with pytest.raises(UserError, match="still running"):
        store.delete(job.id, owner)


def test_foreign_and_missing_jobs_give_the_same_answer(store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified", "failed")
    stranger = new_owner()
    answers = set()
    for doing in (store.cancel, store.resume, store.delete, lambda *who: store.sign_download(*who, None)):
        for job_id, who in (
            (job.id, stranger),
            ("missing", stranger),
            ("missing", owner),
            (job.id, ""),
            ("\ud800", owner),
        ):
            with pytest.raises(JobNotFound) as caught:
                doing(job_id, who)
            answers.add(str(caught.value))
    assert len(answers) == 1
    assert store.list(stranger) == []
    assert store.list("") == []
    assert [store.owns(job.id, who) for who in (owner, stranger, "")] == [True, False, False]


def test_anyone_with_the_id_may_read_the_status(store, owner, recipe):
    job = store.submit(recipe(), owner)
    assert store.get(job.id).id == job.id
    assert store.get("missing") is None
    assert store.get("\ud800") is None
    assert len({store.submit(recipe(), owner).id for _ in range(5)}) == 5
    assert len(job.id) == 22


def test_an_unfinished_output_is_not_handed_out(store, owner, recipe):
    job = store.submit(recipe(tensors=50, pause=0.2), owner)
    assert store.files(job.id) == []
    with pytest.raises(JobNotFound):
        store.output_path(job.id)


def test_the_queue_is_bounded(make_store, owner, recipe):
    store = make_store(max_unfinished=2)
    for _ in range(2):
        store.submit(recipe(tensors=50, pause=0.2), owner)
    with pytest.raises(UserError, match="Too many"):
        store.submit(recipe(), owner)


def test_nobody_can_submit_without_an_owner_or_with_a_huge_recipe(store, owner):
    with pytest.raises(UserError, match="Reload"):
        store.submit("{}", "")
    with pytest.raises(UserError, match="256 KB"):
        store.submit("x" * 300_000, owner)
    assert store.submit("\ud800", owner).recipe == "?"


def test_a_recipe_object_is_kept_as_its_yaml(store, owner):
    class Recipe:
        def to_yaml(self):
            return "tensors: 1"

    assert store.submit(Recipe(), owner).recipe == "tensors: 1"
