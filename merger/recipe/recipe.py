"""A recipe: what to merge, as one frozen value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from merger.errors import Problem, RecipeError
from merger.policy import Policy
from merger.recipe.document import Node, load, read_text
from merger.recipe.entries import ModelEntry, Setting, Slice, TokenizerRule
from merger.recipe.grammar import RecipeReader
from merger.recipe.writing import (
    dump,
    entry_data,
    reference_data,
    settings_data,
    slice_data,
    source_data,
    tokenizer_data,
)
from merger.types import ImmutableMap, ModelReference, Vocabulary

ModelLike = Union[str, "os.PathLike[str]", ModelReference]


@dataclass(frozen=True)
class Recipe:
    """What to merge.  The vocabulary is mergekit's, with ``seed`` added.

    Attributes:
        merge_method: canonical name of the method.
        models: the models, when whole models are merged.
        slices: the parts of the result, when it is put together from ranges of layers.
        base_model: the base, listed among the models or not.
        parameters: settings for the whole merge, also defaults of per-model parameters.
        dtype: in which dtype to compute and write, None for the inputs'.
        out_dtype: in which dtype to write, None for ``dtype``.
        seed: of the random methods.
        tokenizer_source: ``union``, ``base`` or the model whose tokenizer the result gets.
        tokenizer: the same with rules for tokens and padding.
        chat_template: name of a template, ``auto``, or a template.
        name: what the author calls the result.
        problems: warnings found while reading; they do not count in comparisons.
    """

    merge_method: str
    models: tuple[ModelEntry, ...] = ()
    slices: tuple[Slice, ...] = ()
    base_model: ModelReference | None = None
    parameters: Mapping[str, Setting] = field(default_factory=ImmutableMap)
    dtype: str | None = None
    out_dtype: str | None = None
    seed: int = 0
    tokenizer_source: ModelReference | str | None = None
    tokenizer: TokenizerRule | None = None
    chat_template: str | None = None
    name: str | None = None
    problems: tuple[Problem, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", ImmutableMap(self.parameters))

    @classmethod
    def from_yaml(
        cls,
        text: str,
        vocabulary: Vocabulary | None = None,
        *,
        lenient: bool = False,
        source: str = "recipe",
        policy: Policy | None = None,
    ) -> Recipe:
        """Read a recipe and check everything that can be said without opening models.

        Args:
            text: one YAML document.
            vocabulary: the methods and parameters there are; None accepts every name.
            lenient: whether names that nobody knows are ignored with a warning.
            source: what to call the text in messages, such as a file name.
            policy: limits of this installation.

        Raises:
            RecipeError: with all problems.
        """
        node, problems = load(text, source)
        return cls.from_node(node, problems, RecipeReader(vocabulary, lenient, source), policy)

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        vocabulary: Vocabulary | None = None,
        *,
        lenient: bool = False,
        policy: Policy | None = None,
    ) -> Recipe:
        """Read a recipe from a file, or from text when ``source`` has more than one line.

        Raises:
            RecipeError: with all problems, also when there is no such file.
        """
        if isinstance(source, str) and "\n" in source:
            return cls.from_yaml(source, vocabulary, lenient=lenient, policy=policy)
        text = read_text(os.fspath(source))
        return cls.from_yaml(text, vocabulary, lenient=lenient, source=os.path.basename(source), policy=policy)

    @classmethod
    def build(
        cls,
        merge_method: str,
        models: Iterable[ModelLike | tuple[ModelLike, Mapping[str, Any]] | ModelEntry] = (),
        *,
        slices: Iterable[Slice | Mapping[str, Any]] = (),
        base: ModelLike | None = None,
        parameters: Mapping[str, Any] | None = None,
        vocabulary: Vocabulary | None = None,
        lenient: bool = False,
        policy: Policy | None = None,
        **keys: Any,
    ) -> Recipe:
        """A recipe from Python values, checked as text is.

        Args:
            merge_method: the method's name or an alias.
            models: references, pairs of a reference and its settings, or entries.
            slices: slices, or mappings as in YAML.
            base: the base model.
            parameters: settings for the whole merge; lists are gradients.
            vocabulary: the methods and parameters there are; None accepts every name.
            lenient: whether names that nobody knows are ignored with a warning.
            policy: limits of this installation.
            **keys: other keys of a recipe: ``dtype``, ``out_dtype``, ``seed``, ``tokenizer`` and so on.

        Raises:
            RecipeError: with all problems.
        """
        listed = [_entry_like(model) for model in models]
        if isinstance(keys.get("tokenizer"), TokenizerRule):
            keys["tokenizer"] = tokenizer_data(keys["tokenizer"])
        parts = [slice_data(part) if isinstance(part, Slice) else part for part in slices]
        document = {
            "merge_method": merge_method,
            "models": listed or None,
            "slices": parts or None,
            "base_model": base,
            "parameters": parameters,
            **keys,
        }
        return cls.from_node(Node.of(document), [], RecipeReader(vocabulary, lenient, ""), policy)

    @classmethod
    def from_node(cls, root: Node, problems: Sequence[Problem], reader: RecipeReader, policy: Policy | None) -> Recipe:
        """A recipe from a document that was taken apart already, with the problems found meanwhile.

        Raises:
            RecipeError: with all problems.
        """
        recipe = cls(**{"merge_method": "", **reader.fields(root)})
        found = [*problems, *(problem for _, problem in sorted(reader.found, key=lambda pair: pair[0]))]
        found += policy.model_problems(recipe.all_models()) if policy else []
        errors = [problem for problem in found if problem.level == "error"]
        warnings = [problem for problem in found if problem.level != "error"]
        if errors:
            raise RecipeError(errors + warnings)
        return recipe.replace(problems=tuple(warnings))

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def entries(self) -> tuple[ModelEntry, ...]:
        """Every line that names a model, in order."""
        return self.models + tuple(entry for part in self.slices for entry in part.sources)

    def all_models(self) -> tuple[ModelReference, ...]:
        """Every model once, in the order of first mention; a base that is not listed comes last."""
        listed = [entry.model for entry in self.entries()]
        bases = [self.base_model, *(part.base_model for part in self.slices)]
        return tuple(dict.fromkeys([*listed, *(base for base in bases if base is not None)]))

    @property
    def primary(self) -> ModelReference:
        """The model whose names, configuration and tokenizer the result gets: the base, else the first."""
        return self.base_model or self.all_models()[0]

    def mentioned_models(self) -> tuple[ModelReference, ...]:
        """Every model once, also those that give only tokens."""
        rule = self.tokenizer
        sources = [self.tokenizer_source, *([rule.source] if rule else [])]
        sources += [token.source for token in rule.tokens.values()] if rule else []
        named = [source for source in sources if isinstance(source, ModelReference)]
        return tuple(dict.fromkeys([*self.all_models(), *named]))

    def to_yaml(self) -> str:
        """The recipe as text: equal recipes give equal text, and reading it gives the same recipe."""
        data: dict[str, Any] = {} if self.name is None else {"name": self.name}
        data["merge_method"] = self.merge_method
        if self.base_model is not None:
            data["base_model"] = reference_data(self.base_model)
        if self.models:
            data["models"] = [entry_data(entry) for entry in self.models]
        if self.slices:
            data["slices"] = [slice_data(part) for part in self.slices]
        data |= settings_data(self.parameters) | self._other_data()
        return dump(data)

    def _other_data(self) -> dict[str, Any]:
        """Numbers, dtypes and tokens, as far as they are given."""
        data: dict[str, Any] = {"dtype": self.dtype, "out_dtype": self.out_dtype, "seed": self.seed or None}
        if self.tokenizer_source is not None:
            data["tokenizer_source"] = source_data(self.tokenizer_source)
        if self.tokenizer is not None:
            data["tokenizer"] = tokenizer_data(self.tokenizer)
        data["chat_template"] = self.chat_template
        return {key: value for key, value in data.items() if value is not None}


def _entry_like(model: ModelLike | tuple[ModelLike, Mapping[str, Any]] | ModelEntry) -> object:
    if isinstance(model, ModelEntry):
        return entry_data(model)
    if isinstance(model, tuple):
        return {"model": model[0], "parameters": model[1]}
    return {"model": model}
