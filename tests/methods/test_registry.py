"""Finding merge methods by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import merger
from merger.errors import MethodError
from merger.methods import registry

PACKAGE = Path(merger.__file__).parent
BUILT_IN = {
    "linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties", "della", "della_linear", "passthrough"
}  # fmt: skip
PLUGIN = '''
from torch import Tensor
from merger import merge_method

@merge_method(name="{name}")
def first(tensors: list[Tensor], weight: list[float] = 1.0) -> Tensor:
    """Takes the first."""
    return tensors[0]
'''
CLASS_PLUGIN = """
from merger import MergeMethod

class Unfinished(MergeMethod):
    def name(self):
        return "unfinished"

class Whole(Unfinished):
    def name(self):
        return "plugin_class"
    def make_task(self, *, output_weight, tensors, parameters, tensor_parameters, **kwargs):
        return tensors
"""


@pytest.fixture(autouse=True)
def forget_new_methods():
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        registry.unregister(name)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def python(code: str, folder: Path = PACKAGE.parent) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_method_has_its_file_and_its_name():
    assert set(registry.names()) >= BUILT_IN
    for name in BUILT_IN:
        assert registry.get(name).name() == name


def test_an_alias_stands_for_its_method():
    assert registry.canonical("task") == "task_arithmetic"
    assert registry.get("task") is registry.get("task_arithmetic")


@pytest.mark.parametrize(
    ("written", "meant"), [("dare-ties", "dare_ties"), ("TIES", "ties"), ("taskarithmetic", "task_arithmetic")]
)
def test_an_unknown_name_is_answered_with_the_nearest(written, meant):
    with pytest.raises(MethodError, match=f"'{written}' is not a merge method. Did you mean '{meant}'"):
        registry.get(written)


def test_names_and_their_refusal_do_not_wait_for_torch():
    code = """
import sys
from merger.methods import registry
assert "ties" in registry.names() and registry.canonical("task") == "task_arithmetic"
try:
    registry.get("teis")
except Exception as error:
    print(error)
assert "torch" not in sys.modules
"""
    assert python(code) == "'teis' is not a merge method. Did you mean 'ties'?"


def test_the_vocabulary_has_every_parameter():
    methods, aliases = registry.vocabulary()
    assert methods["ties"] == ({"normalize", "rescale", "lambda", "int8_mask"}, {"weight", "density"})
    assert methods["slerp"] == ({"t"}, frozenset())
    assert methods["della"][1] == {"weight", "density", "epsilon"}
    assert aliases["task"] == "task_arithmetic"


def test_facts_say_what_people_need_to_know():
    facts = registry.describe(registry.get("slerp"))
    assert (facts.name, facts.pretty_name, facts.base, facts.max_models) == ("slerp", "SLERP", "required", 1)
    assert [(p.name, p.required, p.minimum, p.maximum) for p in facts.parameters] == [("t", True, 0, 1)]
    assert facts.summary.startswith("Moves from the base")


def test_a_file_dropped_into_the_folder_is_found_by_itself(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "merger", ignore=shutil.ignore_patterns("__pycache__"))
    write(tmp_path / "merger/methods/first_of_all.py", PLUGIN.format(name="first_of_all"))
    write(tmp_path / "merger/methods/plugin_class.py", CLASS_PLUGIN)
    code = """
from merger.methods import registry
print([method.name() for method in registry.all_methods() if method.name() in ("first_of_all", "plugin_class")])
"""
    assert python(code, tmp_path) == "['first_of_all', 'plugin_class']"


def test_a_plugin_registers_functions_and_classes(tmp_path):
    plugin = write(tmp_path / "mine.py", PLUGIN.format(name="plugin_function") + CLASS_PLUGIN)
    assert sorted(registry.load_plugin(plugin)) == ["plugin_class", "plugin_function"]
    assert {"plugin_class", "plugin_function"} <= set(registry.names())
    assert registry.get("plugin_function").summary == "Takes the first."
    assert sorted(registry.load_plugin(plugin)) == ["plugin_class", "plugin_function"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no merge method is defined"),
        ("1 / 0", "the file cannot be run: ZeroDivisionError"),
        ("def broken(:", "the file cannot be run: SyntaxError"),
        ("import sys; sys.exit(0)", "the file cannot be run: SystemExit: 0"),
        (CLASS_PLUGIN + "    def __init__(self, x): ...\n", "the merge method .* failed in registry.py.*TypeError"),
        (CLASS_PLUGIN + "    def parameters(self): return ['weight']\n", "must be a list of ConfigParameterDef"),
        (CLASS_PLUGIN + "    def parameters(self): return 1 / 0\n", "failed in bad.py, line .*ZeroDivisionError"),
        (PLUGIN.format(name="ties"), r"bad\.py: a merge method named 'ties' exists already"),
        (PLUGIN.format(name="plugin_half") + PLUGIN.format(name="linear"), "'linear' exists already"),
    ],
)
def test_a_bad_plugin_is_refused_and_leaves_nothing_behind(tmp_path, text, message):
    before = registry.names()
    with pytest.raises(MethodError, match=message):
        registry.load_plugin(write(tmp_path / "bad.py", text))
    assert registry.names() == before


def test_a_plugin_that_is_not_there_is_refused_by_its_path(tmp_path):
    with pytest.raises(MethodError, match=r"absent\.py: there is no such Python file"):
        registry.load_plugin(tmp_path / "absent.py")


def install(folder: Path, name: str) -> None:
    """A package that offers one merge method, as pip leaves it."""
    write(folder / "some_package.py", PLUGIN.format(name=name))
    (folder / "some_package-1.0.dist-info").mkdir()
    write(folder / "some_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n")
    write(folder / "some_package-1.0.dist-info/entry_points.txt", f"[merger.methods]\n{name} = some_package:first\n")


def test_installed_packages_offer_methods(tmp_path):
    install(tmp_path, "from_package")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from merger.methods import registry
assert "from_package" in registry.names() and "some_package" not in sys.modules
print(registry.get("from_package").summary)
"""
    assert python(code) == "Takes the first."


@pytest.mark.parametrize("offered", ["some_package:Whole", "some_package:whole", "some_package"])
def test_an_installed_package_may_offer_a_class_an_object_or_a_module(tmp_path, offered):
    install(tmp_path, "plugin_class")
    write(tmp_path / "some_package.py", CLASS_PLUGIN + "\nwhole = Whole()\n")
    write(tmp_path / "some_package-1.0.dist-info/entry_points.txt", f"[merger.methods]\nplugin_class = {offered}\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import merger
print([facts.name for facts in merger.methods() if facts.name.startswith("plugin")])
"""
    assert python(code) == "['plugin_class']"


def test_a_package_that_offers_something_else_is_told(tmp_path):
    install(tmp_path, "from_package")
    for offered, message in (("some_package:nothing", "cannot be loaded from"), ("json", "does not")):
        write(tmp_path / "some_package-1.0.dist-info/entry_points.txt", f"[merger.methods]\nfrom_package = {offered}\n")
        code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from merger.methods import registry
try:
    registry.get("from_package")
except registry.MethodError as error:
    print(error)
"""
        assert message in python(code)


def test_a_package_may_not_take_a_name_that_exists(tmp_path):
    install(tmp_path, "ties")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from merger.methods import registry
try:
    registry.names()
except registry.MethodError as error:
    print(error)
"""
    assert "some_package:first: a merge method named 'ties' exists already" in python(code)
