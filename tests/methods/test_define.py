"""A function's signature is the method's specification."""

from __future__ import annotations

import re
from typing import Annotated, Any, List, Optional  # noqa: UP035  (people write both spellings)

import pytest
import torch
from torch import Tensor

from merger import (
    Between,
    ConfigParameterDef,
    MethodError,
    ModelReference,
    Noise,
    WeightInfo,
    merge_method,
)
from merger.methods import registry
from merger.methods.define import DecoratedMethod
from merger.types import Fold, TensorContext
from tests.methods.driver import BASE, run


@pytest.fixture(autouse=True)
def forget_new_methods():
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        registry.unregister(name)


def define(function, name: str = "test_method", **options: Any) -> DecoratedMethod:
    return merge_method(name=name, **options)(function)


def refusal(function) -> str:
    with pytest.raises(MethodError) as caught:
        define(function)
    return str(caught.value)


# Parameters


def test_arguments_become_parameters():
    def mix(
        tensors: List[Tensor],  # noqa: UP006
        weight: List[float],  # noqa: UP006
        rank: list[int],
        gain: float,
        steps: int = 3,
        normalize: bool = True,
        lambda_: float = 1,
    ) -> Tensor:
        """Mixes tensors. More words.

        Args:
            weight: Share of this model,
                in any unit.
            lambda_ (float): Strength.
        """
        return tensors[0]

    method = define(mix)
    assert method.tensor_parameters() == [
        ConfigParameterDef("weight", float, required=True, help="Share of this model, in any unit."),
        ConfigParameterDef("rank", int, required=True),
    ]
    assert method.parameters() == [
        ConfigParameterDef("gain", float, required=True),
        ConfigParameterDef("steps", int, default_value=3),
        ConfigParameterDef("normalize", bool, default_value=True),
        ConfigParameterDef("lambda", float, default_value=1.0, help="Strength."),
    ]
    assert method.summary == "Mixes tensors."
    assert method.base == "reads_first"


def test_bounds_stand_around_a_number_or_a_list():
    def mix(
        tensors: list[Tensor],
        density: Annotated[list[float], Between(0, 1)],
        epsilon: list[Annotated[float, Between(0)]],
        t: Annotated[float, Between(0, 1)] = 0.5,
    ) -> Tensor:
        return tensors[0]

    method = define(mix)
    bounds = {d.name: (d.minimum, d.maximum) for d in (*method.parameters(), *method.tensor_parameters())}
    assert bounds == {"t": (0, 1), "density": (0, 1), "epsilon": (0, None)}


@pytest.mark.parametrize(
    ("annotation", "default", "base"),
    [
        (Tensor, None, "optional"),
        (Tensor | None, ..., "optional"),
        (Optional[Tensor], ..., "optional"),  # noqa: UP045
        ("Optional[Tensor]", ..., "optional"),
        (torch.Tensor, ..., "required"),
        ("torch.Tensor", ..., "required"),
    ],
)
def test_base_tensor_says_whether_a_base_is_needed(annotation, default, base):
    def mix(tensors, base_tensor):
        return tensors[0]

    mix.__annotations__ = {"tensors": "List[torch.Tensor]", "base_tensor": annotation}
    mix.__defaults__ = None if default is ... else (default,)
    assert define(mix).base == base


def test_a_default_of_a_list_is_what_every_model_gets():
    def mix(tensors: list[Tensor], weight: list[float] = 0.5) -> Tensor:
        return sum(tensor * w for tensor, w in zip(tensors, weight, strict=True))

    assert run(define(mix), [torch.ones(2), torch.ones(2)]).tolist() == [1.0, 1.0]


def test_parameters_arrive_as_plain_python_numbers():
    seen: dict[str, Any] = {}

    def mix(tensors: list[Tensor], weight: list[float], gain: float, steps: int = 3, normalize: bool = True) -> Tensor:
        seen.update(weight=weight, gain=gain, steps=steps, normalize=normalize)
        return tensors[0]

    run(define(mix), [torch.ones(2), torch.ones(2)], weight=[1, 2.5], parameters={"gain": 2, "steps": 4.0})
    assert seen == {"weight": [1.0, 2.5], "gain": 2.0, "steps": 4, "normalize": True}
    assert [type(value) for value in (*seen["weight"], seen["gain"], seen["steps"])] == [float, float, float, int]


def test_a_missing_value_is_named():
    def mix(tensors: list[Tensor], weight: list[float]) -> Tensor:
        return tensors[0]

    with pytest.raises(MethodError, match="'test_method' has no usable value for 'weight'"):
        run(define(mix), [torch.ones(2)])


# What is filled in by name


