"""What tests of the page share: the methods' facts, and a what-if that has seen the demo."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import merger
from components.live import WhatIf
from merger import MethodFacts


@pytest.fixture(scope="session")
def methods() -> Mapping[str, MethodFacts]:
    return {facts.name: facts for facts in merger.describe_methods()}


@pytest.fixture(scope="session")
def what_if(methods: Mapping[str, MethodFacts]) -> WhatIf:
    """Samples that it takes are shared by all tests, as visitors share them."""
    return WhatIf(methods)
