"""Cancelling, crashing, resuming, and what a restart of the server finds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from merger import OutputError
from merger.jobs.orphans import end_orphan, remember_child

LONG = {"tensors": 100, "pause": 0.1}


@pytest.fixture
def running(store, owner, recipe, until):
    """A job in the middle of a long merge."""
    job = store.submit(recipe(**LONG), owner)
    return until(store, job.id, when=lambda job: job.progress.done >= 1)


def child_of(store, job) -> int:
    return int((store.data_dir / "jobs" / job.id / "pid").read_text().split()[0])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_cancelling_takes_effect_within_a_second(store, owner, running, until):
    pid = child_of(store, running)
    began = time.monotonic()

    assert store.cancel(running.id, owner).state in ("cancelling", "cancelled")
    ended = until(store, running.id, "cancelled")

    assert time.monotonic() - began < 1
    assert not is_alive(pid)
    assert ended.error is None
    assert ended.finished is not None
    assert store.files(running.id) == []


def test_a_queued_job_is_cancelled_at_once(store, owner, running, recipe):
    waiting = store.submit(recipe(), owner)
    assert store.cancel(waiting.id, owner).state == "cancelled"
    assert store.get(running.id).state == "running"


def test_a_child_that_does_not_listen_is_killed(make_store, owner, recipe, until):
    store = make_store(grace=0.3)
    job = until(store, store.submit(recipe(deaf=True, **LONG), owner).id, when=lambda job: job.progress.done >= 1)
    pid = child_of(store, job)
    store.cancel(job.id, owner)
    assert store.get(job.id).state == "cancelling"
    until(store, job.id, "cancelled")
    assert not is_alive(pid)


def test_cancelling_twice_or_after_the_end_changes_nothing(store, owner, recipe, running, until):
    store.cancel(running.id, owner)
    store.cancel(running.id, owner)
    until(store, running.id, "cancelled")
    assert store.cancel(running.id, owner).state == "cancelled"
    done = store.submit(recipe(), owner)
    until(store, done.id, "verified")
    assert store.cancel(done.id, owner).state == "verified"


def test_resume_goes_on_from_the_journal(store, owner, recipe, until):
    job = store.submit(recipe(tensors=12, pause=0.1), owner)
    until(store, job.id, when=lambda job: job.progress.done >= 3)
    store.cancel(job.id, owner)
    until(store, job.id, "cancelled")

    assert store.resume(job.id, owner).progress.done == 0
    done = until(store, job.id, "verified", "failed")

    assert done.plan["bytes_done"] >= 300
    assert "--resume" in json.loads((store.output_path(job.id) / "arguments.json").read_text())


def test_resuming_a_job_that_runs_or_is_done_changes_nothing(store, owner, recipe, running, until):
    assert store.resume(running.id, owner).state == "running"
    store.cancel(running.id, owner)
    done = store.submit(recipe(), owner)
    until(store, done.id, "verified")
    assert store.resume(done.id, owner).state == "verified"


def test_a_killed_merge_is_interrupted_and_says_why(store, owner, running, until):
    os.kill(child_of(store, running), signal.SIGKILL)
    job = until(store, running.id, "interrupted", "failed")
    assert job.state == "interrupted"
    assert "memory ran out" in job.error
    assert "Resume" in job.error


def test_a_merge_that_someone_terminates_is_interrupted(store, owner, running, until):
    os.kill(child_of(store, running), signal.SIGTERM)
    assert until(store, running.id, "interrupted", "failed").state == "interrupted"


def test_a_refused_merge_fails_with_the_engines_words(store, owner, recipe, until):
    problem = {
        "message": "'wieght' is unknown.",
        "where": "parameters",
        "hint": "Did you mean 'weight'?",
        "level": "error",
    }
    job = until(store, store.submit(recipe(end="fail", problems=[problem]), owner).id, "failed")
    assert job.error == "parameters: 'wieght' is unknown. Did you mean 'weight'?"
    assert job.problems[0].hint == "Did you mean 'weight'?"


def test_a_crashed_merge_fails_with_its_last_words(store, owner, recipe, until):
    job = until(store, store.submit(recipe(end="crash", last_words="MemoryError"), owner).id, "failed")
    assert job.error == "The merge stopped unexpectedly (exit code 1). MemoryError"


def test_an_engine_that_cannot_start_fails_the_job_but_not_the_queue(make_store, data_dir, owner, recipe, until):
    store = make_store(command=[str(data_dir / "no" / "such" / "program")])
    job = until(store, store.submit(recipe(), owner).id, "failed")
    assert "FileNotFoundError" in job.error
    assert str(data_dir) not in job.error
    until(store, store.submit(recipe(), owner).id, "failed")


def test_the_next_job_runs_after_one_that_failed(store, owner, recipe, until):
    bad = store.submit(recipe(end="crash"), owner)
    good = store.submit(recipe(), owner)
    until(store, bad.id, "failed")
    assert until(store, good.id, "verified", "failed").state == "verified"


def test_shutdown_stops_the_child_and_a_new_store_finds_the_job(make_store, store, owner, running, until):
    pid = child_of(store, running)
    began = time.monotonic()
    store.shutdown()
    assert time.monotonic() - began < 2
    assert not is_alive(pid)

    again = make_store()
    found = again.get(running.id)
    assert (found.state, found.recipe) == ("interrupted", running.recipe)
    assert "Resume" in found.error
    assert [job.id for job in again.list(owner)] == [running.id]
    assert again.resume(running.id, owner).state in ("queued", "running")


def test_finished_and_queued_jobs_survive_a_restart(make_store, store, owner, recipe, until):
    done = store.submit(recipe(), owner)
    until(store, done.id, "verified")
    busy = store.submit(recipe(**LONG), owner)
    until(store, busy.id, "running")
    waiting = store.submit(recipe(), owner)
    files = store.files(done.id)
    store.shutdown()

    again = make_store()
    assert again.get(done.id).state == "verified"
    assert again.files(done.id) == files
    assert until(again, waiting.id, "verified", "failed").state == "verified"


def test_shutting_down_twice_is_fine(store):
    store.shutdown()
    store.shutdown()


CRASHING_SERVER = """
    import os, sys, time
    from merger import JobStore
    store = JobStore(sys.argv[1], command=sys.argv[2:], small_bytes=0)
    job = store.submit('{"tensors": 100, "pause": 0.1, "deaf": true}', "owner")
    while store.get(job.id).progress.done < 1:
        time.sleep(0.02)
    print(job.id, flush=True)
    os._exit(1)
