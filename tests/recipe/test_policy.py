"""What visitors of an installation may do."""

import pytest

import merger
from merger import ModelReference, Policy, Recipe


def allows(policy: Policy, text: str) -> bool:
    return policy.allows(ModelReference.parse(text))


def test_people_on_their_own_machine_may_read_any_folder() -> None:
    policy = Policy.default()
    assert all(allows(policy, name) for name in ("/etc/model", "org/name", "../model"))
    assert policy.plugins
    assert policy.max_models is None


@pytest.mark.parametrize("name", ["org/name", "gpt2", "org/name@main", "org/name+other/adapter"])
def test_visitors_may_name_models_of_the_hub(name: str) -> None:
    assert allows(Policy.hosted(), name)


@pytest.mark.parametrize(
    "name", ["/etc", "~/model", "../up", "org/../../etc", "a/b/c", "org/name+/etc/x", "C:\\m", "./m"]
)
def test_visitors_see_nothing_of_the_machine(name: str) -> None:
    assert not allows(Policy.hosted(), name)


def test_visitors_may_read_the_folders_that_are_offered(tmp_path, monkeypatch) -> None:
    (tmp_path / "demo" / "base").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "demo" / "way-out").symlink_to(tmp_path / "secret")
    policy = Policy.hosted([tmp_path / "demo"])
    assert allows(policy, str(tmp_path / "demo" / "base"))
    assert not allows(policy, str(tmp_path / "demo" / ".." / "secret"))
    assert not allows(policy, str(tmp_path / "demo" / "way-out"))
    monkeypatch.chdir(tmp_path)
    assert allows(policy, "demo/base")
    assert not allows(policy, "demo/way-out")
    assert not allows(policy, "secret")


def test_a_public_page_opens_no_pickles_and_no_plugins_and_has_limits() -> None:
    policy = Policy.hosted()
    assert not (policy.pickle or policy.plugins or policy.local_paths)
    assert None not in (policy.max_models, policy.max_output_bytes, policy.max_scratch_bytes, policy.max_tensors)


def test_every_door_of_the_engine_asks_the_policy(tiny_family, tmp_path) -> None:
    policy = Policy.hosted([tiny_family.base])
    outside = Recipe.build("linear", [(str(tiny_family.experts[0]), {"weight": 1})])
    doors = {
        "inspect": lambda: merger.inspect(tiny_family.experts[0], policy=policy),
        "plan": lambda: merger.make_plan(outside, policy=policy),
        "merge": lambda: list(merger.merge(outside, tmp_path / "out", policy=policy)),
        "merge_in_memory": lambda: merger.merge_in_memory(outside, policy=policy),
        "sample": lambda: merger.take_sample(outside, policy=policy),
    }
    for door in doors.values():
        with pytest.raises(merger.UserError, match="not open here"):
            door()
    assert merger.inspect(tiny_family.base, policy=policy).models
    assert not (tmp_path / "out").exists()


def test_results_that_are_too_large_are_refused_in_the_plan(tiny_family) -> None:
    recipe = Recipe.build("linear", [(str(tiny_family.base), {"weight": 1})])
    small = Policy(max_output_bytes=1000, max_tensors=3)
    messages = [problem.message for problem in merger.make_plan(recipe, policy=small).errors]
    assert len(messages) == 2 and "tensors" in messages[0] and "GB" in messages[1]
