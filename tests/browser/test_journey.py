"""From models to a downloaded merge, as a person goes."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from safetensors.numpy import load_file, save_file

pytestmark = pytest.mark.browser

SHAPE = (4096, 3072)
PARTS = 2
REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60_000


@pytest.fixture(scope="session")
def large_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of 100 MB: large enough that their merge runs in a process of its own for some seconds."""
    folder = tmp_path_factory.mktemp("large")
    pair = (folder / "ones", folder / "threes")
    for place, value in zip(pair, (1.0, 3.0), strict=True):
        place.mkdir()
        save_file(
            {f"layers.{part}.weight": np.full(SHAPE, value, np.float32) for part in range(PARTS)},
            place / "model.safetensors",
        )
    return pair


def step(page: Page, name: str) -> None:
    page.locator(f"#steps [data-step={name}]").click()


def slider(page: Page, label: str) -> Locator:
    return page.get_by_label(f"range slider for {label}")


def number(page: Page, name: str) -> Locator:
    """One of the four numbers above the figures."""
    return page.locator(f"#board .number[data-name={name}] dd")


def open_figures(page: Page) -> None:
    step(page, "mix")
    expect(page.locator("#figure-skill .main-svg").first).to_be_visible(timeout=PATIENCE)


def choose_method(page: Page, label: str) -> None:
    page.locator("#method input").click()
    page.get_by_role("option", name=label, exact=True).click()


def choose_models(page: Page, folders: tuple[Path, ...]) -> None:
    """Instead of the demo's models."""
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    for left in (3, 2, 1, 0):
        page.locator("[data-remove]").first.click()
        expect(page.locator(".model-card")).to_have_count(left)
    for count, folder in enumerate(folders, 1):
        page.get_by_label("Folder of a model").fill(str(folder))
        page.get_by_label("Folder of a model").press("Enter")
        expect(page.locator(".model-card")).to_have_count(count)


def merge_large(page: Page, pair: tuple[Path, Path], name: str) -> None:
    """Start the average of the large pair and wait until it runs."""
    choose_models(page, pair)
    step(page, "mix")
    choose_method(page, "Linear")
    expect(page.locator("#method-about")).to_contain_text("Averages")
    step(page, "merge")
    page.get_by_label("Name of the result").fill(name)
    page.locator("#start").click()
    expect(page.locator(".job-card.running, .job-card.queued")).to_contain_text(name, timeout=PATIENCE)


def download(page: Page, folder: Path) -> Path:
    """Everything as a zip, unpacked; the folder of the model."""
    with page.expect_download() as caught:
        page.locator("a.download").click()
    zipped = folder / caught.value.suggested_filename
    caught.value.save_as(zipped)
    with zipfile.ZipFile(zipped) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    return folder / zipped.stem


def test_the_demo_is_ready_and_compatible(page: Page):
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    expect(page.locator(".model-card.is-base")).to_contain_text("base")
    expect(page.locator("#models-report")).not_to_contain_text("×")


def test_figures_follow_keyboard_and_mouse(page: Page):
    open_figures(page)
    before = number(page, "skill").inner_text()
    slider(page, "Lambda").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(number(page, "skill")).not_to_have_text(before)
    expect(page.get_by_label("number input for Lambda")).to_have_value("0.38")

    box = slider(page, "Lambda").bounding_box()
    assert box is not None
    change, middle = number(page, "change").inner_text(), box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.36, middle, steps=5)
    page.mouse.up()
    expect(number(page, "change")).not_to_have_text(change)
    expect(page.locator("#figure-skill figcaption")).to_contain_text("the skills add up")


def test_the_number_box_moves_the_figures_too(page: Page):
    open_figures(page)
    box = page.get_by_label("number input for Lambda")
    box.fill("0")
    box.press("Enter")
    expect(page.locator("#figure-change figcaption")).to_contain_text("Nothing moves")


def test_a_number_beyond_the_slider_counts_as_its_end(page: Page):
    open_figures(page)
    box = page.get_by_label("number input for Lambda")
    at_start = number(page, "change").inner_text()
    box.fill("2")
    expect(number(page, "change")).not_to_have_text(at_start)
    end = number(page, "change").inner_text()
    box.fill("0")
    expect(page.locator("#figure-change figcaption")).to_contain_text("Nothing moves")
    box.fill("99999")
    expect(number(page, "change")).to_have_text(end)
    box.press("Enter")
    box.blur()
    expect(box).to_have_value("2")


def test_another_method_shows_the_map_that_its_choice_names(page: Page):
    open_figures(page)
    choice = page.get_by_label("Whose change the map shows")
    choice.select_option(label="rotated")
    expect(choice).to_have_value("0")
    choose_method(page, "TIES")
    expect(choice).to_have_value("merged")


def test_a_methods_sliders_come_from_its_signature(page: Page):
    open_figures(page)
    expect(slider(page, "rotated · Density")).to_have_count(0)
    choose_method(page, "TIES")
    expect(slider(page, "rotated · Density")).to_be_visible()
    density = page.get_by_label("number input for rotated · Density")
    density.fill("0.2")
    density.press("Enter")
    expect(page.locator("#figure-kept figcaption")).to_contain_text("of all changes stay")


