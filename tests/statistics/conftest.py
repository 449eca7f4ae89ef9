"""Models that the tests of preview numbers share."""

from __future__ import annotations

import pytest

from tests.statistics.families import Family, four_models


@pytest.fixture(scope="session")
def family() -> Family:
    """A base and three bfloat16 fine-tunes; read them, do not change them."""
    return four_models()
