"""Reading what a recipe says of the vocabulary: ``tokenizer_source``, ``tokenizer``, ``chat_template``."""

from __future__ import annotations

from typing import Any

from merger.recipe.document import Node
from merger.recipe.entries import TokenizerRule, TokenRule
from merger.recipe.parameters import ParameterReader
from merger.recipe.reader import given
from merger.types import ImmutableMap, ModelReference


class TokenReader(ParameterReader):
    """Adds the keys about tokens to what can be read."""

    def tokenizer_fields(self, keys: dict[str, Node]) -> dict[str, Any]:
        """The fields ``tokenizer_source``, ``tokenizer`` and ``chat_template`` of a recipe."""
        if given(keys, "tokenizer_source") and given(keys, "tokenizer"):
            message = "tokenizer and tokenizer_source exclude each other."
            self.report(keys["tokenizer"].line, "tokenizer", message, "Keep 'tokenizer: {source: ...}'.")
        fields: dict[str, Any] = {}
        if given(keys, "tokenizer_source"):
            fields["tokenizer_source"] = self._vocabulary_source(keys["tokenizer_source"], "tokenizer_source")
        if given(keys, "tokenizer"):
            fields["tokenizer"] = self._tokenizer(keys["tokenizer"], "tokenizer")
        if given(keys, "chat_template"):
            what = "the name of a template, auto, or a template"
            fields["chat_template"] = self.text(keys["chat_template"], "chat_template", what)
        return fields

    def _vocabulary_source(self, node: Node, path: str) -> ModelReference | str | None:
        if node.value in ("union", "base"):
            return str(node.value)
        if isinstance(node.value, str) and node.value.startswith("model:"):
            return self.reference(Node.of(node.value[len("model:") :]), path)
        return self.reference(node, path)

    def _tokenizer(self, node: Node, path: str) -> TokenizerRule | None:
        if not isinstance(node.value, dict):
            self.expected(node, path, "a mapping", "Write 'tokenizer: {source: union}'.")
            return None
        keys = self.mapping(node, path, "tokenizer")
        source, padding = None, None
        if given(keys, "source"):
            source = self._vocabulary_source(keys["source"], f"{path}.source")
        if given(keys, "pad_to_multiple_of"):
            padding = self.integer(keys["pad_to_multiple_of"], f"{path}.pad_to_multiple_of", minimum=1)
        tokens = self.entries(keys["tokens"], f"{path}.tokens", "a mapping of tokens") if "tokens" in keys else {}
        rules = {token: self._token(child, f"{path}.tokens.{token}") for token, child in tokens.items()}
        return TokenizerRule(source, ImmutableMap(rules), padding)

    def _token(self, node: Node, path: str) -> TokenRule:
        keys = self.mapping(node, path, "token")
        force = self.flag(keys["force"], f"{path}.force") if given(keys, "force") else False
        if not given(keys, "source"):
            return TokenRule(force=force)
        source = keys["source"]
        if isinstance(source.value, dict) and "kind" in source.value:
            return self._token_of_kind(source, f"{path}.source", force)
        return TokenRule(self.reference(source, f"{path}.source"), force=force)

    def _token_of_kind(self, node: Node, path: str, force: bool) -> TokenRule:
        """A row of zeros, or one token of one model."""
        keys = self.mapping(node, path, "token source")
        kind = self.choice(keys["kind"], f"{path}.kind", ("zero", "model_token"), {})
        if kind != "model_token":
            return TokenRule("zero", force=force)
        if not given(keys, "model") or given(keys, "token") == given(keys, "token_id"):
            self.report(node.line, path, "A model_token needs 'model' and either 'token' or 'token_id'.")
            return TokenRule(force=force)
        model = self.reference(keys["model"], f"{path}.model")
        if given(keys, "token"):
            return TokenRule(model, token=self.text(keys["token"], f"{path}.token", "a token"), force=force)
        return TokenRule(model, token_id=self.integer(keys["token_id"], f"{path}.token_id"), force=force)
