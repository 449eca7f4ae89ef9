"""Which value a parameter has for one tensor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merger.errors import RecipeError
from merger.recipe import Filtered
from merger.settings import MISSING, coerce, interpolate, relative_depth, resolve, value_of
from merger.types import ConfigParameterDef

NAME = "model.layers.3.mlp.up_proj.weight"
FOR_MLP = (Filtered("mlp", 0.5),)
FOR_ATTENTION = (Filtered("self_attn", 0.25),)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9),
    st.integers(1, 100).flatmap(lambda layers: st.tuples(st.integers(0, layers - 1), st.just(layers))),
)
def test_gradients_are_interpolated_linearly_over_the_layers(gradient: list[float], place: tuple[int, int]) -> None:
    layer, layers = place
    position = layer / (layers - 1) if layers > 1 else 1.0
    expected = np.interp(position, np.linspace(0, 1, len(gradient)), gradient) if len(gradient) > 1 else gradient[0]
    assert interpolate(gradient, relative_depth(layer, layers)) == pytest.approx(expected, rel=1e-9, abs=1e-7)


def test_ends_of_a_gradient_are_exact() -> None:
    assert [interpolate([0.1, 0.7, 0.3], position) for position in (0, 0.5, 1)] == [0.1, 0.7, 0.3]


@pytest.mark.parametrize(("layer", "layers", "depth"), [(0, 5, 0), (1, 5, 0.25), (4, 5, 1), (0, 1, 1), (None, 5, 0)])
def test_relative_depth(layer: int | None, layers: int, depth: float) -> None:
    assert relative_depth(layer, layers) == depth


@pytest.mark.parametrize(
    ("levels", "value"),
    [
        ([{"weight": 1}, {"weight": 2}], 1),
        ([{}, {"weight": 2}], 2),
        ([{"other": 1}, {}], MISSING),
        ([{"weight": FOR_MLP}, {"weight": 2}], 0.5),
        ([{"weight": FOR_ATTENTION}, {"weight": 2}], 2),
        ([{"weight": FOR_ATTENTION}], MISSING),
        ([{"weight": FOR_ATTENTION}, {"weight": FOR_MLP}, {"weight": 3}], 0.5),
        ([{"weight": (Filtered("mlp", 1), Filtered("up_proj", 2))}], 1),
        ([{"weight": (Filtered("self_attn", 1), Filtered(None, 2))}, {"weight": 3}], 2),
        ([{"weight": (Filtered("*", 1), Filtered("mlp", 2))}], 1),
        ([{"weight": (Filtered("mlp", (0.0, 1.0)),)}], 0.25),
        ([{"weight": (0.0, 4.0)}], 1.0),
        ([{"weight": False}, {"weight": True}], False),
        ([{"weight": 0}, {"weight": 1}], 0),
    ],
)
def test_the_first_level_that_applies_decides(levels: list, value: object) -> None:
    assert resolve(levels, "weight", NAME, 0.25) == value


FLOAT = ConfigParameterDef("density", float, minimum=0, maximum=1)
INT = ConfigParameterDef("max_iter", int, default_value=10, minimum=1)
BOOL = ConfigParameterDef("normalize", bool, default_value=True)
TEXT = ConfigParameterDef("mode", str)


@pytest.mark.parametrize(
    ("definition", "value", "meant"),
    [
        (FLOAT, 1, 1.0),
        (FLOAT, "0.5", 0.5),
        (INT, 3, 3),
        (INT, 3.0, 3),
        (BOOL, True, True),
        (BOOL, 1.0, True),
        (BOOL, 0, False),
        (TEXT, "x", "x"),
    ],
)
def test_values_take_the_type_that_the_method_declares(definition: ConfigParameterDef, value, meant: object) -> None:
    found = coerce(value, definition)
    assert found == meant
    assert type(found) is type(meant)


@pytest.mark.parametrize(
    ("definition", "value", "words"),
    [
        (FLOAT, True, "density is true but must be a finite number."),
        (FLOAT, "true", "density is 'true' but must be a finite number."),
        (FLOAT, "nan", "density is nan but must be a finite number."),
        (FLOAT, 1.5, "density is 1.5 but must lie between 0 and 1."),
        (FLOAT, -1, "density is -1 but must lie between 0 and 1."),
        (INT, 0.5, "max_iter is 0.5 but must be a whole number."),
        (INT, 0, "max_iter is 0 but must be at least 1."),
        (INT, True, "max_iter is true but must be a whole number."),
        (BOOL, 0.5, "normalize is 0.5 but must be true or false."),
        (BOOL, "maybe", "normalize is 'maybe' but must be true or false."),
    ],
)
def test_values_of_another_type_are_refused(definition: ConfigParameterDef, value, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        coerce(value, definition)
    assert str(caught.value) == words


def test_a_parameter_without_a_value_has_its_default_or_is_missing() -> None:
    assert value_of(INT, [{}], NAME, 0) == 10
    assert value_of(INT, [{"max_iter": 3.0}], NAME, 0) == 3
    assert value_of(ConfigParameterDef("weight", float, required=True), [{"weight": FOR_ATTENTION}], NAME, 0) is MISSING
