"""The running server, asked by others than its own page."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.browser


def test_the_page_is_served_to_its_own_name_only(app_server):
    assert httpx.get(app_server.url).status_code == 200
    assert httpx.get(app_server.url, headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("place", ["/", "/config", "/gradio_api/run/predict", "/mixdesk/jobs/x/archive.zip"])
def test_pages_of_other_sites_are_refused_everywhere(app_server, place):
    answer = httpx.post(app_server.url + place, headers={"Origin": "http://evil.example"}, json={})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_server_offers_no_api(app_server):
    told = httpx.get(f"{app_server.url}/gradio_api/info").json()
    assert not told["named_endpoints"]
    assert not told["unnamed_endpoints"]


def test_plotly_comes_from_this_machine_once(app_server):
    answer = httpx.get(f"{app_server.url}/mixdesk/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert answer.status_code == 200
    assert "max-age" in answer.headers["cache-control"]


def test_files_of_the_data_folder_are_not_served(app_server):
    for path in (app_server.data / "jobs.sqlite3", app_server.data):
        assert httpx.get(f"{app_server.url}/gradio_api/file={path}").status_code in (403, 404)
