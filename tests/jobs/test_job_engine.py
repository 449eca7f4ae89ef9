"""Background merges by the real engine: in a child process and in a thread, with the same result."""

from __future__ import annotations

import json
import struct
import time
import zlib

import pytest

from merger import JobStore, Policy, new_owner

MEBIBYTE = 1 << 20


@pytest.fixture
def owner():
    return new_owner()


@pytest.fixture
def open_store(tmp_path):
    opened = []

    def make(name="merges", **options):
        opened.append(JobStore(tmp_path / name, **options))
        return opened[-1]

    yield make
    for store in opened:
        store.shutdown()


@pytest.fixture
def ties(tiny_family):
    models = "".join(f"\n- model: {path}\n  parameters: {{weight: 0.5, density: 0.6}}" for path in tiny_family.experts)
    return f"merge_method: ties\nbase_model: {tiny_family.base}\nmodels:{models}\ndtype: float32\n"


def contents(store, job):
    folder = store.output_path(job.id)
    return {name: (folder / name).read_bytes() for name, _ in store.files(job.id)}


def test_child_and_thread_write_the_same_bytes(open_store, owner, ties, until):
    outputs = []
    for name, small in (("child", 0), ("thread", 200_000_000)):
        store = open_store(name, small_bytes=small)
        job = until(store, store.submit(ties, owner).id, "verified", "failed")
        assert job.error is None
        assert job.progress.fraction == 1
        assert job.progress.done == job.progress.total == job.plan["tensors"]
        assert job.result["non_finite"] == {}
        assert (store.data_dir / "jobs" / job.id / "log.txt").exists() == (name == "child")
        outputs.append(contents(store, job))
    assert outputs[0] == outputs[1]
    assert {"model.safetensors", "config.json", "README.md"} <= set(outputs[0])


def test_the_checksums_are_those_of_the_files(open_store, owner, ties, until):
    store = open_store()
    job = until(store, store.submit(ties, owner).id, "verified", "failed")
    files = store.check_download(job.id, None, *store.sign_download(job.id, owner, None))
    data = contents(store, job)
    assert {file.name: (file.size, file.crc32) for file in files} == {
        name: (len(content), zlib.crc32(content)) for name, content in data.items()
    }
    assert job.size == sum(map(len, data.values()))


@pytest.mark.parametrize("small", [0, 200_000_000])
def test_a_wrong_recipe_fails_in_plain_words(open_store, owner, ties, tmp_path, until, small):
    store = open_store(small_bytes=small)
    typo = until(store, store.submit(ties.replace("density", "densty"), owner).id, "verified", "failed")
    assert "Did you mean 'density'?" in typo.error
    gone = until(
        store, store.submit(ties.replace("base_model: /", f"base_model: {tmp_path}/gone/"), owner).id, "failed"
    )
    assert "gone" in gone.error or "base" in gone.error
    assert str(tmp_path) not in gone.error
    assert "Traceback" not in gone.error


def sparse_model(folder, mebibytes):
    """A checkpoint of zeros that takes no room on the disk."""
    folder.mkdir()
    elements = mebibytes * MEBIBYTE // 4
    header = json.dumps(
        {"layers.0.weight": {"dtype": "F32", "shape": [elements // 1024, 1024], "data_offsets": [0, elements * 4]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + elements * 4)
    return folder


@pytest.fixture
def long_merge(tmp_path, monkeypatch):
    """A merge that takes seconds, so that it can be cancelled after it began to write."""
    monkeypatch.setenv("MIXDESK_KERNELS", "never")
    base, *experts = (sparse_model(tmp_path / name, 256) for name in ("base", "one", "two"))
    models = "".join(f"\n- model: {path}\n  parameters: {{weight: 0.5, density: 0.5}}" for path in experts)
    return f"merge_method: della\nbase_model: {base}\nmodels:{models}\n"


@pytest.mark.parametrize("small", [0, 10**12])
def test_a_real_merge_is_cancelled_within_a_second_and_resumed(open_store, owner, long_merge, until, small):
    store = open_store(small_bytes=small)
    job = store.submit(long_merge, owner)
    until(store, job.id, "failed", "verified", when=lambda job: job.progress.bytes_done > 0)
    began = time.monotonic()
    store.cancel(job.id, owner)
    cancelled = until(store, job.id, "cancelled", "verified", "failed")
    took = time.monotonic() - began
    assert (cancelled.state, cancelled.error) == ("cancelled", None)
    assert took < 1
    assert store.files(job.id) == []

    store.resume(job.id, owner)
    done = until(store, job.id, "verified", "failed")

    assert done.error is None
    assert done.plan["bytes_done"] > 0
    assert dict(store.files(job.id))["model.safetensors"] > 256 * MEBIBYTE


@pytest.mark.parametrize("small", [0, 200_000_000])
def test_a_store_with_a_policy_refuses_models_outside_of_it(open_store, owner, tiny_family, until, small):
    """The limit lies in the engine, so no way of submitting a recipe goes around it."""
    store = open_store(small_bytes=small, policy=Policy.hosted([tiny_family.base]))
    recipe = f"merge_method: linear\nmodels:\n  - model: {tiny_family.experts[0]}\n    parameters: {{weight: 1}}\n"
    job = until(store, store.submit(recipe, owner).id, "failed", "verified")
    assert job.state == "failed"
    assert "which is not open here" in job.error
