"""Finding merge methods by name: files of this folder, plugins, and installed packages."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from merger.errors import MethodError, did_you_mean, foreign_code, words_of
from merger.methods.base import MergeMethod, MethodFacts
from merger.methods.outline import outline
from merger.methods.soundness import require_sound

ENTRY_POINTS = "merger.methods"
_FOLDER = Path(__file__).parent
_INFRASTRUCTURE = {"base", "define", "outline", "registry", "signature", "soundness"}

_registered: dict[str, MergeMethod] = {}
_plugins: dict[Path, list[str]] = {}


def names() -> list[str]:
    """Every method's name, sorted. Nothing is imported for it."""
    return sorted({*_built_in(), *_installed(), *_registered})


def all_methods() -> list[MergeMethod]:
    """Every method, by name."""
    return [get(name) for name in names()]


def get(name: str) -> MergeMethod:
    """The method of that name or alias.

    Raises:
        MethodError: there is none, or its file cannot be used.
    """
    name = canonical(name)
    if name not in _registered:
        _register_found(_load(name))
    if name not in _registered:
        raise MethodError(f"the file or package that should define merge method '{name}' does not.")
    return _registered[name]


def canonical(name: str) -> str:
    """The name that an alias stands for; a name stands for itself.

    Raises:
        MethodError: nobody knows it; the message offers the nearest name.
    """
    known = names()
    if name in known:
        return name
    for alias, meant in aliases().items():
        if name == alias:
            return meant
    raise MethodError(f"'{name}' is not a merge method.", hint=did_you_mean(name, known))


def aliases() -> dict[str, str]:
    """Other names of methods. Nothing is imported for those of this folder."""
    found = {alias: name for name in _built_in() for alias in _written_aliases(name)}
    return found | {alias: method.name() for method in _registered.values() for alias in method.aliases}


def vocabulary() -> tuple[dict[str, tuple[frozenset[str], frozenset[str]]], dict[str, str]]:
    """What recipes may say: each method's global and per-model parameter names, and aliases."""
    methods = {
        method.name: (
            frozenset(definition.name for definition in method.parameters),
            frozenset(definition.name for definition in method.tensor_parameters),
        )
        for method in describe_all()
    }
    return methods, aliases()


def register(method: MergeMethod) -> None:
    """Make a method known for the rest of this process.

    Raises:
        MethodError: its name is taken, or it describes itself wrongly.
    """
    require_sound(method)
    name = method.name()
    is_at_home = _module_of(method) == _home_of(name) and name not in _registered
    for wanted in () if is_at_home else (name, *method.aliases):
        if wanted in names() or wanted in aliases():
            raise MethodError(f"a merge method named '{wanted}' exists already.", hint="Choose another name.")
    _registered[name] = method


def unregister(name: str) -> None:
    """Forget a method that was registered by hand, for instance to define it anew."""
    _registered.pop(name, None)
    for path in [path for path, defined in _plugins.items() if name in defined]:
        del _plugins[path]


def load_plugin(path: str | Path) -> list[str]:
    """Register the merge methods that a Python file defines; a file counts once.

    Returns:
        Their names.

    Raises:
        MethodError: the file cannot be imported, defines no method, or a name is taken.
    """
    path = Path(path).resolve()
    if path not in _plugins:
        before = dict(_registered)
        try:
            _register_found(_import_file(path))
        except MethodError as error:
            _restore(before)
            raise MethodError(
                [replace(problem, where=problem.where or str(path)) for problem in error.problems]
            ) from error
        _plugins[path] = [name for name in _registered if name not in before]
        if not _plugins[path]:
            del _plugins[path]
            raise MethodError("no merge method is defined.", where=str(path), hint="Decorate one with @merge_method.")
    return list(_plugins[path])


def describe(method: MergeMethod) -> MethodFacts:
    """What people need to know of a method."""
    return MethodFacts(
        name=method.name(),
        pretty_name=method.pretty_name() or method.name(),
        aliases=method.aliases,
        summary=method.summary,
        description=inspect.getdoc(method) or "",
        reference_url=method.reference_url(),
        base=method.base,
        min_models=method.min_models,
        max_models=method.max_models,
        preview=method.preview,
        parameters=tuple(method.parameters()),
        tensor_parameters=tuple(method.tensor_parameters()),
    )


def describe_all() -> list[MethodFacts]:
    """What every method is called, needs and accepts, by name."""
    return [facts(name) for name in names()]


def facts(name: str) -> MethodFacts:
    """What the method of that name or alias is called, needs and accepts, if possible without importing it.

    Raises:
        MethodError: there is none, or its file cannot be used.
    """
    name = canonical(name)
    written = outline(_FOLDER / f"{name}.py") if name in _built_in() and name not in _registered else None
    return written or describe(get(name))


def _load(name: str) -> object:
    """The module of this folder, or the object of an installed package, that has the method."""
    if name in _built_in():
        return importlib.import_module(f"{__package__}.{name}")
    point = _installed()[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise MethodError(f"merge method '{name}' cannot be loaded from {point.value}: {error}") from error


def _home_of(name: str) -> str | None:
    """The module that a name is reserved for."""
    if name in _built_in():
        return f"{__package__}.{name}"
    return _installed()[name].module if name in _installed() else None


@cache
def _built_in() -> frozenset[str]:
    files = (path.stem for path in _FOLDER.glob("*.py"))
    return frozenset(name for name in files if name not in _INFRASTRUCTURE and not name.startswith("_"))


@cache
def _installed() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINTS):
        if point.name in found or point.name in _built_in():
            raise MethodError(
                f"a merge method named '{point.name}' exists already.",
                where=f"installed package with {point.value}",
                hint="Uninstall that package.",
            )
        found[point.name] = point
    return found


@cache
def _written_aliases(name: str) -> tuple[str, ...]:
    """The ``aliases=`` of a method's file, read without running it."""
    path = _FOLDER / f"{name}.py"
    written = outline(path)
    if written is not None:
        return written.aliases
    calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    keywords = (keyword for call in calls for keyword in call.keywords if keyword.arg == "aliases")
    return tuple(alias for keyword in keywords for alias in ast.literal_eval(keyword.value))


def _module_of(method: MergeMethod) -> str:
    function = getattr(method, "function", None)
    return str(getattr(function, "__module__", type(method).__module__))


def _import_file(path: Path) -> ModuleType:
    name = f"merger_plugin_{len(_plugins)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise MethodError("there is no such Python file.", where=str(path), hint="Give the path of a .py file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, MethodError):
            raise
        raise MethodError(f"the file cannot be run: {words_of(error)}", where=str(path)) from error
    return module


def _register_found(found: object) -> None:
    """Register what a module or entry point holds and has not registered itself."""
    if isinstance(found, ModuleType):
        for value in vars(found).values():
            if isinstance(value, type) and value.__module__ == found.__name__:
                _register_found(value)
    elif isinstance(found, type) and issubclass(found, MergeMethod) and not inspect.isabstract(found):
        with foreign_code(f"the merge method {found.__name__}"):
            method = found()
        register(method)
    elif isinstance(found, MergeMethod) and found.name() not in _registered:
        register(found)


def _restore(before: dict[str, MergeMethod]) -> None:
    _registered.clear()
    _registered.update(before)
