"""Only this page may talk to its server."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from components import access


def client(server_name: str = "127.0.0.1") -> TestClient:
    async def hello(request):
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", hello, methods=["GET", "POST"])], middleware=access.middleware(server_name))
    return TestClient(app, base_url="http://127.0.0.1:7860")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "localhost"])
def test_local_names_are_answered(host):
    assert client().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:7860"])
def test_foreign_hosts_are_refused(host):
    assert client().get("/", headers={"Host": host}).status_code == 400


def test_the_page_itself_may_ask():
    assert client().post("/", headers={"Origin": "http://127.0.0.1:7860"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9999", "null", "http://[", "file://"])
def test_foreign_origins_are_refused(origin):
    assert client().post("/", headers={"Origin": origin}).status_code == 403


def test_more_names_can_be_given(monkeypatch):
    monkeypatch.setenv("MIXDESK_HOSTS", "mixdesk.lan, other.lan")
    asked = client("0.0.0.0").post("/", headers={"Host": "mixdesk.lan", "Origin": "https://mixdesk.lan"})
    assert asked.status_code == 200
    assert client("0.0.0.0").get("/", headers={"Host": "0.0.0.0"}).status_code == 400


def test_a_space_answers_under_its_public_name(monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/mixdesk")
    monkeypatch.setenv("SPACE_HOST", "someone-mixdesk.hf.space")
    headers = {"Host": "10.0.0.7:7860", "Origin": "https://someone-mixdesk.hf.space"}
    assert client("0.0.0.0").post("/", headers=headers).status_code == 200
    assert client("0.0.0.0").post("/", headers=headers | {"Origin": "https://evil.example"}).status_code == 403


def test_nobody_fills_the_disk_with_uploads():
    app = Starlette(routes=access.closed())
    answer = TestClient(app).post("/gradio_api/upload", files={"files": ("big", b"0" * 100)})
    assert answer.status_code == 404
