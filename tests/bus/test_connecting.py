"""How a bus reaches its servers: over TLS, and again when an answer is lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.aio import asynchronous, until
from tests.certificates import Authority
from tests.conftest import Servers
from tests.servers import Program

from penstock.bus import BusConfig, Envelope, EventBus, JetStreamConfig, NatsConfig
from penstock.bus.testing.proxy import FaultProxy
from penstock.errors import ConfigError, PenstockError, RequestTimeout

CONFIG = "jetstream { store_dir: store }"


def event(number: int = 0) -> Envelope[int]:
    return Envelope(aggregate_id="a", event_type="made", payload=number)


@asynchronous
async def test_a_bus_speaks_tls(program: Program, servers: Servers, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.server(), authority.client("ann")
    tls = {
        "cert_file": str(pair.cert),
        "key_file": str(pair.key),
        "ca_file": str(authority.ca),
        "verify": True,
    }
    server = servers(program, f"{CONFIG}\ntls {json.dumps(tls)}")
    nats = NatsConfig(
        urls=(f"tls://localhost:{server.port}",),
        tls_ca=str(authority.ca),
        tls_certificate=str(own.cert),
        tls_key=str(own.key),
        max_reconnects=1,
    )

    async with EventBus(BusConfig(nats=nats, type="nats", namespace="tls")) as bus:
        assert 1 == (await bus.publish_envelope_sync("orders", event())).sequence

    for stranger in (
        replace(nats, tls_ca=None, tls_certificate=None, tls_key=None),
        replace(nats, tls_certificate=None, tls_key=None),
    ):
        with pytest.raises(PenstockError):
            async with EventBus(BusConfig(nats=stranger, type="nats", namespace="tls")):
                pass


@asynchronous
async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    nats = NatsConfig(tls_ca=str(tmp_path / "none.pem"))

    with pytest.raises(ConfigError, match="`tls_ca`: there is no file"):
        async with EventBus(BusConfig(nats=nats, type="nats")):
            pass


@asynchronous
async def test_the_first_event_of_a_topic_outlives_a_lost_answer(
    program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    async with FaultProxy(server.url) as proxy:
        bus = EventBus.open(proxy.url, namespace=f"lost-{program.name}")
        jetstream = replace(bus.config.nats.jetstream, request_timeout=1.0)
        config = replace(bus.config, nats=replace(bus.config.nats, jetstream=jetstream))
        async with EventBus(config) as bus:
            fault = proxy.drop("_INBOX.>", direction="down")
            receipt = await asyncio.wait_for(bus.publish_envelope_sync("orders", event()), 30)

    assert (1, 1) == (fault.hits, receipt.sequence)


@asynchronous
async def test_a_subscription_that_failed_can_be_tried_again(
    program: Program, servers: Servers
) -> None:
    server, handled = servers(program, CONFIG), []

    async def handle(envelope: Envelope[int]) -> None:
        handled.append(envelope.payload)

    jetstream = JetStreamConfig(request_timeout=0.3)
    async with FaultProxy(server.url) as proxy:
        nats = NatsConfig(urls=(proxy.url,), jetstream=jetstream)
        namespace = f"again-{program.name}"
        async with EventBus(BusConfig(nats=nats, type="nats", namespace=namespace)) as bus:
            await bus.subscribe_envelope("others", handle)
            proxy.drop("_INBOX.>", direction="down", count=None)
            with pytest.raises(RequestTimeout):
                await bus.subscribe_envelope("orders", handle)
            proxy.heal()
            await bus.subscribe_envelope("orders", handle)
            await bus.publish_envelope("orders", event(1))
            await until(lambda: handled == [1])
