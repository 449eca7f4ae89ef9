"""What may stand where in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from merger.errors import did_you_mean, nearest
from merger.recipe.document import Node
from merger.recipe.entries import Filtered, ModelEntry, Setting, Slice, has_filters
from merger.recipe.names import KEYS
from merger.recipe.reader import given
from merger.recipe.tokens import TokenReader
from merger.types import OUTPUT_DTYPES, ImmutableMap, ModelReference

OTHER_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"} | {
    "fp64": "float64",
    "double": "float64",
}
INPUTS = ("models", "slices", "modules")
T = TypeVar("T")


def _method_hint(name: str, names: Iterable[str]) -> str:
    """The method that was probably meant, or what to do when it is somebody's own."""
    return f"{did_you_mean(name, names)} A method of your own is loaded with --plugin FILE."


class RecipeReader(TokenReader):
    """Reads a whole document into the fields of a recipe."""

    def fields(self, root: Node) -> dict[str, Any]:
        """The fields of `Recipe`; what is wrong stands in ``found``."""
        if not isinstance(root.value, dict):
            self.expected(root, "", "a recipe: a mapping that begins like 'merge_method: linear'")
            return {}
        keys = self.mapping(root, "", "recipe")
        self.method = self._method(keys, root)
        self._check_inputs(keys, root)
        module = self._module(keys)
        parameters = self.parameters(keys.get("parameters"), "parameters", per_model=False)
        return {
            "merge_method": self.method or "",
            "base_model": self._optional(keys, "base_model", self.reference),
            "models": self._models(keys, "models") + module["models"],
            "slices": self._slices(keys, "slices") + module["slices"],
            "parameters": _stacked(module["parameters"], parameters),
            "dtype": self._optional(keys, "dtype", self._dtype),
            "out_dtype": self._optional(keys, "out_dtype", self._dtype),
            "seed": self._optional(keys, "seed", self.integer) or 0,
            "name": self._optional(keys, "name", lambda node, path: self.text(node, path, "a name")),
            **self.tokenizer_fields(keys),
        }

    def _optional(self, keys: dict[str, Node], name: str, read: Callable[[Node, str], T]) -> T | None:
        return read(keys[name], name) if given(keys, name) else None

    def _dtype(self, node: Node, path: str) -> str | None:
        return self.choice(node, path, OUTPUT_DTYPES, OTHER_DTYPES)

    def _method(self, keys: dict[str, Node], root: Node) -> str | None:
        """The canonical name of the merge method."""
        if not given(keys, "merge_method"):
            if not self._is_misspelled(("merge_method",), root):
                hint = "Write for instance 'merge_method: linear'."
                self.report(root.line, "", "The recipe has no merge_method.", hint)
            return None
        node = keys["merge_method"]
        name = self.text(node, "merge_method", "the name of a merge method")
        if name is None or self.vocabulary is None:
            return name
        names = {**dict.fromkeys(self.vocabulary.methods), **self.vocabulary.aliases}
        if name in names:
            return names[name] or name
        spelled = name.lower().replace("-", "_")
        if self.lenient and spelled in names:
            self.report(node.line, "merge_method", f"'{name}' is read as '{spelled}'.", level="warning")
            return names[spelled] or spelled
        self.report(node.line, "merge_method", f"Nobody knows the merge method '{name}'.", _method_hint(name, names))
        return None

    def _is_misspelled(self, names: tuple[str, ...], root: Node) -> bool:
        """Whether a refused key probably stands for one of ``names``, so that a second message would only confuse."""
        unknown = [key for key in root.value if key not in KEYS["recipe"]]
        return not self.lenient and any(nearest(key, KEYS["recipe"]) in names for key in unknown)

    def _check_inputs(self, keys: dict[str, Node], root: Node) -> None:
        """Exactly one of models, slices and modules."""
        present = [name for name in INPUTS if given(keys, name)]
        if len(present) > 1:
            message = f"{' and '.join(present)} exclude each other."
            self.report(keys[present[1]].line, present[1], message, "Keep one of them.")
        if not present and not self._is_misspelled(INPUTS, root):
            self.report(root.line, "", "The recipe names no models.", "Add 'models' or 'slices'.")

    def _module(self, keys: dict[str, Node]) -> dict[str, Any]:
        """Models, slices and parameters of the one module of the recipe."""
        modules = self.entries(keys["modules"], "modules", "a mapping of modules") if given(keys, "modules") else {}
        if len(modules) > 1:
            message = f"The recipe has {len(modules)} modules ({', '.join(modules)}); one is merged at a time."
            self.report(keys["modules"].line, "modules", message, "Write one recipe for each.")
        if given(keys, "modules") and not modules:
            self.report(keys["modules"].line, "modules", "The recipe names no models.", "Add a module with 'slices'.")
        fields: dict[str, Any] = {"models": (), "slices": (), "parameters": ImmutableMap()}
        for name, node in modules.items():
            path = f"modules.{name}"
            inner = self.mapping(node, path, "module")
            if given(inner, "models") == given(inner, "slices"):
                self.report(node.line, path, "A module needs either 'models' or 'slices'.")
            fields["models"] += self._models(inner, f"{path}.models")
            fields["slices"] += self._slices(inner, f"{path}.slices")
            fields["parameters"] = self.parameters(inner.get("parameters"), f"{path}.parameters", per_model=False)
        return fields

    def _models(self, keys: dict[str, Node], path: str) -> tuple[ModelEntry, ...]:
        if not given(keys, "models"):
            return ()
        nodes = self.items(keys["models"], path, "models, each like '- model: name'")
        entries = [self._entry(node, f"{path}[{index}]", in_slice=False) for index, node in enumerate(nodes)]
        return tuple(entry for entry in entries if entry is not None)

    def _entry(self, node: Node, path: str, *, in_slice: bool) -> ModelEntry | None:
        """One model with its settings; a bare name is a model without settings."""
        if not in_slice and not isinstance(node.value, (dict, list)):
            model = self.reference(node, path)
            return None if model is None else ModelEntry(model)
        keys = self.mapping(node, path, "source" if in_slice else "model entry")
        model = self.reference(keys["model"], f"{path}.model") if "model" in keys else None
        if "model" not in keys:
            self.report(node.line, path, "This entry names no model.", "Add 'model: name'.")
        parameters = self.parameters(keys.get("parameters"), f"{path}.parameters", per_model=True)
        layers = self._layer_range(keys, node, path) if in_slice else None
        if model is None or (in_slice and layers is None):
            return None
        return ModelEntry(self._with_revision(model, keys, path), parameters, layers)

    def _with_revision(self, model: ModelReference, keys: dict[str, Node], path: str) -> ModelReference:
        """A revision beside ``model`` can only mean one thing, and ignoring it would merge another model."""
        revision = self.revision(keys, path)
        if revision is None:
            return model
        message = f"'revision' does not belong beside 'model'; it is read as {model.path}@{revision}."
        hint = f"Write 'model: {model.path}@{revision}'."
        self.report(keys["revision"].line, f"{path}.revision", message, hint, "warning")
        return ModelReference(model.path, revision, model.lora)

    def _layer_range(self, keys: dict[str, Node], node: Node, path: str) -> tuple[int, int] | None:
        hint = "Write the first layer and one past the last, such as [0, 32]."
        if not given(keys, "layer_range"):
            self.report(node.line, path, "A source of a slice needs a layer_range.", hint)
            return None
        node = keys["layer_range"]
        ends = [item.value for item in node.value] if isinstance(node.value, list) else []
        if len(ends) != 2 or any(type(end) is not int for end in ends):
            self.expected(node, f"{path}.layer_range", "two whole numbers", hint)
            return None
        start, stop = ends
        if not 0 <= start < stop < 2**31:
            what = "counts from the end, which is not done here" if min(ends) < 0 else "holds no layers"
            self.report(node.line, f"{path}.layer_range", f"layer_range [{start}, {stop}] {what}.", hint)
            return None
        return start, stop

    def _slices(self, keys: dict[str, Node], path: str) -> tuple[Slice, ...]:
        if not given(keys, "slices"):
            return ()
        nodes = self.items(keys["slices"], path, "slices, each with 'sources'")
        slices = [self._slice(node, f"{path}[{index}]") for index, node in enumerate(nodes)]
        return tuple(one for one in slices if one is not None)

    def _slice(self, node: Node, path: str) -> Slice | None:
        keys = self.mapping(node, path, "slice")
        parameters = self.parameters(keys.get("parameters"), f"{path}.parameters", per_model=False)
        base = self.reference(keys["base_model"], f"{path}.base_model") if given(keys, "base_model") else None
        if not given(keys, "sources"):
            self.report(node.line, path, "A slice needs 'sources'.")
            return None
        nodes = self.items(keys["sources"], f"{path}.sources", "sources with 'model' and 'layer_range'")
        entries = [self._entry(item, f"{path}.sources[{index}]", in_slice=True) for index, item in enumerate(nodes)]
        sources = tuple(entry for entry in entries if entry is not None)
        self._check_lengths(sources, keys["sources"], f"{path}.sources")
        return Slice(sources, parameters, base) if sources else None

    def _check_lengths(self, sources: tuple[ModelEntry, ...], node: Node, path: str) -> None:
        lengths = [stop - start for start, stop in (source.layer_range or (0, 0) for source in sources)]
        if len(set(lengths)) > 1:
            shown = ", ".join(
                f"{source.model.short_name} {length}" for source, length in zip(sources, lengths, strict=True)
            )
            message = f"The sources of a slice differ in their number of layers: {shown}."
            self.report(node.line, path, message, "Give all of them ranges of one length.")


def _stacked(upper: ImmutableMap[str, Setting], lower: ImmutableMap[str, Setting]) -> ImmutableMap[str, Setting]:
    """One level that means the same as ``upper`` over ``lower``."""
    return ImmutableMap({**lower, **{name: _over(value, lower.get(name)) for name, value in upper.items()}})


def _over(upper: Setting, lower: Setting | None) -> Setting:
    lines = _lines(upper)
    if lower is None or any(line.is_fallback for line in lines):
        return upper
    return lines + _lines(lower)


def _lines(setting: Setting) -> tuple[Filtered, ...]:
    return setting if has_filters(setting) else (Filtered(None, setting),)