def test_a_recipe_can_be_typed(page: Page):
    open_figures(page)
    page.get_by_role("button", name="Recipe as text").click()
    editor = page.locator("#yaml .cm-content")
    expect(editor).to_contain_text("lambda: 0.33")
    editor.fill(editor.inner_text().replace("lambda: 0.33", "lambda: 0.8"))
    page.locator("#yaml-apply").click()
    expect(page.get_by_label("number input for Lambda")).to_have_value("0.8")
    editor.fill(editor.inner_text().replace("lambda", "lamda"))
    page.locator("#yaml-apply").click()
    expect(page.locator("#yaml-problem [role=alert]")).to_contain_text("lambda")


def test_what_was_mixed_is_still_there_after_a_reload(page: Page):
    open_figures(page)
    box = page.get_by_label("number input for Lambda")
    box.fill("0.9")
    box.press("Enter")
    page.get_by_role("button", name="Recipe as text").click()
    expect(page.locator("#yaml .cm-content")).to_contain_text("lambda: 0.9")
    page.reload()
    expect(page.get_by_label("number input for Lambda")).to_have_value("0.9", timeout=PATIENCE)
    expect(page.locator("#steps [data-step=mix]")).to_have_attribute("aria-current", "step")


def test_a_wrong_folder_is_explained_in_plain_words(page: Page):
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    page.get_by_label("Folder of a model").fill("./no-such-model")
    page.locator("#model-add").click()
    alert = page.locator("#models-problem [role=alert]")
    expect(alert).to_contain_text("could not be added")
    expect(alert).to_contain_text("no-such-model")
    expect(page.get_by_label("Folder of a model")).to_have_value("./no-such-model")
    expect(page.locator(".model-card")).to_have_count(4)


def test_the_focus_follows_a_merge_that_was_started(page: Page):
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    step(page, "merge")
    page.locator("#start").click()
    expect(page.locator(".job-card.verified")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#progress")).to_be_focused()


def test_what_cannot_be_merged_is_said_once(page: Page):
    open_figures(page)
    choose_method(page, "SLERP (base and 1 model)")
    expect(page.locator("#board .notice")).to_be_visible()
    step(page, "merge")
    expect(page.locator("#merge-summary [role=alert]")).to_be_visible(timeout=PATIENCE)
    page.locator("#start").click()
    page.wait_for_timeout(1000)
    expect(page.locator("#step-merge [role=alert]")).to_have_count(1)


def test_own_models_start_with_the_methods_settings(page: Page, large_pair: tuple[Path, Path]):
    choose_models(page, large_pair)
    page.get_by_label("Use ones as the base").check()
    expect(page.locator(".model-card.is-base")).to_contain_text("ones")
    step(page, "mix")
    expect(page.get_by_label("number input for Lambda")).to_have_value("1")


def test_the_merged_demo_is_verified_and_downloads_as_a_zip_that_loads(page: Page, tmp_path: Path):
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    step(page, "merge")
    expect(page.locator("#merge-summary")).to_contain_text("To write")
    page.get_by_label("Name of the result").fill("four skills")
    page.locator("#start").click()
    expect(page.locator(".job-card.verified")).to_contain_text("four skills", timeout=PATIENCE)
    expect(page.locator(".skills .merged")).to_contain_text("%")
    model = download(page, tmp_path)
    parent = load_file(REPOSITORY / "assets" / "demo" / "base" / "model.safetensors")
    merged = load_file(model / "model.safetensors")
    assert {name: tensor.shape for name, tensor in merged.items()} == {n: t.shape for n, t in parent.items()}
    assert "base_model_relation: merge" in (model / "README.md").read_text(encoding="utf-8")
    assert (model / "config.json").exists()


def test_reload_in_the_middle_of_a_merge_finds_it_again(page: Page, large_pair: tuple[Path, Path], tmp_path: Path):
    merge_large(page, large_pair, "average")
    page.reload()
    expect(page.locator(".job-card")).to_contain_text("average", timeout=PATIENCE)
    assert "job=" in page.url
    page.goto(page.url.partition("?")[0])
    expect(page.locator(".job-card")).to_contain_text("average", timeout=PATIENCE)
    expect(page.locator(".job-card.verified")).to_be_visible(timeout=2 * PATIENCE)
    merged = load_file(download(page, tmp_path) / "model.safetensors")
    assert len(merged) == PARTS
    assert all((tensor == 2).all() for tensor in merged.values())


def test_a_merge_can_be_cancelled_and_resumed(page: Page, large_pair: tuple[Path, Path]):
    merge_large(page, large_pair, "stopped")
    page.locator("#cancel").click()
    expect(page.locator(".job-card.cancelled")).to_contain_text("was cancelled", timeout=PATIENCE)
    expect(page.locator("#start")).to_be_enabled()
    page.locator("#resume").click()
    expect(page.locator(".job-card.verified")).to_be_visible(timeout=2 * PATIENCE)


def test_a_link_to_a_merge_shows_others_its_status_only(page: Page, open_page):
    expect(page.locator(".model-card")).to_have_count(4, timeout=PATIENCE)
    step(page, "merge")
    page.locator("#start").click()
    expect(page.locator(".job-card.verified")).to_be_visible(timeout=PATIENCE)
    expect(page).to_have_url(re.compile("job="))
    other = open_page(page.url)
    expect(other.locator(".job-card.verified")).to_be_visible(timeout=PATIENCE)
    expect(other.locator("#result")).to_contain_text("Only the browser that started this merge")
    expect(other.locator("a.download")).to_have_count(0)
