"""Vocabularies: which tokens a model knows, and whether two models know the same."""

from merger.tokenizer.compare import TOKENIZER, can_compare, has_tokenizer, same_tokenizer

__all__ = ["TOKENIZER", "can_compare", "has_tokenizer", "same_tokenizer"]
