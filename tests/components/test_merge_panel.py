"""Merging from the page: forecast, start, watch, cancel, and the result to take home."""

from __future__ import annotations

import dataclasses
import shutil
import time

import pytest

from components import job_card
from components.demo_skills import family
from components.draft import Draft
from components.merge_panel import Merges, shown
from merger import Job, JobStore, MergerError, Problem, new_owner

GOOD = dataclasses.replace(family(), parameters={"lambda": 0.7})


@pytest.fixture(scope="module")
def merges(tmp_path_factory, what_if):
    store = JobStore(tmp_path_factory.mktemp("merges"))
    yield Merges(store, what_if)
    store.shutdown()


def finished(merges: Merges, job_id: str) -> Job:
    deadline = time.monotonic() + 60
    while (job := merges.store.get(job_id)).is_active:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return job


@pytest.fixture(scope="module")
def done(merges) -> tuple[Job, str]:
    """A finished merge of the demo and its owner's secret."""
    job_id, owner = merges.start(GOOD, "my digits", None)
    return finished(merges, job_id), owner


def test_the_forecast_says_what_will_be_read_and_written(merges):
    told = merges.forecast(GOOD)
    assert "Task Arithmetic" in told
    assert "525 KB" in told


def test_the_forecast_says_what_stands_in_the_way(merges):
    told = merges.forecast(dataclasses.replace(family(), method="slerp"))
    assert "role='alert'" in told
    assert "exactly 1 model" in told


def test_without_models_there_is_nothing_to_merge(merges):
    assert "Choose models in step 1 first." in merges.forecast(Draft())
    with pytest.raises(MergerError, match="nothing to merge"):
        merges.start(Draft(), "empty", None)


def test_what_cannot_be_merged_is_not_queued(merges):
    owner = new_owner()
    with pytest.raises(MergerError, match="exactly 1 model"):
        merges.start(dataclasses.replace(family(), method="slerp"), "wrong", owner)
    assert not merges.store.list(owner)


def test_a_merge_is_verified(done):
    job, _ = done
    assert (job.state, job.name) == ("verified", "my digits")


def test_the_owner_sees_the_result_with_links(merges, done):
    job, owner = done
    progress, cancel, resume, result, texts, card, recipe, start, timer = merges.watch(None, job.id, owner)
    assert "aria-valuenow='100'" in progress
    assert "archive.zip?" in result
    assert "model.safetensors?" in result
    assert "were read back" in result
    assert "load_file" in result or "from_pretrained" in result
    assert "base_model_relation: merge" in card
    assert "lambda: 0.7" in recipe
    assert (cancel.visible, resume.visible, texts.visible, start.interactive, timer.active) == (
        False,
        False,
        True,
        True,
        False,
    )


def test_the_result_of_a_demo_merge_shows_its_skills(merges, done):
    job, owner = done
    result = merges.watch(None, job.id, owner)[3]
    assert "class=merged" in result
    assert result.count("<tr") == 6


def test_others_see_the_status_but_no_links(merges, done):
    job, _ = done
    result = merges.watch(job.id, None, new_owner())[3]
    assert "archive.zip" not in result
    assert "Only the browser that started" in result


def test_a_link_to_no_merge_says_so(merges):
    assert "leads to no merge" in merges.watch("no-such-job", None, new_owner())[0]
    assert merges.watch(None, "deleted-since", new_owner())[0] == ""


def test_a_result_whose_files_are_gone_is_explained(merges):
    job_id, owner = merges.start(GOOD, "lost", None)
    finished(merges, job_id)
    shutil.rmtree(merges.store.output_path(job_id))
    progress, _, _, result, texts, *_ = merges.watch(None, job_id, owner)
    assert "lost" in progress
    assert "cannot be shown" in result
    assert not texts.visible


def test_a_pinned_recipe_sets_its_number_format_itself():
    (free,) = shown(dataclasses.replace(GOOD, dtype="float64"))
    (pinned,) = shown(dataclasses.replace(GOOD, pinned="merge_method: linear"))
    assert (free.value, free.visible, pinned.visible) == ("float64", True, False)


def test_the_link_that_led_here_comes_before_the_browsers_last_merge(merges, done):
    job, owner = done
    other, _ = merges.start(GOOD, "another", owner)
    finished(merges, other)
    assert "my digits" in merges.watch(job.id, other, owner)[0]
    assert "another" in merges.watch(None, other, owner)[0]


def test_a_hostile_name_stays_text(merges):
    job_id, owner = merges.start(GOOD, "<img src=x onerror=alert(1)>", None)
    finished(merges, job_id)
    shown = merges.watch(None, job_id, owner)
    assert "<img" not in shown[0] + shown[3]


def test_progress_says_where_it_is():
    done = dataclasses.replace(Job("id", "m", "running", 0.0, "", "").progress, phase="merging", tensor="t", layer=17)
    done = dataclasses.replace(
        done, role="mlp.up", done=177, total=291, bytes_done=61, bytes_out=100, bytes_per_second=3e8, seconds_left=72.0
    )
    told = job_card.progress(Job("id", "big", "running", 0.0, "", "", progress=done), 0)
    assert "aria-valuenow='61'" in told
    assert "tensor 178 of 291 · layer 17 · mlp.up · 300 MB/s · 1:12 min left" in told
    assert "Merging big: 60 percent" in told


def test_a_killed_merge_says_so_once():
    killed = Problem("The merge was killed by the system.", hint="Resume goes on from where it stopped.")
    told = job_card.progress(Job("id", "m", "interrupted", 0.0, "", "", problems=(killed,)), 0)
    assert "killed by the system" in told
    assert "server stopped" not in told


def test_a_waiting_merge_says_how_many_come_first():
    assert "2 before it" in job_card.progress(Job("id", "m", "queued", 0.0, "", ""), 2)
