"""What planning costs: work and memory grow with the number of tensors, and not with their size."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import merger
from merger import api, parameters
from merger.graph import Task, ordered
from merger.methods import registry
from merger.plan import Plan
from merger.recipe import Recipe
from merger.types import ImmutableMap
from tests.methods.driver import make_task

LINES = [{"filter": "q_proj", "value": [0.1, 0.5]}, {"filter": "experts.1.", "value": 0.4}, {"value": [0.5, 0.2, 0.9]}]


def write_model(folder: Path, layers: int, experts: int, shape: tuple[int, int]) -> Path:
    """A mixture of experts of which only the header is really on the disk."""
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    for layer in range(layers):
        names += [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkvo"]
        names += [
            f"model.layers.{layer}.mlp.experts.{expert}.w{part}.weight"
            for expert in range(experts)
            for part in (1, 2, 3)
        ]
    size = 2 * shape[0] * shape[1]
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size * len(names))
    return folder


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Folders of four models by layers, experts and shape, made once."""
    root = tmp_path_factory.mktemp("families")

    def family(layers: int, experts: int, shape: tuple[int, int] = (64, 64)) -> list[Path]:
        places = [root / f"{layers}-{experts}-{shape}" / str(model) for model in range(4)]
        return [place if place.exists() else write_model(place, layers, experts, shape) for place in places]

    return family


def recipe(method: str, models: list[Path]) -> Recipe:
    base, *tuned = map(str, models)
    if method == "slerp":
        return Recipe.build("slerp", tuned[:1], base=base, parameters={"t": LINES})
    own = {"weight": LINES} if method == "linear" else {"weight": LINES, "density": [0.3, 0.9]}
    return Recipe.build(method, [(model, own) for model in tuned], base=None if method == "linear" else base)


def planned(method: str, models: list[Path]) -> Plan:
    plan = merger.make_plan(recipe(method, models))
    plan.close()
    assert not plan.errors
    return plan


def calls(work, *arguments) -> int:
    """Calls of Python functions during some work, which is done once before: nothing is made for the first time."""
    count = 0

    def seen(frame, event, argument) -> None:
        nonlocal count
        count += event == "call"

    work(*arguments)
    sys.setprofile(seen)
    try:
        work(*arguments)
    finally:
        sys.setprofile(None)
    return count


METHODS = ["linear", "ties", "slerp"]
every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_parameters_are_resolved_once_for_each_layer_and_filter(families, monkeypatch, method):
    resolved: list[str] = []

    def counting(definition, levels, name, depth):
        resolved.append(name)
        return value_of(definition, levels, name, depth)

    value_of = parameters.value_of
    monkeypatch.setattr(parameters, "value_of", counting)
    few, many = families(3, 4), families(3, 16)
    assert len(planned(method, few).outputs) == 3 + 3 * 16 and len(planned(method, many).outputs) == 3 + 3 * 52
    del resolved[:]
    planned(method, few)
    for_few = len(resolved)
    planned(method, many)
    assert for_few == len(resolved) - for_few
    assert len(set(resolved)) == 3 * 3  # layers times lines; what is outside of them stands at the first layer's depth


@every_method
def test_twice_the_tensors_are_at_most_twice_the_work(families, method):
    once, twice = (calls(planned, method, families(8, experts)) for experts in (10, 20))
    assert twice <= 2 * once


@every_method
def test_the_size_of_tensors_does_not_matter(families, method):
    small, large = families(4, 8, (2, 2)), families(4, 8, (1 << 16, 1 << 14))
    assert calls(planned, method, small) == calls(planned, method, large)
    plan = planned(method, large)
    assert plan.bytes_out > 1 << 37
    assert sum(checkpoint.bytes_read for checkpoint in plan.checkpoints.values()) == 0


def test_memory_grows_with_the_number_of_tensors_and_not_faster(families):
    def peak(models: list[Path]) -> float:
        tracemalloc.start()
        count = len(planned("ties", models).outputs)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / count

    planned("ties", families(2, 4))
    few, many = peak(families(8, 10)), peak(families(8, 40))
    assert many < 1.1 * few
    assert many < 8192  # bytes for each output tensor and its four inputs


