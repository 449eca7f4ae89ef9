"""What to merge and how to run: `Recipe`, its YAML, and `RunOptions`."""

from merger.recipe.entries import (
    Filtered,
    ModelEntry,
    Setting,
    Slice,
    TokenizerRule,
    TokenRule,
    has_filters,
    is_gradient,
)
from merger.recipe.options import RunOptions, parse_size
from merger.recipe.recipe import Recipe
from merger.recipe.series import document_title, load_series, series_problems
from merger.types import Vocabulary

__all__ = [
    "Filtered",
    "ModelEntry",
    "Recipe",
    "RunOptions",
    "Setting",
    "Slice",
    "TokenRule",
    "TokenizerRule",
    "Vocabulary",
    "document_title",
    "has_filters",
    "is_gradient",
    "load_series",
    "parse_size",
    "series_problems",
]
