"""Every executor runs the same graphs with the same results: the shared suite of the protocol."""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Callable

import pytest

from merger import MethodError, Task, executors
from merger.executors import DeviceExecutor, Executor, InlineExecutor, ThreadExecutor
from merger.graph import ordered
from tests.engine.late_device import LateDevice

LOG: list[str] = []


class Constant(Task[int]):
    value: int
    label: str = "constants"
    rank: int = 0

    def execute(self, **values: object) -> int:
        LOG.append(f"constant {self.value}")
        return self.value

    def group_label(self) -> str:
        return self.label

    def priority(self) -> int:
        return self.rank


class Sum(Task[int]):
    left: Task[int]
    right: Task[int]

    def execute(self, left: int, right: int) -> int:
        LOG.append(f"sum {left} {right}")
        return left + right


class Keep(Task[None]):
    """Hands a value to the test, as a sink would."""

    source: Task[int]
    into: str

    def execute(self, source: int) -> None:
        LOG.append(f"keep {self.into}={source}")


class Failing(Task[int]):
    def execute(self) -> int:
        raise ValueError("this task fails")


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": InlineExecutor,
    "threads-1": lambda: ThreadExecutor(1),
    "threads-4": lambda: ThreadExecutor(4),
    "one device": lambda: DeviceExecutor([LateDevice()], 1),
    "three devices": lambda: DeviceExecutor([LateDevice(f"late:{number}") for number in range(3)], 4),
}


def test_every_executor_is_held_to_this_contract():
    for module in pkgutil.iter_modules(executors.__path__):
        importlib.import_module(f"{executors.__name__}.{module.name}")
    ours = {kind for kind in Executor.__subclasses__() if kind.__module__.startswith("merger.")}
    assert {type(make()) for make in EXECUTORS.values()} == ours


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest):
    LOG.clear()
    with EXECUTORS[request.param]() as made:
        yield made


def run(
    executor: Executor, roots: list[Task], expand=lambda task: None, stop: threading.Event | None = None
) -> list[Task]:
    steps = executor.run(
        roots, expand=expand, call=lambda task, values: task.execute(**values), stop=stop or threading.Event()
    )
    return [step.task for step in steps if step is not None]


def test_every_root_is_reported_once_with_the_right_value(executor):
    roots = [Keep(Sum(Constant(i), Constant(i + 1)), f"r{i}") for i in range(20)]
    assert set(run(executor, roots)) == set(roots)
    assert sorted(line for line in LOG if line.startswith("keep")) == sorted(
        f"keep r{i}={2 * i + 1}" for i in range(20)
    )


def test_equal_tasks_run_once(executor):
    shared = Sum(Constant(1), Constant(2))
    run(executor, [Keep(shared, "a"), Keep(Sum(Constant(1), Constant(2)), "b"), Keep(Sum(shared, Constant(2)), "c")])
    assert LOG.count("sum 1 2") == 1 and LOG.count("constant 2") == 1
    assert {"keep a=3", "keep b=3", "keep c=5"} <= set(LOG)


def test_a_value_is_dropped_after_its_last_use(executor):
    alive: set[int] = set()

    class Value:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    class Make(Task[Value]):
        number: int

        def execute(self) -> Value:
            return Value(self.number)

    class Look(Task[int]):
        value: Task[Value]

        def execute(self, value: Value) -> int:
            return len(alive)

    most = 0
    for step in executor.run(
        [Look(Make(i)) for i in range(200)],
        expand=lambda task: None,
        call=lambda task, values: task.execute(**values),
        stop=threading.Event(),
    ):
        most = max(most, len(alive))
        del step
    assert most <= 6 * executor.workers


def test_programs_receive_the_results_of_each_batch_in_order(executor):
    seen: list[list[int]] = []

    def program():
        first = yield [lambda i=i: i * i for i in range(10)]
        seen.append(first)
        second = yield [lambda: sum(first)]
        seen.append(second)

    root = Keep(Constant(0), "program")
    assert run(executor, [root], lambda task: program() if task == root else None) == [root]
    assert seen == [[i * i for i in range(10)], [285]]


def test_the_first_error_ends_the_run_and_stops_the_others(executor):
    stop = threading.Event()
    with pytest.raises(ValueError, match="this task fails"):
        run(executor, [Keep(Failing(), "never"), Keep(Constant(1), "maybe")], stop=stop)
    assert stop.is_set()


def test_closing_the_iterator_stops_running_work(executor):
    stop = threading.Event()

    def program():
        yield [lambda: stop.wait(0.01 if executor.workers == 1 else 30) for _ in range(8)]

    root = Keep(Constant(1), "slow")
    steps = executor.run(
        [root], expand=lambda task: program() if task == root else None, call=lambda t, v: t.execute(**v), stop=stop
    )
    next(steps)
    began = time.monotonic()
    steps.close()
    assert stop.is_set() and time.monotonic() - began < 5


def test_within_a_group_higher_priority_runs_earlier():
    LOG.clear()
    run(InlineExecutor(), [Constant(1, rank=0), Constant(2, rank=5), Constant(3, rank=2)])
    assert LOG == ["constant 2", "constant 3", "constant 1"]


def test_groups_stay_together_in_the_order_of_their_first_member():
    order = ordered([Constant(1, "b"), Constant(2, "a"), Constant(3, "b"), Constant(4, "a")])
    assert [task.value for task in order] == [1, 3, 2, 4]


def test_loads_stand_right_before_their_first_user():
    roots = [Sum(Constant(1), Constant(2)), Sum(Constant(3), Constant(4))]
    kinds = [type(task).__name__ for task in ordered(roots)]
    assert kinds == ["Constant", "Constant", "Sum", "Constant", "Constant", "Sum"]


def test_a_task_takes_the_greatest_label_among_its_arguments():
    assert Sum(Constant(1, "shard-1"), Constant(2, "shard-2")).group_label() == "shard-2"


def test_a_task_that_needs_itself_is_refused():
    class Loop(Task[int]):
        def arguments(self):
            return {"again": Loop()}

        def execute(self, again: int) -> int:
            return again

    with pytest.raises(MethodError, match="the task Loop depends on itself"):
        ordered([Loop()])


@pytest.mark.parametrize("arguments", [5, {"x": 5}, [Constant(1, "shard-1")]])
def test_arguments_that_are_no_tasks_are_refused(arguments):
    class Wrong(Task[int]):
        def arguments(self):
            return arguments

        def group_label(self):
            return None

        def execute(self) -> int:
            return 1

    with pytest.raises(MethodError, match="the arguments of the task Wrong must be tasks by name"):
        ordered([Wrong()])


def test_a_task_that_cannot_say_its_place_is_told_by_name():
    class Broken(Task[int]):
        def group_label(self):
            raise KeyError("shard")

        def execute(self) -> int:
            return 1

    with pytest.raises(MethodError, match=r"the task Broken failed in test_executors\.py, line .*KeyError: 'shard'"):
        ordered([Broken()])
