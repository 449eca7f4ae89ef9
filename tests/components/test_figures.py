"""Figures: numbers in, valid Plotly specifications and small messages out."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from components import figure_board, figures
from components.numbers import Numbers, Shape, Skills


def arrays_of(models: int, layers: int, roles: int) -> dict:
    """What a sample gives, with the value of each figure known."""
    generator = np.random.default_rng(0)
    return {
        "layers": [None, *range(layers)],
        "roles": [f"mlp.role_{role}" for role in range(roles)],
        "relative_delta": generator.uniform(0, 0.1, (models + 1, roles, layers + 1)),
        "sign_agreement": np.full(layers + 1, 0.6),
        "surviving_share": np.full(layers + 1, 0.9),
        "kept_share": np.full((models, layers + 1), 0.5),
        "cosine": np.eye(models) + 0.2 * (1 - np.eye(models)),
        "overall": {
            "relative_delta": np.full(models + 1, 0.05),
            "sign_agreement": 0.6,
            "surviving_share": 0.9,
            "kept_share": np.full(models, 0.5),
        },
    }


SKILLS = Skills(("normal", "rotated"), ("base", "a", "b"), np.array([[0.9, 0.1], [0.9, 0.8], [0.8, 0.2]]))


def board(models: int = 2, layers: int = 3, roles: int = 2, names: list[str] | None = None) -> tuple[Shape, Numbers]:
    arrays = arrays_of(models, layers, roles)
    shape = Shape.of(arrays, names or [f"model {place}" for place in range(models)], arrays["roles"], SKILLS)
    numbers = dataclasses.replace(Numbers.of(arrays, shape), accuracy=np.array([0.9, 0.7]), best=np.array([0.9, 0.8]))
    return shape, numbers


def drawn(shape: Shape, numbers: Numbers, theme: str) -> dict[str, go.Figure]:
    """Every card as the page's script puts it together."""
    moving, still = figures.arrays(shape, numbers), figures.structure(shape)[theme]
    made = {}
    for card in still["cards"]:
        arrays = moving[card["name"]]["data"]
        data = [trace | extra for trace, extra in zip(card["data"], arrays, strict=True)]
        made[card["name"]] = go.Figure({"data": data, "layout": card["layout"] | {"template": still["template"]}})
    return made


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plotly_accepts_every_figure(theme):
    assert list(drawn(*board(), theme)) == ["skill", "change", "agreement", "cosine", "kept"]


def test_figures_show_the_numbers():
    shape, numbers = board()
    made = drawn(shape, numbers, "light")
    assert made["change"].data[0].z == pytest.approx(np.round(numbers.change, 4))
    assert list(made["agreement"].data[0].y) == [0.6] * 4
    assert list(made["agreement"].data[1].y) == pytest.approx([0.4] * 4)
    assert list(made["kept"].data[1].y) == [0.5] * 4
    assert made["cosine"].data[0].z[0][1] == 0.2
    assert list(made["skill"].data[-2].y) == [0.9, 0.7]


def test_the_map_can_show_one_model():
    arrays = arrays_of(2, 3, 2)
    shape = Shape.of(arrays, ["a", "b"], arrays["roles"])
    assert np.array_equal(Numbers.of(arrays, shape, 1).change, arrays["relative_delta"][1])
    assert np.array_equal(Numbers.of(arrays, shape).change, arrays["relative_delta"][2])


def test_rows_stand_in_the_order_of_the_tensors():
    arrays = arrays_of(2, 3, 2)
    shape = Shape.of(arrays, ["a", "b"], ["mlp.role_1", "mlp.role_0", "mlp.role_1"])
    assert shape.roles == ("mlp.role_1", "mlp.role_0")
    assert np.array_equal(Numbers.of(arrays, shape, 0).change, arrays["relative_delta"][0][::-1])


def test_one_model_alone_has_no_agreement_and_no_cosine():
    shape, numbers = board(models=1)
    assert list(drawn(dataclasses.replace(shape, skills=Skills()), numbers, "dark")) == ["change", "kept"]