def test_special_arguments_are_filled_in():
    seen: dict[str, Any] = {}

    def mix(
        tensors: list[Tensor],
        base_tensor: Tensor,
        output_weight: WeightInfo,
        base_model: ModelReference | None,
        noise: Noise,
        measured,
    ) -> Tensor:
        seen.update(output_weight=output_weight, base_model=base_model, numbers=noise.uniform(0), measured=measured)
        return tensors[0] + base_tensor

    class Sum:
        def start(self) -> float:
            return 0.0

        def add(self, state: float, block: Any) -> float:
            return state + float(block.base.sum())

        def join(self, left: float, right: float) -> float:
            return left + right

        def finish(self, state: float) -> float:
            return state

    def measure(context: TensorContext) -> Fold:
        return Sum()

    method = define(mix, measure=measure, split="elements")
    result = run(method, [torch.ones(3)], torch.tensor([1.0, 2.0, 3.0]), name="head.weight", block=1 << 18)
    assert result.tolist() == [2.0, 3.0, 4.0]
    assert seen["output_weight"].name == "head.weight" and seen["base_model"] == BASE
    assert seen["measured"] == 6.0 and seen["numbers"].shape == (3,)


def test_the_base_is_the_first_tensor_of_a_function_that_does_not_ask_for_it():
    def mix(tensors: list[Tensor], base_model: Optional[ModelReference] = None) -> Tensor:  # noqa: UP045
        assert base_model == BASE and len(tensors) == 2
        return tensors[0] * 10 + tensors[1]

    method = define(mix)
    assert run(method, [torch.tensor([2.0])], torch.tensor([1.0])).tolist() == [12.0]


def test_an_optional_base_may_be_missing():
    def mix(tensors: list[Tensor], base_tensor: Tensor | None) -> Tensor:
        return tensors[0] if base_tensor is None else tensors[0] - base_tensor

    method = define(mix)
    assert run(method, [torch.tensor([2.0])]).tolist() == [2.0]
    assert run(method, [torch.tensor([2.0])], torch.tensor([0.5])).tolist() == [1.5]


def test_a_plain_function_works_on_whole_tensors():
    def center(tensors: list[Tensor]) -> Tensor:
        return tensors[0] - tensors[0].mean(dim=0)

    tensor = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run(define(center), [tensor], block=64), tensor - tensor.mean(dim=0))


def test_the_method_can_be_called_as_the_function_it_is():
    def double(tensors: list[Tensor]) -> Tensor:
        """Doubles."""
        return tensors[0] * 2

    method = define(double)
    assert method([torch.ones(1)]).tolist() == [2.0]
    assert method.__name__ == "double" and method.__doc__ == "Doubles."


def test_a_result_of_another_shape_is_refused_naming_method_and_tensor():
    def shrink(tensors: list[Tensor]) -> Tensor:
        return tensors[0].sum()

    def forget(tensors: list[Tensor]) -> Tensor:
        pass

    with pytest.raises(MethodError, match=r"head: merge method 'shrink' returned shape \[\] instead of shape \[3\]"):
        run(define(shrink, "shrink"), [torch.ones(3)], name="head")
    with pytest.raises(MethodError, match="'forget' returned NoneType"):
        run(define(forget, "forget"), [torch.ones(3)])


@pytest.mark.parametrize(
    "error", [IndexError("no such row"), SystemExit(3), GeneratorExit(), StopIteration(), OSError(5)]
)
def test_whatever_a_function_raises_is_told_with_method_tensor_and_line(error):
    def stumble(tensors: list[Tensor]) -> Tensor:
        raise error

    with pytest.raises(MethodError) as caught:
        run(define(stumble, "stumble"), [torch.ones(3)], name="head")
    (problem,) = caught.value.problems
    assert problem.where == "head"
    assert problem.message.startswith("merge method 'stumble' failed in test_define.py, line ")
    assert type(error).__name__ in problem.message


def test_an_exception_that_cannot_be_shown_is_told_by_its_kind():
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    def stumble(tensors: list[Tensor]) -> Tensor:
        raise Silent

    with pytest.raises(MethodError, match=r": Silent\.$"):
        run(define(stumble, "stumble"), [torch.ones(3)])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.ones(3) + 1j, r"complex numbers \(complex64\)"),
        (torch.arange(3), r"whole numbers \(int64\)"),
        (torch.ones(3) > 0, r"whole numbers \(bool\)"),
        (torch.ones(3).to_sparse(), "a tensor without plain elements"),
        (torch.ones(3, device="meta"), "a tensor without plain elements"),
    ],
)
def test_a_result_that_cannot_be_written_is_refused(value, shown):
    def strange(tensors: list[Tensor]) -> Tensor:
        return value

    with pytest.raises(MethodError, match=f"'strange' returned {shown}"):
        run(define(strange, "strange"), [torch.ones(3)])


# Refusals


