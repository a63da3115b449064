"""Commands that work on a bus."""

from __future__ import annotations

import pytest

from penstock.cli.dlq import run


def test_a_bus_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == run(["list", "--bus", "nats://127.0.0.1:1"])

    shown = capsys.readouterr()
    assert "" == shown.out
    assert "127.0.0.1:1: connection refused\nhint: is it running, and is --bus" in shown.err