"""


def test_a_child_left_by_a_crashed_server_is_ended_and_its_job_interrupted(make_store, data_dir, tmp_path):
    orphan = tmp_path / "orphan.py"
    orphan.write_text('import sys, time\nprint(\'{"event": "TensorMerged", "done": 1}\', flush=True)\ntime.sleep(60)\n')
    crashed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CRASHING_SERVER), data_dir, sys.executable, str(orphan)],
        capture_output=True, text=True, check=False, timeout=30, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    job_id = crashed.stdout.strip()
    assert job_id, crashed.stderr
    pid = int((data_dir / "jobs" / job_id / "pid").read_text().split()[0])
    assert is_alive(pid)

    store = make_store()

    assert store.get(job_id).state == "interrupted"
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_a_process_that_took_over_the_number_of_an_old_child_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        for told in (f"{other.pid} 1", f"{other.pid} "):
            (tmp_path / "pid").write_text(told)
            end_orphan(tmp_path / "pid")
            assert other.poll() is None
        remember_child(tmp_path / "pid", other.pid)
        end_orphan(tmp_path / "pid")
        assert other.wait(5) == -signal.SIGKILL
        end_orphan(tmp_path / "pid")


def test_two_servers_cannot_use_one_folder(make_store, store):
    with pytest.raises(OutputError, match="Another Mixdesk"):
        make_store()


def test_a_crash_while_checksums_are_taken_does_not_merge_again(make_store, store, owner, recipe, until):
    job = store.submit(recipe(), owner)
    until(store, job.id, "verified")
    store.shutdown()
    with contextlib.closing(sqlite3.connect(store.data_dir / "jobs.sqlite3")) as table, table:
        table.execute("UPDATE jobs SET state = 'running'")
        table.execute("DELETE FROM files")
    weights = store.data_dir / job.output / "model.safetensors"
    before = weights.stat().st_mtime_ns

    again = make_store()
    assert again.get(job.id).state == "interrupted"
    again.resume(job.id, owner)

    assert until(again, job.id, "verified", "failed").state == "verified"
    assert ("model.safetensors", 7) in again.files(job.id)
    assert weights.stat().st_mtime_ns == before