@every_method
def test_tensors_that_are_treated_alike_share_their_parameters(families, method):
    plan = planned(method, families(3, 16))
    assert len({id(output.parameters) for output in plan.outputs}) <= 9
    assert len({id(output.tensor_parameters) for output in plan.outputs}) <= 9


def test_sharing_does_not_mix_up_what_a_recipe_tells_apart(families):
    models = families(3, 16)
    weights = {
        output.weight.name: [values["weight"] for values in output.tensor_parameters.values()]
        for output in planned("linear", models).outputs
    }
    for layer, (query, other) in enumerate([(0.1, 0.5), (0.3, 0.2), (0.5, 0.9)]):
        prefix = f"model.layers.{layer}"
        assert weights[f"{prefix}.self_attn.q_proj.weight"] == pytest.approx([query] * 3)
        assert weights[f"{prefix}.self_attn.k_proj.weight"] == pytest.approx([other] * 3)
        assert weights[f"{prefix}.mlp.experts.1.w2.weight"] == pytest.approx([0.4] * 3)
        assert weights[f"{prefix}.mlp.experts.15.w2.weight"] == pytest.approx([other] * 3)
    assert weights["lm_head.weight"] == pytest.approx([0.5] * 3)


def test_a_value_that_is_missing_is_told_for_every_tensor_that_lacks_it(families):
    models = [(str(model), {"weight": [{"filter": "experts", "value": 1.0}]}) for model in families(3, 16)[:2]]
    plan = merger.make_plan(Recipe.build("linear", models))
    plan.close()
    assert len(plan.errors) == 2
    assert all("no value for 'weight' that applies (and 14 more tensors). Add 'weight'" in str(e) for e in plan.errors)


def test_tasks_are_ordered_in_as_many_steps_as_there_are_tensors(families):
    few = [output.task for output in planned("ties", families(8, 10)).outputs]
    many = [output.task for output in planned("ties", families(8, 20)).outputs]
    assert calls(ordered, many) <= 2 * calls(ordered, few)


def test_a_task_computes_its_hash_once():
    asked: list[str] = []

    class Name(str):
        def __hash__(self) -> int:
            asked.append(self)
            return super().__hash__()

    class Named(Task[int]):
        name: Name

        def execute(self) -> int:
            return 1

    first, second = Named(name=Name("a")), Named(name=Name("a"))
    assert len({first, second, first}) == 1 and hash(first) == hash(second)
    assert asked == ["a", "a"]


class Weighted(Task[float]):
    name: str
    values: ImmutableMap[str, float]

    def execute(self) -> float:
        return 0.0


def test_a_hash_does_not_travel_to_another_process():
    """Hashes of texts differ from process to process, and equal tasks must be equal there too."""
    task = Weighted(name="a", values=ImmutableMap({"weight": 1.0}))
    hash(task)
    code = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.engine.test_planning import ImmutableMap, Weighted\n"
        "task = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "assert task in {Weighted(name='a', values=ImmutableMap({'weight': 1.0}))}"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, str(root), pickle.dumps(task).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_collector_is_as_it_was_after_planning_and_after_a_failure(families, tmp_path):
    assert gc.isenabled()
    planned("linear", families(2, 4))
    with pytest.raises(merger.CheckpointError):
        api.make_plan(Recipe.build("linear", [(str(tmp_path / "absent"), {"weight": 1})]))
    assert gc.isenabled()
    gc.disable()
    try:
        planned("linear", families(2, 4))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_equal_values_of_other_types_are_not_mixed_up():
    ties = registry.get("ties")
    whole, switch = (
        make_task(ties, shape=(2,), models=1, base=True, parameters={}, per_model={"weight": [weight]})
        for weight in (1, True)
    )
    assert [type(values["weight"]) for values in whole.context().tensor_parameters] == [float]
    assert [type(values["weight"]) for values in switch.context().tensor_parameters] == [bool]


def test_sizes_are_added_up_once(families):
    plan = planned("linear", families(3, 4))
    assert plan.bytes_out == sum(output.nbytes for output in plan.outputs)
    assert plan.bytes_in == 3 * plan.bytes_out
    assert calls(lambda: (plan.bytes_in, plan.bytes_out)) < len(plan.outputs)
