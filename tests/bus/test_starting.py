"""A bus that opens while its broker is away, and one that opens in vain."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import Program

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig
from penstock.bus.testing import PenstockServer
from penstock.errors import ConnectFailed, JetStreamError, PenstockError, RequestTimeout


def event(number: int) -> Envelope[int]:
    return Envelope(aggregate_id="a", event_type="made", payload=number)


@asynchronous
async def test_a_service_that_starts_before_its_server_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = PenstockServer(tmp_path)
    with server:
        url = server.url
    handled: list[int] = []
    bus = EventBus.open(url)

    @bus.on("orders")
    async def handle(envelope: Envelope[int]) -> None:
        handled.append(envelope.payload)

    opening = asyncio.ensure_future(bus.__aenter__())
    await until(lambda: "`connect_timeout`" in caplog.text)
    with server:
        await opening
        await bus.publish_envelope("orders", event(1))
        await until(lambda: handled == [1])
        await bus.close()


@asynchronous
async def test_the_wait_for_a_server_is_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nats = NatsConfig(urls=(f"nats://127.0.0.1:{port}",))
    for timeout_s in (0.0, 0.3):
        with pytest.raises(ConnectFailed):
            await EventBus(
                BusConfig(type="nats", nats=nats, connect_timeout=timeout_s)
            ).__aenter__()


@asynchronous
async def test_what_waiting_does_not_mend_is_an_error_at_once(
    program: Program, servers: Servers
) -> None:
    locked = servers(program, "authorization { token: secret }\njetstream { store_dir: store }")
    config = BusConfig(type="nats", nats=NatsConfig(urls=(locked.url,)), connect_timeout=3600.0)
    with pytest.raises(PenstockError, match=r"(?i)authorization"):
        await EventBus(config).__aenter__()
    plain = servers(program, "")
    with pytest.raises(PenstockError) as caught:
        await EventBus(replace(config, nats=NatsConfig(urls=(plain.url,)))).__aenter__()
    assert not isinstance(caught.value, RequestTimeout)
    assert not isinstance(caught.value, JetStreamError) or 503 == caught.value.code
