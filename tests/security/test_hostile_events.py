"""Hostile events towards the bus: each is a dead letter, the rest is handled, memory is bounded."""

from __future__ import annotations

import resource
import uuid
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.security.hostileevents import UNREADABLE, bombs, event
from tests.servers import PENSTOCK, ServerProcess

import penstock
from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, SubscriberConfig
from penstock.bus.deadletters.stored import DeadLetterBox
from penstock.bus.engines.nats.layout import Layout
from penstock.client import Client

MEGABYTE = 1 << 20
WAIT_S = 40.0


@pytest.fixture
def server(servers: Servers) -> ServerProcess:
    return servers(PENSTOCK, "jetstream { store_dir: store }")


@pytest.fixture
def config(server: ServerProcess) -> BusConfig:
    return BusConfig(
        type="nats",
        namespace=f"n{uuid.uuid4().hex}",
        nats=NatsConfig(urls=(server.url,)),
        subscriber=SubscriberConfig(max_attempts=2, backoff=0.001),
    )


class Numbers:
    """A handler that remembers amounts."""

    def __init__(self) -> None:
        self.amounts: list[int] = []

    async def __call__(self, envelope: Envelope[dict[str, Any]]) -> None:
        self.amounts.append(envelope.payload["amount"])


async def inject(client: Client, config: BusConfig, payload: bytes, **publish: Any) -> None:
    """Store what no publisher of ours would: somebody else may publish to the subject, too."""
    await client.jetstream().publish(f"{config.namespace}.orders", payload, **publish)


async def handled_around(
    config: BusConfig, hostile: list[tuple[bytes, Any]], *, url: str
) -> tuple[EventBus, list[int], list[Any]]:
    """Publish an event, hostile ones and an event; return what was handled and what is dead."""
    handler = Numbers()
    async with EventBus(config) as bus, await penstock.connect(url) as client:
        await bus.subscribe_envelope("orders", handler)
        await inject(client, config, event(payload={"amount": 1}))
        for payload, headers in hostile:
            await inject(client, config, payload, headers=headers)
        await inject(client, config, event(event_id="e-2", payload={"amount": 2}))
        await until(
            lambda: bus.metrics.dead_letters_total == len(hostile) and handler.amounts[-1:] == [2],
            WAIT_S,
        )
        letters = [letter async for letter in DeadLetterBox(bus).find()]
    return bus, handler.amounts, letters


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE)
@asynchronous
async def test_what_cannot_be_read_is_a_dead_letter_as_it_was(
    server: ServerProcess, config: BusConfig, payload: bytes
) -> None:
    _, amounts, letters = await handled_around(config, [(payload, None)], url=server.url)

    assert [1, 2] == amounts
    assert [payload] == [letter.payload for letter in letters]
    assert all(len(letter.cause) <= 1000 for letter in letters)


@asynchronous
async def test_bombs_are_dead_letters_and_fill_no_memory(
    server: ServerProcess, config: BusConfig
) -> None:
    hostile = [(bomb, None) for bomb in bombs().values() for _ in range(8)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _, amounts, letters = await handled_around(config, hostile, url=server.url)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before

    assert [1, 2] == amounts
    assert len(hostile) == len(letters)
    assert grown < 300 * MEGABYTE


HEADERS = {
    "a line feed in a value": b"X: a\nb",
    "a carriage return in a value": b"X: a\rb",
    "no name": b": value",
    "no value": b"X:",
    "no UTF-8": b"X\xff: \xff",
    "a name with spaces": b"  X Y : z",
    "a message id": b"Nats-Msg-Id: dead-letter",
    "an expectation": b"Nats-Expected-Last-Sequence: 999",
    "a roll-up": b"Nats-Rollup: all",
    "a dead letter's": b"Dead-Letter-Topic: other\r\nDead-Letter-Sequence: x",
    "many": b"\r\n".join(b"X-%d: y" % number for number in range(5000)),
    "a long one": b"X: " + b"y" * 100_000,
}


@pytest.mark.parametrize("lines", HEADERS.values(), ids=HEADERS)
@asynchronous
async def test_hostile_headers_of_an_unreadable_event_do_not_save_it(
    server: ServerProcess, config: BusConfig, lines: bytes
) -> None:
    handler = Numbers()
    block = b"NATS/1.0\r\n" + lines + b"\r\n\r\n"
    async with EventBus(config) as bus, await penstock.connect(server.url) as client:
        await bus.subscribe_envelope("orders", handler)
        # Headers of these kinds make the server refuse to store it, so it comes from a stream
        # that takes them: as a message that was stored under other rules would.
        await client.send(f"{config.namespace}.orders".encode(), b"garbage", block=block)
        await inject(client, config, event(payload={"amount": 2}))
        await until(lambda: handler.amounts == [2], WAIT_S)
        stored = await client.jetstream().streams.info(config.namespace)
        dead = stored["state"]["messages"] - 1
        await until(lambda: bus.metrics.dead_letters_total == min(dead, 1), WAIT_S)


@asynchronous
async def test_a_message_as_large_as_the_server_takes_becomes_a_dead_letter(
    server: ServerProcess, config: BusConfig
) -> None:
    """The reasons why it is dead need room as well, and there is none left."""
    _, amounts, letters = await handled_around(
        config, [(b"x" * (MEGABYTE - 50), None)], url=server.url
    )

    assert [1, 2] == amounts
    assert [(MEGABYTE - 50, True)] == [(one.cut_from, len(one.payload) > 1000) for one in letters]
    assert ["orders"] == [letter.topic for letter in letters]


@asynchronous
async def test_a_dead_letter_goes_back_to_where_it_came_from(
    server: ServerProcess, config: BusConfig
) -> None:
    """Whatever its headers say: whoever wrote them would choose the topic."""
    headers = {"Dead-Letter-Topic": "payments", "dead-letter-key": "b", "X": "kept"}
    _, _, [letter] = await handled_around(config, [(b"garbage", headers)], url=server.url)

    assert ("orders", [("X", "kept")]) == (letter.topic, letter.headers)


@asynchronous
async def test_subjects_that_are_no_text_stop_nobody(
    server: ServerProcess, config: BusConfig
) -> None:
    handler = Numbers()
    async with EventBus(config) as bus, await penstock.connect(server.url) as client:
        await bus.subscribe_envelope("orders", handler)
        await inject(client, config, event(payload={"amount": 1}))
        await client.send(config.namespace.encode() + b".orders\xff\xfe", event())
        await client.flush()
        await inject(client, config, event(event_id="e-2", payload={"amount": 2}))
        await until(lambda: handler.amounts == [1, 2], WAIT_S)


@asynchronous
async def test_a_hostile_dead_letter_hides_no_other(
    server: ServerProcess, config: BusConfig
) -> None:
    """Anybody may publish to the topic of dead letters."""
    async with EventBus(config) as bus, await penstock.connect(server.url) as client:
        await bus.subscribe_envelope("orders", Numbers())
        await inject(client, config, b"garbage")
        await until(lambda: bus.metrics.dead_letters_total == 1, WAIT_S)
        js = client.jetstream()
        subject = Layout(config.namespace).dead_subject("dead-letters.orders")
        for payload in UNREADABLE.values():
            headers = {"Dead-Letter-Sequence": "9" * 5000, "Dead-Letter-Time": "never"}
            await js.publish(subject, payload, headers=headers)
        letters = [letter async for letter in DeadLetterBox(bus).find()]

    assert 1 + len(UNREADABLE) == len(letters)
    assert b"garbage" in [letter.payload for letter in letters]
