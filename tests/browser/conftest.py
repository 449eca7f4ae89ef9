"""A real Chromium, the running app, and pages that fail the test when something goes wrong inside them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, sync_playwright

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_BROWSER = (
    "no Chromium found: install it with `apt-get install chromium` or `playwright install chromium`, "
    "or put google-chrome on the PATH"
)


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The browser to drive: the system's, or Playwright's own, installed once when there is none."""
    path = _system_browser() or _playwrights_browser()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(NO_BROWSER)
    return path


def _system_browser() -> Path | None:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin"]))
        if found:
            return Path(found)
    return None


def _playwrights_browser() -> Path | None:
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    if not path.exists():
        install = [sys.executable, "-m", "playwright", "install", "chromium"]
        subprocess.run(install, check=False, capture_output=True, timeout=300)
    return path if path.exists() else None


@dataclass(frozen=True)
class AppServer:
    """The app as a visitor meets it.

    Attributes:
        url: its address.
        data: its data directory.
        log: everything it printed.
    """

    url: str
    data: Path
    log: Path


@pytest.fixture(scope="session")
def app_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppServer]:
    """`python app.py` in a process of its own, ready to answer."""
    folder = tmp_path_factory.mktemp("app")
    port = _free_port()
    server = AppServer(f"http://127.0.0.1:{port}", folder / "data", folder / "log.txt")
    server.data.mkdir()
    environment = os.environ | {"MIXDESK_DATA": str(server.data), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "app.py", "--port", str(port)], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
        )
    try:
        _wait_until_ready(process, server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(process: subprocess.Popen[bytes], server: AppServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"app.py ended with code {process.returncode}:\n{_tail(server.log)}")
        try:
            with urllib.request.urlopen(server.url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"app.py did not answer within {START_SECONDS} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


@pytest.fixture(scope="module")
def chromium(chromium_path: Path) -> Iterator[Browser]:
    """One browser per test module: while Playwright runs, its event loop occupies the main thread."""
    with sync_playwright() as playwright:
        browser = _launch(playwright, chromium_path)
        yield browser
        browser.close()


def _launch(playwright: Playwright, path: Path) -> Browser:
    return playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)


class Watch:
    """Collects what must not happen in a page."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def attach(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.faults.append(f"uncaught error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console error: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in {"http", "https", "ws", "wss"} and address.hostname != "127.0.0.1":
            self.faults.append(f"request off this machine: {request.url}")


OpenPage = Callable[..., Page]


@pytest.fixture
def watch() -> Watch:
    """The faults seen so far; a test that provokes one on purpose removes it."""
    return Watch()


@pytest.fixture
def open_page(chromium: Browser, watch: Watch) -> Iterator[OpenPage]:
    """`open_page(url, width=1280, height=900, dark=False)`: a fresh visitor; faults fail the test at its end."""
    contexts = []

    def opened(url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        watch.attach(page)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not watch.faults, "\n".join(watch.faults)


@pytest.fixture
def page(open_page: OpenPage, app_server: AppServer) -> Page:
    """The app's page in a desktop window."""
    return open_page(app_server.url)
