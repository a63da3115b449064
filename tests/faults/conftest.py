"""What the suites of faults share."""

from __future__ import annotations

import pytest
from tests.simdisk import SimDisk

from penstock.jetstream.store.file.encryption import Keys


@pytest.fixture(params=[None, "chacha"], ids=["plain", "encrypted"])
def each_encryption(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test on a simulated disk with plain files, and on one with encrypted files."""
    keys = Keys(request.param, b"k" * 32) if request.param else None
    monkeypatch.setattr(SimDisk, "keys", keys)
