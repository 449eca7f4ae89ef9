"""The methods that come with the engine and their parameters."""

from merger.api import vocabulary

VOCABULARY = vocabulary()
