"""The whole page, built but not opened in a browser."""

from __future__ import annotations

import gradio as gr
import pytest

import app
from components import text
from components.desk import Desk, View, remember
from components.draft import Draft
from merger import JobStore


@pytest.fixture(scope="module")
def page(tmp_path_factory, what_if) -> gr.Blocks:
    store = JobStore(tmp_path_factory.mktemp("page"))
    yield app.build(store, what_if)
    store.shutdown()


def test_nothing_of_the_page_is_an_api(page):
    assert page.get_api_info()["named_endpoints"] == {}
    assert page.get_api_info()["unnamed_endpoints"] == {}


def test_one_event_listens_to_every_control(page):
    moves = [event for event in page.config["dependencies"] if len(event["targets"]) > 20]
    (move,) = moves
    assert {name for _, name in move["targets"]} == {"input"}
    assert (move["queue"], move["trigger_mode"]) == (False, "always_last")


def test_nothing_listens_to_what_programs_write(page):
    names = {name for event in page.config["dependencies"] for _, name in event["targets"]}
    assert "change" not in names


def test_the_page_opens_with_three_steps(page):
    steps = next(part["props"] for part in page.config["components"] if part["props"].get("elem_id") == "steps")
    assert all(f'data-step="{name}"' in steps["html_template"] for name, _ in text.STEPS)


def test_a_view_that_fails_leaves_the_others_standing():
    def fails(draft: Draft) -> list:
        raise ValueError("not today")

    with gr.Blocks():
        memory = remember()
        views = (View([gr.HTML()], fails), View([gr.HTML()], lambda draft: ["cards"]))
    (_, _, cards), alert = Desk(memory, views, [], lambda draft, _: draft, lambda event: event).restored(Draft())
    assert cards == "cards"
    assert "role='alert'" in alert


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, [], 7860),
        ({"PORT": "8001"}, [], 8001),
        ({"PORT": "8001", "GRADIO_SERVER_PORT": "8002"}, [], 8002),
        ({"PORT": "8001"}, ["--port", "8003"], 8003),
    ],
)
def test_the_port_comes_from_the_command_line_or_the_environment(monkeypatch, environment, given, expected):
    for name in ("PORT", "GRADIO_SERVER_PORT", "SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    arguments = app.arguments(given)
    assert (arguments.port, arguments.host) == (expected, "127.0.0.1")


def test_no_event_goes_through_the_queue(page):
    assert [event for event in page.config["dependencies"] if event["backend_fn"] and event["queue"] is not False] == []