def test_helpers_that_are_none_are_refused_when_the_function_is_defined():
    def first(tensors: list[Tensor]) -> Tensor:
        return tensors[0]

    with pytest.raises(MethodError, match=r"is 'columns'\. Known: elements, rows"):
        define(first, "helped", split="columns")
    for word in ("measure", "check", "copies"):
        with pytest.raises(MethodError, match=f"'{word}' of merge method 'helped' must be a function, not 5"):
            define(first, "helped", **{word: 5})
    with pytest.raises(MethodError, match="'split' of merge method 'helped' is 'columns'"):
        run(define(first, "helped", split=lambda context: "columns"), [torch.ones(3)])


def test_what_is_not_understood_is_refused_by_name():
    def no_tensors(models: list[Tensor]) -> Tensor: ...
    def strange(tensors: list[Tensor], colour: complex) -> Tensor: ...
    def bare(tensors: list[Tensor], weight) -> Tensor: ...
    def bare_tensors(tensors, weight: list[float]) -> Tensor: ...
    def bools(tensors: list[Tensor], flags: list[bool]) -> Tensor: ...
    def listed(tensors: list[Tensor], weight: list[float] = [1.0]) -> Tensor: ...  # noqa: B006
    def truth(tensors: list[Tensor], weight: float = True) -> Tensor: ...
    def outside(tensors: list[Tensor], t: Annotated[float, Between(0, 1)] = 2.0) -> Tensor: ...
    def starred(tensors: list[Tensor], *others: float) -> Tensor: ...
    def positional(tensors: list[Tensor], t: float, /) -> Tensor: ...
    def one(tensors: Tensor) -> Tensor: ...
    def base(tensors: list[Tensor], base_tensor: float) -> Tensor: ...
    def weight_info(tensors: list[Tensor], output_weight: str) -> Tensor: ...
    def twice(tensors: list[Tensor], t: float, t_: float) -> Tensor: ...
    def unresolved(tensors: list[Tensor], t: Nowhere) -> Tensor: ...  # noqa: F821

    expected = {
        no_tensors: "'tensors' is missing",
        strange: "'colour' is annotated complex, which is not understood",
        bare: "'weight' has no annotation. Parameters are",
        bare_tensors: r"'tensors' has no annotation. It must be List\[Tensor\]",
        bools: "'flags' is annotated list\\[bool\\]",
        listed: "'weight' has the default \\[1.0\\].*single number",
        truth: "'weight' has the default True",
        outside: "'t' has the default 2.0, which is out of its own bounds",
        starred: "'others' cannot be given by name",
        positional: "cannot be given by name",
        one: "'tensors' is annotated Tensor",
        base: "'base_tensor' is annotated float",
        weight_info: "'output_weight' is annotated str",
        twice: "'t_' has the name 't' in recipes",
        unresolved: "'t' has an annotation that means nothing here.*Nowhere",
    }
    for function, pattern in expected.items():
        with pytest.raises(MethodError, match=pattern):
            define(function)
    assert "test_method" not in registry.names()


@pytest.mark.parametrize(("result", "shown"), [("float", "float"), ("list[Tensor]", "list"), ("None", "NoneType")])
def test_a_result_that_is_announced_as_something_else_is_refused_when_the_function_is_defined(result, shown):
    def strange(tensors: list[Tensor]): ...

    strange.__annotations__["return"] = result
    with pytest.raises(MethodError, match=f"merge method 'test_method': the result is annotated {shown}"):
        define(strange)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"min_models": 0}, "it takes from 0 to None models"),
        ({"min_models": 3, "max_models": 2}, "it takes from 3 to 2 models"),
        ({"aliases": "mine"}, "'aliases' is 'mine'; it must be a tuple of names"),
        ({"preview": "always"}, "'preview' is 'always'; it must be one of sample, gram, exact"),
        ({"base": "maybe"}, "'base' is 'maybe'; it must be one of required, optional, reads_first, none"),
    ],
)
def test_facts_that_make_no_sense_are_refused_when_the_function_is_defined(keys, message):
    def first(tensors: list[Tensor]) -> Tensor:
        return tensors[0]

    with pytest.raises(MethodError, match=re.escape(f"merge method 'told': {message}")):
        define(first, "told", **keys)
    assert "told" not in registry.names()


def test_a_default_that_is_not_finite_is_refused():
    def mix(tensors: list[Tensor], t: float = float("nan")) -> Tensor:
        return tensors[0]

    with pytest.raises(MethodError, match="merge method 'mix': the default of 't' is nan but must be a finite number"):
        define(mix, "mix")


def test_the_refusal_says_which_method():
    def strange(tensors: list[Tensor], colour: complex) -> Tensor: ...

    assert refusal(strange).startswith("merge method 'test_method': the argument 'colour'")


def test_a_name_can_be_taken_only_once():
    def mix(tensors: list[Tensor]) -> Tensor:
        return tensors[0]

    define(mix, "mine", aliases=("my_own",))
    for taken in ("mine", "my_own", "ties", "task"):
        with pytest.raises(MethodError, match=f"'{taken}' exists already"):
            define(mix, taken)
