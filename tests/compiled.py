"""The compiled twins of the hot functions, for the tests that hold the two together."""

from __future__ import annotations

import importlib
import shutil
from types import ModuleType

import pytest


def compiled_twin() -> ModuleType:
    """Return the twin, or skip. Missing it is a failure where it could have been built."""
    try:
        return importlib.import_module("penstock.hot._speedups")
    except ImportError:
        if any(shutil.which(name) for name in ("cc", "gcc", "clang")):
            raise
        pytest.skip("there is no C compiler here to build penstock.hot._speedups with")
