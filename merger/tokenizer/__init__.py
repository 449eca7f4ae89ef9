"""Vocabularies: which tokens a model knows, and whether two models know the same."""

from merger.tokenizer.compare import TOKENIZER, has_tokenizer, same_tokenizer

__all__ = ["TOKENIZER", "has_tokenizer", "same_tokenizer"]
