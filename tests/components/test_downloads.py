"""Downloading what a merge made, over HTTP: whole, in pieces, and only with a genuine link."""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from components.downloads import link, routes
from merger import Job, JobNotFound, JobStore, new_owner

WEIGHTS = random.Random(0).randbytes(3_200_000)

MERGE = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[2])
(out / "1_Pooling").mkdir(parents=True)
(out / "model.safetensors").write_bytes(pathlib.Path(json.load(open(sys.argv[1]))["weights"]).read_bytes())
(out / "config.json").write_text("{}" * 3000)
(out / "1_Pooling" / "config.json").write_text("{}")
(out / "empty.txt").write_text("")
print(json.dumps({"event": "Verified", "files": 1, "tensors": 1, "bytes": 1, "non_finite": {}}))
"""
NAMES = ["1_Pooling/config.json", "config.json", "empty.txt", "model.safetensors"]


@pytest.fixture(scope="module")
def owner() -> str:
    return new_owner()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = JobStore(
        tmp_path_factory.mktemp("downloads") / "merges", command=[sys.executable, "-c", MERGE], small_bytes=0
    )
    yield opened
    opened.shutdown()


def merged(store: JobStore, owner: str, folder: Path, name: str = "My merge: ünal") -> Job:
    (folder / "weights").write_bytes(WEIGHTS)
    job = store.submit(json.dumps({"weights": str(folder / "weights")}), owner, name)
    while (now := store.get(job.id)).is_active:
        time.sleep(0.01)
    assert now.error is None
    return now


@pytest.fixture(scope="module")
def job(store, owner, tmp_path_factory) -> Job:
    return merged(store, owner, tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def client(store):
    with TestClient(Starlette(routes=routes(store))) as opened:
        yield opened


@pytest.fixture
def zip_link(store, job, owner) -> str:
    return link(store, job, owner)


@pytest.fixture
def file_link(store, job, owner) -> str:
    return link(store, job, owner, "model.safetensors")


def test_the_zip_holds_exactly_the_jobs_files(client, zip_link, tmp_path):
    answer = client.get(zip_link)

    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content)
    with zipfile.ZipFile(io.BytesIO(answer.content)) as opened:
        assert opened.testzip() is None
        assert opened.namelist() == [f"My-merge-unal/{name}" for name in NAMES]
        assert opened.read("My-merge-unal/model.safetensors") == WEIGHTS
    if unzip := shutil.which("unzip"):
        (tmp_path / "x.zip").write_bytes(answer.content)
        assert subprocess.run([unzip, "-t", tmp_path / "x.zip"], capture_output=True, check=False).returncode == 0


def test_single_files_come_as_they_are(client, store, job, owner):
    for name in NAMES:
        answer = client.get(link(store, job, owner, name))
        assert answer.content == (store.output_path(job.id) / name).read_bytes()
        assert answer.headers["content-length"] == str(len(answer.content))


def test_every_answer_is_an_attachment_that_nobody_caches_or_guesses(client, zip_link, file_link):
    for address, name, kind in (
        (zip_link, "My-merge-unal.zip", "application/zip"),
        (file_link, "model.safetensors", "application/octet-stream"),
    ):
        headers = client.head(address).headers
        assert headers["content-disposition"] == f'attachment; filename="{name}"'
        assert headers["content-type"] == kind
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "private, no-store"
        assert headers["accept-ranges"] == "bytes"
        assert headers["etag"].startswith('"')


def test_pieces_cut_anywhere_make_the_whole(client, zip_link):
    whole = client.get(zip_link).content
    generator = random.Random(1)
    headers_end = [0, 1, 30, len(whole) - 22, len(whole) - 1, len(whole)]
    cuts = sorted({*headers_end, *(generator.randrange(len(whole)) for _ in range(20))})
    pieces = []
    for start, stop in itertools.pairwise(cuts):
        answer = client.get(zip_link, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.status_code == 206
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
        assert int(answer.headers["content-length"]) == stop - start
        pieces.append(answer.content)
    assert b"".join(pieces) == whole


def test_a_broken_download_goes_on_where_it_stopped(client, file_link):
    first = client.get(file_link, headers={"Range": "bytes=0-999999"})
    rest = client.get(file_link, headers={"Range": "bytes=1000000-", "If-Range": first.headers["etag"]})
    assert (first.status_code, rest.status_code) == (206, 206)
    assert first.content + rest.content == WEIGHTS


def test_a_new_link_to_the_same_output_continues_an_old_download(client, store, job, owner, zip_link):
    tag = client.head(zip_link).headers["etag"]
    other = link(store, job, owner)
    assert client.get(other, headers={"Range": "bytes=5-9", "If-Range": tag}).status_code == 206


@pytest.mark.parametrize(
    ("wanted", "status", "part"),
    [
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=-99999999999", 206, slice(None)),
        ("bytes=0-99999999999", 206, slice(None)),
        ("Bytes= 7 - 9 ", 206, slice(7, 10)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("bytes=9-7", 200, slice(None)),
        ("bytes=-", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
        ("bytes=x-y", 200, slice(None)),
    ],
)
def test_ranges(client, file_link, wanted, status, part):
    answer = client.get(file_link, headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (status, WEIGHTS[part])


@pytest.mark.parametrize("wanted", [f"bytes={len(WEIGHTS)}-", "bytes=-0", "bytes=99999999999-999999999999"])
def test_ranges_beyond_the_end_are_refused(client, file_link, wanted):
    answer = client.get(file_link, headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{len(WEIGHTS)}"


def test_a_range_of_an_empty_file_does_not_exist(client, store, job, owner):
    address = link(store, job, owner, "empty.txt")
    assert client.get(address, headers={"Range": "bytes=0-"}).status_code == 416
    assert client.get(address).content == b""


def test_a_range_of_something_else_gets_the_whole(client, file_link):
    for condition in ('"other"', "Wed, 21 Oct 2015 07:28:00 GMT"):
        answer = client.get(file_link, headers={"Range": "bytes=0-9", "If-Range": condition})
        assert (answer.status_code, len(answer.content)) == (200, len(WEIGHTS))


def test_head_tells_the_length_and_sends_nothing(client, zip_link, file_link):
    for address in (zip_link, file_link):
        answer = client.head(address)
        assert answer.status_code == 200
        assert answer.content == b""
        assert answer.headers["content-length"] == str(len(client.get(address).content))


def test_everything_wrong_looks_like_a_job_that_does_not_exist(
    client, store, job, owner, zip_link, file_link, tmp_path
):
    other = merged(store, owner, tmp_path, "other")
    missing = client.get("/mixdesk/jobs/missing/archive.zip")
    signature = urlsplit(zip_link).query
    stale = store.sign_download(job.id, owner, None, seconds=-1)
    answers = [
        client.get(f"/mixdesk/jobs/{job.id}/archive.zip"),
        client.get(f"/mixdesk/jobs/{job.id}/archive.zip?e=x&t=y"),
        client.get(f"/mixdesk/jobs/{job.id}/archive.zip?e=99999999999&t={'0' * 64}"),
        client.get(f"/mixdesk/jobs/{job.id}/archive.zip?e={stale[0]}&t={stale[1]}"),
        client.get(f"/mixdesk/jobs/{other.id}/archive.zip?{signature}"),
        client.get(f"/mixdesk/jobs/{job.id}/files/model.safetensors?{signature}"),
        client.get(f"/mixdesk/jobs/{job.id}/files/config.json?{urlsplit(file_link).query}"),
        client.get(link(store, job, owner, "../../../jobs.sqlite3").replace("../", "..%2F")),
        client.get(link(store, job, owner, "nothing.txt")),
    ]
    assert missing.status_code == 404
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, missing.text)}


def test_only_the_owner_gets_a_link(store, job):
    with pytest.raises(JobNotFound):
        link(store, job, new_owner())
    with pytest.raises(JobNotFound):
        link(store, job, "")


def test_links_start_at_the_pages_root_path(store, job, owner):
    address = link(store, job, owner, "1_Pooling/config.json", root_path="/spaces/mix/")
    parts = urlsplit(address)
    assert parts.path == f"/spaces/mix/mixdesk/jobs/{job.id}/files/1_Pooling/config.json"
    assert set(parse_qs(parts.query)) == {"e", "t"}


def test_a_deleted_or_changed_output_is_not_found(client, store, owner, tmp_path):
    job = merged(store, owner, tmp_path, "short-lived")
    addresses = [link(store, job, owner), link(store, job, owner, "config.json")]
    (store.output_path(job.id) / "config.json").write_text("{}")
    assert [client.get(address).status_code for address in addresses] == [404, 404]
    store.delete(job.id, owner)
    assert [client.get(address).status_code for address in addresses] == [404, 404]


def test_gradios_compression_leaves_downloads_alone(store, job, owner):
    from gradio.brotli_middleware import BrotliMiddleware

    with TestClient(BrotliMiddleware(Starlette(routes=routes(store)))) as client:
        answer = client.get(
            link(store, job, owner, "config.json"), headers={"Accept-Encoding": "br, gzip", "Range": "bytes=0-999"}
        )
    assert answer.status_code == 206
    assert answer.headers["content-length"] == "1000"
    assert answer.content == b"{}" * 500


def test_a_real_server_streams_and_a_client_that_leaves_does_no_harm(store, zip_link, file_link):
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes(store)), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        with httpx.stream("GET", base + file_link) as early:
            assert next(early.iter_bytes(1000)) == WEIGHTS[:1000]
        assert httpx.head(base + zip_link).headers["content-length"] == str(len(httpx.get(base + zip_link).content))
    finally:
        server.should_exit = True
        thread.join(10)
