"""The command line: ``python -m merger merge | run | check | preview | inspect | methods | sweep``."""

from __future__ import annotations

from merger.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
