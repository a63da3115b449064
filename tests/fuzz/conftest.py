"""What all tests of the compiled twins need."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.compiled import compiled_twin


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return compiled_twin()
