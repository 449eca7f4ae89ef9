"""Quick, readable and usable by everyone: long tasks, contrast and names, keyboard, narrow windows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import merger

pytestmark = pytest.mark.browser

PATIENCE = 60_000
ARTEFACTS = Path(__file__).resolve().parents[2] / ".artefacts"
STEPS = ("models", "mix", "merge")
LONG_TASK_MS = 200
DRAG_SECONDS = 2.0

OBSERVE = """() => {
  window.longTasks = [];
  window.moves = 0;
  if (window.observed) return;
  window.observed = true;
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.longTasks.push(entry.duration)))
    .observe({ type: 'longtask' });
  const board = document.querySelector('#board .board');
  new MutationObserver(() => { if (board.dataset.drawn) window.moves += 1; })
    .observe(board, { attributeFilter: ['data-drawn'] });
}"""


CONTROLS = """() => {
  const box = document.querySelector('#mix-controls');
  const shown = [...box.children].map((child) => child.getBoundingClientRect()).filter((place) => place.height);
  return [[...new Set(shown.map(({ x }) => Math.round(x)))], box.scrollWidth, box.clientWidth];
}"""
"""Left edges of the controls that are shown; how wide their content is, and their column."""


def ready(page: Page) -> None:
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)


def go(page: Page, step: str) -> None:
    page.locator(f"#steps [data-step={step}]").click()
    if step == "mix":
        expect(page.locator("#board .main-svg").first).to_be_visible(timeout=PATIENCE)
    if step == "merge":
        expect(page.locator("#merge-summary")).to_contain_text("To write", timeout=PATIENCE)


def keep_picture(page: Page, name: str) -> None:
    """The whole page as a file to look at; figures are drawn once they come into view."""
    before = page.viewport_size
    assert before is not None
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": before["width"], "height": height})
    if page.locator("#step-mix").is_visible():
        page.wait_for_function("document.querySelectorAll('#board .main-svg').length >= 10")
    page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)
    page.set_viewport_size(before)


def drag(page: Page) -> list[float]:
    """Drag a slider to and fro for two seconds; the long tasks that came of it, in milliseconds."""
    box = page.get_by_label("range slider for Lambda").bounding_box()
    assert box is not None
    page.evaluate(OBSERVE)
    page.mouse.move(box["x"] + box["width"] * 0.17, box["y"] + box["height"] / 2)
    page.mouse.down()
    end, moves = time.monotonic() + DRAG_SECONDS, 0
    while time.monotonic() < end:
        share = 0.17 + 0.6 * abs(moves % 80 / 40 - 1)
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        moves += 1
    page.mouse.up()
    page.wait_for_function("document.querySelector('#board .board').dataset.drawn")
    assert page.evaluate("window.moves") >= 5
    tasks: list[float] = page.evaluate("window.longTasks")
    return tasks


def test_two_seconds_of_dragging_never_block_the_page(page: Page):
    ready(page)
    go(page, "mix")
    page.wait_for_function("document.querySelector('#board .board').dataset.drawn")
    # a page that blocks does so every time; a busy machine does not
    tries = [drag(page) for _ in range(3)]
    assert min(max(tasks, default=0) for tasks in tries) <= LONG_TASK_MS, tries


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_step_breaks_an_accessibility_rule(open_page, app_server, dark, width):
    page = open_page(app_server.url, width=width, dark=dark)
    ready(page)
    for step in STEPS:
        go(page, step)
        keep_picture(page, f"{step}-{'dark' if dark else 'light'}-{width}")
        found = Axe().run(page).response["violations"]
        assert not found, [(step, rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found]


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_sideways(open_page, app_server, width):
    page = open_page(app_server.url, width=width)
    ready(page)
    for step in STEPS:
        go(page, step)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_control_is_hidden_beside_the_others(open_page, app_server):
    page = open_page(app_server.url, width=1280, height=800)
    ready(page)
    go(page, "mix")
    page.get_by_role("button", name="Recipe as text").click()
    for facts in merger.describe_methods():
        page.locator("#method input").click()
        page.get_by_role("option", name=re.compile(rf"^{re.escape(facts.pretty_name)}( \(|$)")).click()
        expect(page.locator("#method-about")).to_contain_text(facts.summary)
        expect(page.locator("#yaml .cm-content")).to_be_visible()
        sides, wide, inner = page.evaluate(CONTROLS)
        assert (len(sides), wide <= inner) == (1, True), facts.name


def test_on_a_phone_the_numbers_stay_and_the_first_figure_stands_above_the_sliders(open_page, app_server):
    page = open_page(app_server.url, width=390, height=844)
    ready(page)
    go(page, "mix")
    tops = [page.locator(name).bounding_box()["y"] for name in (".strip", "#figure-skill", "#method", "#figure-change")]
    assert tops == sorted(tops)
    page.get_by_label("range slider for Lambda").scroll_into_view_if_needed()
    page.mouse.wheel(0, 200)
    expect(page.locator("#board .strip")).to_be_in_viewport()


def test_every_step_is_reached_by_keyboard(page: Page):
    ready(page)
    for step in STEPS:
        button = page.locator(f"#steps [data-step={step}]")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.locator(f"#step-{step}")).to_be_visible()
        expect(button).to_be_focused()
    page.locator("#header button").focus()
    page.keyboard.press("Tab")
    expect(page.locator("#steps [data-step=models]")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#steps [data-step=mix]")).to_be_focused()


def test_the_base_is_chosen_and_a_model_removed_by_keyboard(page: Page):
    ready(page)
    page.get_by_label("Use rotated as the base").focus()
    page.keyboard.press("Space")
    expect(page.locator(".model-card.is-base")).to_contain_text("rotated")
    page.get_by_role("button", name="Remove inverted").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".model-card")).to_have_count(3)
    expect(page.locator(".model-card.is-base")).to_contain_text("rotated")


def test_the_theme_can_be_switched_and_figures_follow(page: Page):
    ready(page)
    go(page, "mix")
    colour = "getComputedStyle(document.querySelector('#figure-change .xtick text')).fill"
    page.wait_for_function("document.querySelector('#figure-change .xtick text')")
    before = page.evaluate(colour)
    page.get_by_role("button", name="Switch between light and dark").click()
    page.wait_for_function(f"{colour} !== '{before}'")
    page.reload()
    expect(page.locator("body.dark")).to_have_count(1)


def test_figures_have_names_for_people_who_cannot_see_them(page: Page):
    ready(page)
    go(page, "mix")
    expect(page.get_by_role("img", name="What the merge can do")).to_be_attached()
    expect(page.get_by_role("img", name="How far each part moves")).to_be_attached()