def test_names_cannot_become_markup():
    shape, numbers = board(names=["<a href='x:y'>", "b&b"])
    names = drawn(shape, numbers, "light")["cosine"].data[0].x
    assert names == ("&lt;a href='x:y'&gt;", "b&amp;b")


def test_long_names_are_cut_and_stay_different():
    shape, numbers = board(names=["x" * 40 + "1" + "y" * 40, "x" * 40 + "2" + "y" * 40])
    names = drawn(shape, numbers, "light")["kept"].data
    assert len({trace.name for trace in names}) == 2
    assert all(len(trace.name) < 35 for trace in names)


def test_many_layers_have_few_ticks_but_all_their_data():
    made = drawn(*board(layers=80), "light")
    assert len(made["change"].layout.xaxis.tickvals) <= 24
    assert len(made["change"].data[0].x) == 81


def test_a_move_of_a_large_model_is_under_ten_kilobytes():
    shape, numbers = board(models=3, layers=32, roles=11)
    message = figure_board.move_message(shape, numbers, "key", 1, final=False)
    assert len(message) < 10_000


def test_what_is_not_a_number_travels_as_null():
    shape, numbers = board()
    numbers.change[0, 0] = np.nan
    message = json.loads(figure_board.move_message(shape, numbers, "key", 1, final=True))
    assert message["figures"]["change"]["data"][0]["z"][0][0] is None


def test_numbers_of_nothing_are_said_in_words():
    shape, numbers = board()
    nothing = dataclasses.replace(
        numbers,
        change=np.zeros_like(numbers.change),
        total_change=0.0,
        agreement=np.full(4, np.nan),
        total_agreement=float("nan"),
        cosine=np.full((2, 2), np.nan),
        total_kept=float("nan"),
        accuracy=None,
    )
    figure = {name: card["sentence"] for name, card in figures.arrays(shape, nothing).items()}
    assert "Nothing moves" in figure["change"]
    assert "nothing is in conflict" in figure["agreement"]
    assert "Too few models differ" in figure["cosine"]
    assert "nothing to keep" in figure["kept"]
    assert "nan" not in " ".join(figure.values()).lower()


def test_values_that_overflow_are_not_called_unchanged():
    shape, _ = board()
    arrays = arrays_of(2, 3, 2)
    arrays["relative_delta"][:] = np.nan
    numbers = Numbers.of(arrays, shape)
    assert "cannot be measured" in figures.arrays(shape, numbers)["change"]["sentence"]
    message = json.loads(figure_board.move_message(shape, numbers, "key", 1, final=True))
    assert message["strip"]["change"] == "–"


def test_full_agreement_is_not_called_a_conflict():
    shape, numbers = board()
    calm = dataclasses.replace(numbers, agreement=np.ones(4), total_agreement=1.0)
    assert "Nothing is in conflict" in figures.arrays(shape, calm)["agreement"]["sentence"]


def test_without_a_base_the_sentences_name_what_changes_are_measured_from():
    shape, numbers = board()
    named = dataclasses.replace(shape, origin="model 7")
    assert "of the size of model 7" in figures.arrays(named, numbers)["change"]["sentence"]
    still = dataclasses.replace(numbers, total_change=0.00001)
    assert "the very values of model 7" in figures.arrays(named, still)["change"]["sentence"]


def test_hovering_says_where_in_words():
    shape, numbers = board()
    change = drawn(shape, numbers, "light")["change"].data[0]
    assert list(change.customdata[0]) == ["outside the layers", "layer 0", "layer 1", "layer 2"]


def test_the_page_is_told_whose_change_the_map_shows():
    shape, numbers = board()
    message = json.loads(figure_board.move_message(shape, numbers, "key", 1, final=False, chosen="1"))
    assert message["chosen"] == "1"


def test_sentences_follow_the_numbers():
    shape, numbers = board()
    sentences = {name: card["sentence"] for name, card in figures.arrays(shape, numbers).items()}
    assert "80% of all digits" in sentences["skill"]
    assert "5.0%" in sentences["change"]
    assert "60% of cases" in sentences["agreement"]
    assert "50% of all changes stay" in sentences["kept"]
    assert "0.20" in sentences["cosine"]
