"""Choosing models: adding folders, finding the base, and saying whether they fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from components import models_panel, text
from components.demo_skills import family
from components.draft import Draft
from merger import UserError


def model(folder: Path, name: str, rows: int = 4, **config: object) -> str:
    """A folder with one small tensor and a config."""
    place = folder / name
    place.mkdir()
    save_file({"layers.0.mlp.weight": np.ones((rows, 4), np.float32)}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"architectures": ["Tiny"], **config}))
    return str(place)


def test_the_demo_is_shown_with_facts_roles_and_buttons():
    cards, report = models_panel.shown(family())
    assert cards.count("class='model-card") == 4
    assert cards.count("Remove ") == 4
    assert "262 K parameters" in cards
    assert cards.count("is-base") == 1
    assert text.FITS in report


def test_the_base_is_found_where_configs_tell(tmp_path):
    base = model(tmp_path, "origin")
    tuned = model(tmp_path, "tuned", _name_or_path="../origin")
    draft = models_panel.add_model(models_panel.add_model(Draft(), tuned), base)
    assert draft.models[draft.base] == base


def test_a_base_that_was_chosen_stays(tmp_path):
    tuned = model(tmp_path, "tuned", _name_or_path="../origin")
    draft = models_panel.add_model(Draft(), tuned).with_base(0)
    assert models_panel.add_model(draft, model(tmp_path, "origin")).base == 0


def test_the_demos_settings_do_not_stay_for_other_models(tmp_path):
    own = model(tmp_path, "own")
    assert models_panel.leaving_demo(models_panel.add_model)(family(), own).parameters == {}
    remove = models_panel.leaving_demo(Draft.without_model)
    left = remove(family(), 3)
    assert left.parameters == family().parameters
    for place in (2, 1, 0):
        left = remove(left, place)
    assert (left.models, left.parameters, left.per_model) == ((), {}, {})


@pytest.mark.parametrize("typed", ["", "   "])
def test_an_empty_field_is_said(typed):
    with pytest.raises(UserError, match="empty"):
        models_panel.add_model(Draft(), typed)


def test_a_folder_without_a_model_is_explained(tmp_path):
    with pytest.raises(UserError, match=tmp_path.name):
        models_panel.add_model(Draft(), str(tmp_path))


def test_models_that_do_not_fit_are_reported_in_words(tmp_path):
    draft = Draft((model(tmp_path, "small"), model(tmp_path, "large", rows=9)))
    _, report = models_panel.shown(draft)
    assert "class='error'" in report
    assert "9 x 4" in report
    assert text.FITS not in report


def test_a_model_that_went_away_is_explained_and_can_be_removed(tmp_path):
    cards, report = models_panel.shown(Draft((str(tmp_path / "gone"),)))
    assert "role='alert'" in report
    assert "Remove gone" in cards


def test_without_models_the_page_says_how_to_begin():
    cards, _ = models_panel.shown(Draft())
    assert "digits demo" in cards


def test_a_hostile_folder_name_stays_text(tmp_path):
    place = model(tmp_path, "<img src=x onerror=alert(1)>'\"")
    cards, report = models_panel.shown(Draft((place, model(tmp_path, "b", rows=9))))
    assert "<img" not in cards + report
    assert "aria-label='Remove &lt;img src=x onerror=alert(1)&gt;&#x27;&quot;'" in cards


def test_on_a_public_page_folders_of_the_machine_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/mixdesk")
    with pytest.raises(UserError, match="not open here"):
        models_panel.add_model(Draft(), str(tmp_path))
    assert "not open here" in models_panel.shown(Draft((str(tmp_path),)))[1]
    assert text.FITS in models_panel.shown(family())[1]


def test_a_model_that_fails_in_an_unforeseen_way_is_explained():
    cards, report = models_panel.shown(Draft(("a\0b",)))
    assert "role='alert'" in report
    assert "data-remove" in cards


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_pasted_path_may_be_quoted(tmp_path, quote):
    place = model(tmp_path, "one")
    assert models_panel.add_model(Draft(), f" {quote}{place}{quote} ").models == (place,)


def test_a_name_cannot_turn_the_words_after_it():
    assert Draft(("m/\u202eevil",)).names == ("evil",)
