from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from merger import Job, JobStore, new_owner

FAKE_ENGINE = (sys.executable, "-S", str(Path(__file__).with_name("fake_engine.py")))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "merges"


@pytest.fixture
def make_store(data_dir: Path) -> Iterator[Callable[..., JobStore]]:
    """Opens stores whose merges are made by the fake engine, in child processes."""
    opened: list[JobStore] = []

    def make(**options: Any) -> JobStore:
        store = JobStore(data_dir, **{"command": FAKE_ENGINE, "small_bytes": 0, **options})
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.shutdown()


@pytest.fixture
def store(make_store: Callable[..., JobStore]) -> JobStore:
    return make_store()


@pytest.fixture
def owner() -> str:
    return new_owner()


@pytest.fixture
def recipe() -> Callable[..., str]:
    """A recipe that tells the fake engine what to do."""
    return lambda **orders: json.dumps(orders)


@pytest.fixture
def until() -> Callable[..., Job]:
    """Waits until a job fulfils a condition, or is in one of some states."""

    def wait(store: JobStore, job_id: str, *states: str, when: Callable[[Job], bool] | None = None) -> Job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            job = store.get(job_id)
            assert job is not None
            if job.state in states or (when is not None and when(job)):
                return job
            time.sleep(0.01)
        raise AssertionError(f"still {job.state} after a minute: {job}")

    return wait
