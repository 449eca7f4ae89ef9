"""A method that describes itself wrongly is refused when it is registered, by its own and the parameter's name."""

from __future__ import annotations

from typing import Any

import pytest

from merger import ConfigParameterDef, MergeMethod, MethodError
from merger.methods import registry


def method_with(shared: Any = (), own: Any = (), **facts: Any) -> MergeMethod:
    class Described(MergeMethod):
        def name(self) -> str:
            return "described"

        def parameters(self) -> Any:
            return shared

        def tensor_parameters(self) -> Any:
            return own

        def make_task(self, **values: Any) -> Any:
            raise NotImplementedError

    for word, value in facts.items():
        setattr(Described, word, value)
    return Described()


def parameter(*args: Any, **kwargs: Any) -> list[ConfigParameterDef]:
    return [ConfigParameterDef(*args, **kwargs)]


@pytest.mark.parametrize(
    ("shared", "own", "message"),
    [
        ([], ["weight"], "the parameters of merge method 'described' must be a list of ConfigParameterDef"),
        ({"weight": float}, [], "the parameters of merge method 'described' must be a list of ConfigParameterDef"),
        (parameter(""), [], "'' cannot be the name of a parameter"),
        (parameter("two words"), [], "'two words' cannot be the name of a parameter"),
        (parameter(None), [], "None cannot be the name of a parameter"),
        (parameter("t", complex), [], "the parameter 't' is of the type <class 'complex'>; it must be float"),
        (parameter("t", "float"), [], "the parameter 't' is of the type 'float'; it must be float, int, bool or str"),
        (parameter("t", float, default_value="a"), [], "the default of 't' is 'a' but must be a finite number"),
        (parameter("t", int, default_value=0.5), [], "the default of 't' is 0.5 but must be a whole number"),
        (parameter("t", default_value=[1.0]), [], "the default of 't' is [1.0] but must be a finite number"),
        (parameter("t", default_value=2, maximum=1), [], "the default of 't' is 2 but must be at most 1"),
        (parameter("t", minimum=1, maximum=0), [], "the parameter 't' has a minimum above its maximum"),
        (parameter("t", minimum="low"), [], "the parameter 't' has bounds that are no bounds of numbers"),
        (parameter("t", bool, minimum=0), [], "the parameter 't' has bounds that are no bounds of numbers"),
        (parameter("t") * 2, [], "the parameter 't' is defined twice"),
        (parameter("t"), parameter("t"), "the parameter 't' is defined twice"),
    ],
)
def test_a_wrong_parameter_is_named(shared, own, message):
    with pytest.raises(MethodError) as caught:
        registry.register(method_with(shared, own))
    assert message in str(caught.value) and "'described'" in str(caught.value)
    assert "described" not in registry.names()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"base": True}, "'base' is True; it must be one of required, optional, reads_first, none"),
        ({"max_models": 0}, "it takes from 1 to 0 models"),
        ({"aliases": "short"}, "'aliases' is 'short'; it must be a tuple of names"),
        ({"name": lambda self: " padded"}, "' padded' cannot be the name of a merge method"),
        ({"name": lambda self: 1 / 0}, "the merge method Described failed in test_soundness.py, line .*Zero"),
        ({"name": lambda self: "ties"}, "a merge method named 'ties' exists already"),
        ({"aliases": ("task",)}, "a merge method named 'task' exists already"),
    ],
)
def test_other_facts_that_make_no_sense_are_refused(facts, message):
    with pytest.raises(MethodError, match=message):
        registry.register(method_with(**facts))
    assert "described" not in registry.names()


def test_defaults_that_are_whole_numbers_switches_and_texts_are_fine(request):
    shared = [
        *parameter("alpha", float, default_value=1),
        *parameter("steps", int, required=True),
        *parameter("fast", bool, default_value=False),
        *parameter("mode", str, default_value="rows"),
        *parameter("limit", float, minimum=0, maximum=0),
    ]
    registry.register(method_with(shared))
    request.addfinalizer(lambda: registry.unregister("described"))
    assert [definition.name for definition in registry.describe(registry.get("described")).parameters] == [
        "alpha", "steps", "fast", "mode", "limit"
    ]  # fmt: skip
