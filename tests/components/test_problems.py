"""Failures in words: what happened, why, what to do."""

from __future__ import annotations

import pytest

from components import problems
from merger import CheckpointError, PlanError, Problem


def test_an_error_of_the_engine_says_why_and_what_to_do():
    (told,) = problems.explain(CheckpointError("holds no safetensors", where="/models/a", hint="convert it"), "No.")
    assert told.lines == ["No.", "/models/a: holds no safetensors.", "Convert it."]


def test_all_errors_of_a_plan_are_told_and_warnings_are_not():
    found = PlanError([Problem("one thing"), Problem("a hint", level="warning"), Problem("another thing")])
    assert [told.why for told in problems.explain(found, "No.")] == ["One thing.", "Another thing."]


@pytest.mark.parametrize("error", [MemoryError(), PermissionError("denied"), OSError(28, "No space left on device")])
def test_troubles_of_the_machine_have_their_own_words(error):
    (told,) = problems.explain(error, "No.")
    assert told.why
    assert told.todo
    assert type(error).__name__ in told.details


def test_a_mistake_of_ours_is_logged_and_admitted(caplog):
    (told,) = problems.explain(KeyError("lost"), "No.")
    assert "Mixdesk itself" in told.why
    assert "KeyError" in caplog.text


def test_nothing_in_a_card_is_markup():
    hostile = Problem("<img src=x onerror=alert(1)>", where="a<b>", hint="<script>")
    card = problems.alert([problems.of_problem(hostile, "No <b>.")])
    for markup in (card, problems.listed([hostile])):
        assert "&lt;img" in markup
        assert not any(tag in markup for tag in ("<img", "<script", "<b>"))
