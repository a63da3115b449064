"""
The pytest plugin: a bus, a server, faults and virtual time as fixtures.

It needs no asyncio plugin: the test itself opens what has to be awaited, with `async with`,
on the loop it runs on.

Pytest loads this module in every environment where Penstock is installed, with or without
its extras, for projects that never use it. So it stands outside of the bus, and imports
nothing until one of its fixtures is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.bus.bus import EventBus
    from penstock.bus.testing import FaultProxy, PenstockServer, VirtualTime


@pytest.fixture
def event_bus(tmp_path: Path) -> EventBus:
    """Return a bus with its own server in this process: `async with event_bus as bus`."""
    from penstock.bus.bus import EventBus

    return EventBus.open(f"embedded:{tmp_path / 'penstock'}")


@pytest.fixture
def penstock_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockServer]:
    """Run a server in another process, with `url`, `kill`, `start` and `restart`."""
    from penstock.bus.testing.server import PenstockServer

    with PenstockServer(tmp_path_factory.mktemp("penstock-server")) as server:
        yield server


@pytest.fixture
def fault_proxy(penstock_server: PenstockServer) -> FaultProxy:
    """Return a proxy in front of `penstock_server`: `async with fault_proxy as proxy`."""
    from penstock.bus.testing.proxy import FaultProxy

    return FaultProxy(penstock_server.url)


@pytest.fixture
def virtual_time() -> VirtualTime:
    """Return a clock that jumps: `virtual_time.run(test())` instead of `asyncio.run`."""
    from penstock.bus.testing.virtualtime import VirtualTime

    return VirtualTime()
