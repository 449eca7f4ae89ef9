"""``python -m merger``."""

from __future__ import annotations

import sys

from merger.cli import main

if __name__ == "__main__":
    sys.exit(main())
