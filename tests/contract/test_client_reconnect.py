"""Our client when connections break: behind a proxy that cuts and stalls them."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import NATS_SERVER, PROGRAMS, Program, ServerProcess

import penstock
from penstock.bus.testing import FaultProxy
from penstock.client import Client
from penstock.errors import ConnectFailed, ConnectionClosed, ConnectionLost, OutboxFull


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program)


async def connect(proxy: FaultProxy, **settings: Any) -> Client:
    return await penstock.connect(proxy.url, reconnect_wait_s=0.01, **settings)


async def settle(client: Client) -> None:
    """Return once a connection has held long enough to answer."""
    while True:
        try:
            await client.flush()
            return
        except ConnectionLost:
            continue


@asynchronous
async def test_a_cut_connection_comes_back_with_its_subscriptions(server: ServerProcess) -> None:
    events: list[str] = []
    async with (
        FaultProxy(server.url) as proxy,
        await connect(
            proxy,
            on_disconnected=lambda error: events.append("disconnected"),
            on_reconnected=lambda: events.append("reconnected"),
        ) as client,
    ):
        subscription = await client.subscribe("kept.*")
        await client.flush()
        proxy.cut()
        await until(lambda: "reconnected" in events)
        await client.publish("kept.1", b"after")

        assert b"after" == (await subscription.next(timeout_s=5)).payload
        assert ["disconnected", "reconnected"] == events
        assert (1, 2) == (client.connection.reconnects, proxy.accepted)


@asynchronous
async def test_what_is_published_meanwhile_arrives_in_order(server: ServerProcess) -> None:
    async with (
        await penstock.connect(server.url) as observer,
        FaultProxy(server.url) as proxy,
        await connect(proxy) as client,
    ):
        subscription = await observer.subscribe("meanwhile")
        await observer.flush()
        proxy.refuse()
        await until(lambda: not client.connected)
        for number in range(1000):
            await client.publish("meanwhile", b"%d" % number)
        proxy.heal()

        received = [(await subscription.next(timeout_s=5)).payload for _ in range(1000)]
        assert [b"%d" % number for number in range(1000)] == received


@asynchronous
async def test_the_buffer_is_bounded_and_makes_the_publisher_wait(server: ServerProcess) -> None:
    async with (
        FaultProxy(server.url) as proxy,
        await connect(proxy, pending_bytes_max=10_000) as client,
    ):
        proxy.refuse()
        await until(lambda: not client.connected)
        published = 0

        async def publish() -> None:
            nonlocal published
            for _ in range(100):
                await client.publish("bounded", bytes(1000))
                published += 1

        publisher = asyncio.ensure_future(publish())
        await until(lambda: published)
        with pytest.raises(OutboxFull, match="pending_bytes_max"):
            client.publish_nowait("bounded", bytes(1000))
        assert (9, False) == (published, publisher.done())
        proxy.heal()
        await publisher
        await client.flush()


@asynchronous
async def test_a_publisher_that_waits_learns_that_the_client_closed(
    server: ServerProcess,
) -> None:
    async with FaultProxy(server.url) as proxy:
        client = await connect(proxy, pending_bytes_max=1000)
        proxy.refuse()
        await until(lambda: not client.connected)
        publisher = asyncio.ensure_future(client.publish("bounded", bytes(1000)))
        await asyncio.sleep(0)
        await client.close()

        with pytest.raises(ConnectionClosed):
            await publisher


@asynchronous
async def test_a_new_server_is_told_how_many_messages_are_still_wanted(
    server: ServerProcess,
) -> None:
    async with (
        await penstock.connect(server.url) as publisher,
        FaultProxy(server.url) as proxy,
        await connect(proxy) as client,
    ):
        subscription = await client.subscribe("five", messages_max=5)
        await client.flush()
        for number in range(3):
            await publisher.publish("five", b"%d" % number)
        await until(lambda: subscription.received == 3)
        proxy.cut()
        await until(lambda: client.connection.reconnects == 1)
        await client.flush()
        for number in range(3, 10):
            await publisher.publish("five", b"%d" % number)

        payloads = [message.payload async for message in subscription]
        assert [b"0", b"1", b"2", b"3", b"4"] == payloads


@asynchronous
async def test_what_ended_meanwhile_is_not_subscribed_again(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy, await connect(proxy) as client:
        subscription = await client.subscribe("ended")
        await client.flush()
        proxy.refuse()
        await until(lambda: not client.connected)
        await subscription.unsubscribe()
        fresh = await client.subscribe("fresh")
        proxy.heal()
        await until(lambda: client.connected)
        await client.publish("ended")
        await client.publish("fresh")

        assert "fresh" == (await fresh.next(timeout_s=5)).subject
        assert 0 == subscription.received


@asynchronous
async def test_a_flush_on_a_cut_connection_fails(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy, await connect(proxy) as client:
        proxy.stall()
        flush = asyncio.ensure_future(client.flush())
        await asyncio.sleep(0)
        proxy.cut()

        with pytest.raises(ConnectionLost):
            await flush
        proxy.heal()
        await client.flush()


@asynchronous
async def test_a_request_survives_a_cut_while_its_reply_is_being_made(
    server: ServerProcess,
) -> None:
    async with (
        await penstock.connect(server.url) as responder,
        FaultProxy(server.url) as proxy,
        await connect(proxy) as client,
    ):
        questions = await responder.subscribe("question")
        await responder.flush()
        request = asyncio.ensure_future(client.request("question"))
        question = await questions.next(timeout_s=5)
        proxy.cut()
        await until(lambda: client.connection.reconnects == 1)
        await client.connection.flush()
        await question.respond(b"answer")

        assert b"answer" == (await request).payload


@asynchronous
async def test_a_stalled_connection_is_stale_after_unanswered_pings(
    server: ServerProcess,
) -> None:
    lost: list[Exception] = []
    async with (
        FaultProxy(server.url) as proxy,
        await connect(
            proxy, ping_interval_s=0.05, connect_timeout_s=0.2, on_disconnected=lost.append
        ) as client,
    ):
        proxy.stall()
        await until(lambda: lost)
        proxy.heal()
        await until(lambda: client.connected)
        await client.flush()

    assert "stale connection" in str(lost[0])


@asynchronous
async def test_a_client_gives_up_after_its_last_attempt(server: ServerProcess) -> None:
    closed: list[bool] = []
    async with FaultProxy(server.url) as proxy:
        client = await connect(
            proxy, reconnect_attempts_max=3, on_closed=lambda: closed.append(True)
        )
        subscription = await client.subscribe("given.up")
        proxy.refuse()

        with pytest.raises(ConnectFailed, match="gave up on every server"):
            await subscription.next(timeout_s=5)
        assert ([True], True) == (closed, client.closed)
        with pytest.raises(ConnectionClosed, match="gave up"):
            await client.publish("late")
        await client.close()


@asynchronous
async def test_without_reconnect_a_lost_connection_is_the_end(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy:
        client = await connect(proxy, reconnect=False)
        proxy.cut()
        await until(lambda: client.closed)

        with pytest.raises(ConnectionClosed, match="connection lost"):
            await client.publish("late")


@asynchronous
async def test_closing_while_reconnecting_leaves_nothing_behind(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy:
        client = await connect(proxy)
        proxy.refuse()
        await until(lambda: not client.connected)
        await client.close()

        assert client.closed


@asynchronous
async def test_the_next_server_is_tried_when_one_dies() -> None:
    with ServerProcess(NATS_SERVER) as first, ServerProcess(NATS_SERVER) as second:
        async with await penstock.connect(
            [first.url, second.url], randomize_servers=False, reconnect_wait_s=0.01
        ) as client:
            assert client.server.endswith(str(first.port))
            first.process.kill()
            await until(lambda: client.connection.reconnects)

            assert client.server.endswith(str(second.port))
            await client.flush()


@asynchronous
async def test_random_cuts_never_reorder_or_repeat(server: ServerProcess) -> None:
    chance = random.Random(7)
    received: list[int] = []
    async with (
        FaultProxy(server.url) as proxy,
        await connect(proxy) as client,
        await penstock.connect(server.url) as observer,
    ):
        await observer.subscribe("cuts", callback=lambda m: received.append(int(m.payload)))
        await observer.flush()
        for number in range(20_000):
            await client.publish("cuts", b"%d" % number)
            if number % 500 == 499:
                await asyncio.sleep(chance.random() / 200)
                if chance.random() < 0.5:
                    proxy.cut()
        await settle(client)
        await client.publish("cuts", b"20000")
        await until(lambda: received and received[-1] == 20_000)

        assert client.connection.reconnects > 0
        # Core NATS delivers at most once: a cut may lose messages, nothing else.
        assert sorted(set(received)) == received


@pytest.mark.parametrize("program", PROGRAMS[1:], ids=lambda program: program.name)
@asynchronous
async def test_lame_duck_mode_is_announced(program: Program) -> None:
    config = "lame_duck_duration: '30s'\nlame_duck_grace_period: '1s'"
    announced: list[bool] = []
    with ServerProcess(program, config) as server:
        async with await penstock.connect(
            server.url, on_lame_duck=lambda: announced.append(True)
        ) as client:
            server.signal(signal.SIGUSR2)
            await until(lambda: announced)

            assert client.info["ldm"]
