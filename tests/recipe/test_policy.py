"""What visitors of an installation may do."""

import pytest

from merger.policy import Policy
from merger.types import ModelReference


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
