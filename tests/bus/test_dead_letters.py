"""Dead letters: found by what they are, sent back once and in order, or thrown away."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import PROGRAMS, ServerProcess

from penstock.bus import (
    BusConfig,
    ConsumerConfig,
    Envelope,
    EventBus,
    JetStreamConfig,
    NatsConfig,
    SubscriberConfig,
)
from penstock.bus.deadletters.stored import DeadLetterBox, Selection
from penstock.bus.testing import PenstockServer
from penstock.errors import BusError

JETSTREAM = "jetstream { store_dir: store }"


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> ServerProcess:
    return servers(request.param, JETSTREAM)


@pytest.fixture
def config(server: ServerProcess, request: pytest.FixtureRequest) -> BusConfig:
    name = "".join(filter(str.isalnum, request.node.name))
    return BusConfig(
        type="nats",
        namespace=f"d{abs(hash(name)):x}",
        nats=NatsConfig(urls=(server.url,)),
        subscriber=SubscriberConfig(max_attempts=2, backoff=0.001),
    )


def event(number: int, key: str = "a", event_type: str = "numbered") -> Envelope[Any]:
    return Envelope(aggregate_id=key, event_type=event_type, payload={"number": number})


class Picky:
    """A handler that refuses until told otherwise."""

    def __init__(self) -> None:
        self.refuses = True
        self.numbers: list[int] = []

    async def __call__(self, envelope: Envelope[Any]) -> None:
        if self.refuses:
            raise ValueError(f"no {envelope.payload['number']}")
        self.numbers.append(envelope.payload["number"])


async def bury(bus: EventBus, topic: str, *events: Envelope[Any]) -> Picky:
    handler = Picky()
    await bus.subscribe_envelope(topic, handler)
    before = bus.metrics.dead_letters_total
    await bus.publish_envelope_batch(topic, events)
    await until(lambda: bus.metrics.dead_letters_total == before + len(events))
    return handler


@asynchronous
async def test_a_dead_letter_tells_cause_history_and_origin(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        await bury(bus, "orders.new", event(7, "k"))
        (letter,) = [one async for one in DeadLetterBox(bus).find()]

        assert ("orders.new", "k", "numbered", "penstock") == (
            letter.topic,
            letter.key,
            letter.event_type,
            letter.service,
        )
        assert ("ValueError: no 7", ("ValueError: no 7",) * 2) == (letter.cause, letter.attempts)
        assert datetime.now(UTC) - letter.time < timedelta(minutes=1)
        assert letter == await DeadLetterBox(bus).show(letter.number)
        with pytest.raises(BusError, match="no dead letter 999"):
            await DeadLetterBox(bus).show(999)


@asynchronous
async def test_dead_letters_are_found_by_topic_key_type_and_time(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        await bury(bus, "orders", event(1, "a"), event(2, "b", "other"))
        between = datetime.now(UTC)
        await bury(bus, "bills", event(3, "a"))

        async def numbers(**wanted: Any) -> list[int]:
            found = DeadLetterBox(bus).find(Selection(**wanted))
            return sorted([one.envelope.payload["number"] async for one in found if one.envelope])

        assert [1, 2, 3] == await numbers()
        assert [1, 2] == await numbers(topic="orders")
        assert [1, 3] == await numbers(key="a")
        assert [2] == await numbers(event_type="other")
        assert [3] == await numbers(since=between)
        assert [1, 2] == await numbers(until=between)
        assert [] == await numbers(topic="orders", since=between)
        assert [] == await numbers(service="another")


@asynchronous
async def test_a_dead_letter_topic_may_have_limits_of_its_own(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        await bus.configure_topic("dead-letters.orders", max_msgs=10)
        await bury(bus, "orders", event(1))
        await bury(bus, "bills", event(2))
        box = DeadLetterBox(bus)

        assert 2 == len([one async for one in box.find()])
        assert 1 == len(await box.discard(Selection(topic="orders")))
        assert ["bills"] == [one.topic async for one in box.find()]


@asynchronous
async def test_dead_letters_are_bounded_loudly_and_none_is_evicted(
    config: BusConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(config, subscriber=replace(config.subscriber, max_dead_letters=2))
    async with EventBus(config) as bus:
        handler = await bury(bus, "orders", event(1, "a"), event(2, "b"))
        assert 1 <= bus.health().dead_letters <= 2
        assert "dead letters are kept, of 2 at most" in caplog.text
        await bus.publish_envelope_sync("orders", event(3, "c"))
        await until(lambda: "no room for a dead letter" in bus.health().parked_keys.get("c", ""))
        # Others are neither evicted nor in the way of publishing.
        box = DeadLetterBox(bus)
        assert ["a", "b"] == sorted([letter.key async for letter in box.find()])
        await box.discard(Selection(key="a"))
        await until(lambda: bus.metrics.dead_letters_total == 3)

        assert ["b", "c"] == sorted([letter.key async for letter in box.find()])
        assert [] == handler.numbers


@asynchronous
async def test_a_number_that_several_topics_have_needs_the_topic(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        for topic in ("orders", "bills"):
            await bus.configure_topic(f"dead-letters.{topic}", max_msgs=10)
            await bury(bus, topic, event(1))
        box = DeadLetterBox(bus)

        with pytest.raises(BusError, match="`bills`, `orders`; hint: name the topic"):
            await box.discard(Selection(numbers=frozenset((1,))))
        assert 1 == len(await box.discard(Selection(topic="bills", numbers=frozenset((1,)))))


@asynchronous
async def test_a_dead_letter_that_cannot_be_handled_either_stays_where_it_is(
    config: BusConfig,
) -> None:
    async with EventBus(config) as bus:
        for pattern in ("dead-letters.*", "orders"):
            await bus.subscribe_envelope(pattern, Picky())
        await bus.publish_envelope_sync("orders", event(1))
        await until(lambda: bus.metrics.dead_letters_total == 2)
        await bus.drain()
        await bus.engine.flush()

        assert [1] == [one.envelope.payload["number"] async for one in DeadLetterBox(bus).find()]
        assert 0 == (await bus.backlog()).messages


@asynchronous
async def test_a_dead_letter_that_waits_for_its_server_is_not_taken_for_a_slow_handler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What is begun while the server is away: the lease lasts, as it does for a short outage.
    consumer = ConsumerConfig(takeover=3600.0)
    with PenstockServer(tmp_path) as server:
        settings = BusConfig(
            type="nats",
            nats=NatsConfig(urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer)),
            subscriber=SubscriberConfig(max_attempts=1, process_timeout=0.5, backoff=0.001),
        )
        async with EventBus(settings) as bus:

            async def handle(_: Envelope[Any]) -> None:
                await asyncio.to_thread(server.kill)
                raise ValueError("no")

            await bus.subscribe_envelope("orders", handle)
            await bus.publish_envelope_sync("orders", event(1, "k"))
            late = "DeadlineExceeded: its dead letter was not stored within 0.5 s: the broker is"
            await until(lambda: late in bus.health().parked_keys.get("k", ""), 30)
            await asyncio.to_thread(server.start)
            await until(lambda: bus.metrics.dead_letters_total == 1, 60)
            letters = [one async for one in DeadLetterBox(bus).find()]

    assert ["ValueError: no"] == [letter.cause for letter in letters]
    assert "HandlerTimeout" not in caplog.text


@asynchronous
async def test_replayed_letters_are_handled_in_order_and_are_gone(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        handler = await bury(bus, "orders", *(event(n) for n in range(5)))
        handler.refuses = False
        replayed = await DeadLetterBox(bus).replay(Selection(key="a"))
        await until(lambda: len(handler.numbers) == 5)

        assert list(range(5)) == handler.numbers
        assert 5 == len(replayed)
        assert [] == [one async for one in DeadLetterBox(bus).find()]


@asynchronous
async def test_letters_are_handled_without_bothering_other_services(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        await bury(bus, "orders", *(event(n) for n in range(4)))
        numbers: list[int] = []

        def take(envelope: Envelope[Any]) -> None:
            if envelope.payload["number"] == 3:
                raise ValueError("not this one")
            numbers.append(envelope.payload["number"])

        with pytest.raises(ValueError, match="not this one"):
            await DeadLetterBox(bus).handle(take, Selection(topic="orders"))
        left = [one async for one in DeadLetterBox(bus).find()]
        stored = [one async for one in bus.replay("orders")]

        assert [0, 1, 2] == numbers
        assert [3] == [one.envelope.payload["number"] for one in left if one.envelope]
        assert 4 == len(stored)  # nothing was published again


@asynchronous
async def test_a_letter_whose_replay_was_cut_off_is_stored_once(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        handler = await bury(bus, "orders", event(1))
        handler.refuses = False
        (letter,) = [one async for one in DeadLetterBox(bus).find()]
        message_id = f"replay:{letter.place}:{letter.number}"
        await bus.publish("orders", letter.payload, message_id=message_id)
        await DeadLetterBox(bus).replay(Selection(numbers=frozenset((letter.number,))))
        await bus.publish_envelope("orders", event(2))
        await until(lambda: 2 in handler.numbers)

        assert [1, 2] == handler.numbers


@asynchronous
async def test_a_replay_that_is_cancelled_ends_behind_a_letter(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        handler = await bury(bus, "orders", *(event(n, f"k{n}") for n in range(3)))
        handler.refuses = False
        box, discard = DeadLetterBox(bus), bus.engine.discard
        sent, went = asyncio.Event(), []

        async def discard_slowly(topic: str, sequence: int) -> bool:
            sent.set()
            await asyncio.sleep(0.05)
            return await discard(topic, sequence)

        bus.engine.discard = discard_slowly  # type: ignore[method-assign]

        async def replay() -> None:
            async for letter in box.replaying(Selection()):
                went.append(letter.number)

        replaying = asyncio.ensure_future(replay())
        await sent.wait()
        replaying.cancel()
        await asyncio.wait((replaying,))

        assert (True, 1) == (replaying.cancelled(), len(went))
        assert 4 == len([one async for one in bus.replay("orders")])
        assert 2 == len([one async for one in box.find()])


@asynchronous
async def test_what_cannot_be_read_is_a_letter_too(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        handler = Picky()
        await bus.subscribe_envelope("orders", handler)
        await bus.publish("orders", b"\xff no envelope", headers=[("Color", "red")])
        await until(lambda: bus.metrics.dead_letters_total == 1)
        (letter,) = [one async for one in DeadLetterBox(bus).find()]

        assert (b"\xff no envelope", None, "") == (
            letter.payload,
            letter.envelope,
            letter.event_type,
        )
        assert [("Color", "red")] == letter.headers
        assert "InvalidEnvelope" in letter.cause


@asynchronous
async def test_what_is_given_up_is_logged_with_where_it_failed(
    config: BusConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with EventBus(config) as bus:
        await bus.subscribe_envelope("orders", Picky())
        await bus.publish("orders", b"\xff no envelope")
        await bus.publish_envelope_sync("orders", event(7))
        await until(lambda: bus.metrics.dead_letters_total == 2)
    told = [one for one in caplog.records if one.levelno == logging.ERROR]

    assert ["InvalidEnvelope", "ValueError"] == [one.exc_info[0].__name__ for one in told]
    assert "of `orders` cannot be read, and becomes a dead letter" in told[0].getMessage()
    assert "`orders` of a, attempt 2 of 2: ValueError: no 7" in told[1].getMessage()


MAX_PAYLOAD = 1024 * 1024


class PickyAboutBytes:
    """A handler of bytes that refuses until told otherwise."""

    def __init__(self) -> None:
        self.refuses = True
        self.sizes: list[int] = []

    async def __call__(self, payload: bytes) -> None:
        if self.refuses:
            raise ValueError("no" * 900)
        self.sizes.append(len(payload))


async def bury_bytes(bus: EventBus, *sizes: int) -> PickyAboutBytes:
    handler = PickyAboutBytes()
    await bus.subscribe("large", handler)
    for size in sizes:
        await bus.publish("large", b"x" * size)
    await until(lambda: bus.metrics.dead_letters_total == len(sizes))
    return handler


@asynchronous
async def test_a_large_event_is_kept_whole_where_only_its_history_leaves_too_little_room(
    config: BusConfig,
) -> None:
    async with EventBus(config) as bus:
        await bury_bytes(bus, MAX_PAYLOAD - 3000, MAX_PAYLOAD - 50)
        letters = [one async for one in DeadLetterBox(bus).find()]
        whole, cut = sorted(letters, key=lambda letter: letter.cut_from)

        assert (MAX_PAYLOAD - 3000, 0, ()) == (len(whole.payload), whole.cut_from, whole.attempts)
        assert whole.cause.startswith("ValueError: nono")
        # Of what is cut there is room for all that is known.
        assert (MAX_PAYLOAD - 50, 2) == (cut.cut_from, len(cut.attempts))
        assert "in __call__" in cut.trace


def test_the_list_shows_the_beginning_of_a_long_cause(config: BusConfig) -> None:
    @asynchronous
    async def fill() -> None:
        async with EventBus(config) as bus:
            await bury_bytes(bus, 10)

    fill()
    (server,) = config.nats.urls
    listed = penstock("dlq", "list", "--server", server, "--namespace", config.namespace).stdout
    _, row = listed.splitlines()
    assert row.endswith("nono…")
    assert len(row) < 400


@asynchronous
async def test_a_letter_that_was_cut_is_replayed_from_its_topic(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        sizes = [10, MAX_PAYLOAD - 50, 20]
        handler = await bury_bytes(bus, *sizes)
        handler.refuses = False
        await DeadLetterBox(bus).replay(Selection(topic="large"))
        await until(lambda: len(handler.sizes) == 3)

        assert sizes == sorted(handler.sizes, key=sizes.index)
        assert [] == [one async for one in DeadLetterBox(bus).find()]


@asynchronous
async def test_a_letter_whose_end_is_lost_keeps_no_other_back(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        handler = await bury_bytes(bus, 10, MAX_PAYLOAD - 50, 20)
        box = DeadLetterBox(bus)
        (lost,) = [one async for one in box.find() if one.cut_from]
        await bus.engine.discard("large", lost.sequence)
        handler.refuses = False
        with pytest.raises(BusError, match=f"lost their end.* {lost.number}; hint"):
            await box.replay(Selection(topic="large"))
        await until(lambda: len(handler.sizes) == 2)

        assert {10, 20} == set(handler.sizes)
        assert [lost.number] == [one.number async for one in box.find()]


@asynchronous
async def test_what_others_put_among_the_letters_hides_none(config: BusConfig) -> None:
    async with EventBus(config) as bus:
        odd = [("Dead-Letter-Time", "noon"), ("Dead-Letter-Sequence", "many")]
        await bus._publisher.store("dead-letters.orders", b"odd", headers=odd)
        await bus._publisher.store("dead-letters.orders", b"bare")
        await bury(bus, "orders", event(1))
        letters = [one async for one in DeadLetterBox(bus).find()]

        assert ["orders"] * 3 == [letter.topic for letter in letters]
        assert [b"odd", b"bare"] == [letter.payload for letter in letters[:2]]
        assert datetime.now(UTC) - letters[0].time < timedelta(minutes=1)


COMMAND = str(Path(sys.executable).parent / "penstock")


def penstock(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *arguments]
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("server", PROGRAMS[:1], indirect=True, ids=["penstock"])
def test_the_command_lists_shows_replays_and_discards(
    config: BusConfig, server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "bus.yaml"
    file.write_text(
        f"eventbus: {{type: nats, namespace: {config.namespace}, nats: {{urls: {server.url}}}}}"
    )

    @asynchronous
    async def fill() -> None:
        async with EventBus(config) as bus:
            await bury(bus, "orders", *(event(n, f"k{n}") for n in range(3)))

    fill()
    bus = ("--bus", str(file))
    rows = penstock("dlq", "list", "--json", *bus).stdout.splitlines()
    letters = sorted(map(json.loads, rows), key=lambda letter: letter["key"])
    first = str(letters[0]["number"])
    shown = penstock("dlq", "show", first, "--topic", "orders", *bus)
    elsewhere = penstock("dlq", "show", first, "--topic", "bills", *bus)
    careless = penstock("dlq", "discard", *bus)
    discarded = penstock("dlq", "discard", first, *bus)
    replayed = penstock("dlq", "replay", "--key", "k1", "--since", "1h", *bus)
    left = penstock("dlq", "list", *bus).stdout

    assert ["k0", "k1", "k2"] == [letter["key"] for letter in letters]
    assert "a line for each" in penstock("dlq", "list", "--help").stdout
    assert "attempt  2. ValueError: no 0" in shown.stdout
    assert (1, "") == (elsewhere.returncode, elsewhere.stdout)
    assert (2, True) == (careless.returncode, "no selection" in careless.stderr)
    assert "1 discarded" in discarded.stdout
    assert "1 replayed" in replayed.stdout
    assert ("k2" in left, "k1" in left, "k0" in left) == (True, False, False)
    assert 1 == penstock("dlq", "replay", "--key", "k1", *bus).returncode


@pytest.mark.parametrize("server", PROGRAMS, indirect=True, ids=lambda program: program.name)
def test_the_command_looks_at_every_bus_of_the_server_it_is_told(
    config: BusConfig, server: ServerProcess
) -> None:
    other = replace(config, namespace="shop")

    @asynchronous
    async def fill() -> None:
        for number, one in enumerate((config, other)):
            async with EventBus(one) as bus:
                await bury(bus, "orders", event(number, f"k{number}"))

    fill()
    for listed in (
        penstock("dlq", "list", "--server", server.url, "--json"),
        penstock("dlq", "list", "--json", NATS_URL=server.url),
        penstock("dlq", "list", "--json", "--bus", server.url),
    ):
        letters = [json.loads(line) for line in listed.stdout.splitlines()]
        found = {letter["bus"]: letter["key"] for letter in letters}
        # The server is that of other tests as well.
        assert found.items() >= {(config.namespace, "k0"), ("shop", "k1")}, listed.stderr
    at = ("-s", server.url)
    one = penstock("dlq", "list", "--namespace", "shop", *at)
    nothing = penstock("dlq", "list", "--namespace", "void", *at)
    other = penstock("dlq", "list", "--namespace", "shop", "--key", "k9", *at)
    unclear = penstock("dlq", "discard", "--all", *at)
    (number,) = (str(letter["number"]) for letter in letters if letter["bus"] == "shop")
    shown = penstock("dlq", "show", number, "--namespace", "shop", *at)
    discarded = penstock("dlq", "discard", "--all", "--namespace", "shop", *at)

    assert ("k1" in one.stdout, "k0" in one.stdout) == (True, False)
    assert (0, True) == (nothing.returncode, "no dead letters in `void`" in nothing.stderr)
    assert "none of the dead letters asked for in `shop`" in other.stderr
    assert (2, True) == (unclear.returncode, "hint: --namespace" in unclear.stderr)
    assert "in __call__" in shown.stdout
    assert "1 discarded" in discarded.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("server", PROGRAMS[:1], indirect=True, ids=["penstock"])
def test_a_replay_that_is_interrupted_says_how_many_went_and_goes_on(
    config: BusConfig, server: ServerProcess, number: signal.Signals
) -> None:
    count = 600

    @asynchronous
    async def fill() -> None:
        async with EventBus(config) as bus:
            await bury(bus, "orders", *(event(n, f"k{n}") for n in range(count)))

    fill()
    at = ("--all", "--server", server.url, "--namespace", config.namespace)
    command = [COMMAND, "dlq", "replay", *at]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as replaying:
        assert replaying.stdout is not None
        assert replaying.stderr is not None
        replaying.stdout.readline()
        replaying.send_signal(number)
        # `communicate` would leave out what `readline` has read ahead.
        rows, said = replaying.stdout.read(), replaying.stderr.read()
        replaying.wait(60)
    went = len(rows.splitlines()) + 1
    assert (130, went < count) == (replaying.returncode, True)
    assert f"{went} of {count} replayed" in said
    left = penstock("dlq", "list", "--server", server.url, "--namespace", config.namespace)
    assert count - went == len(left.stdout.splitlines()) - 1
    rest = penstock("dlq", "replay", *at)
    assert f"{count - went} replayed" in rest.stdout

    @asynchronous
    async def check() -> None:
        async with EventBus(config) as bus:
            stored = [one async for one in bus.replay("orders")]
            # Each once when it was published, and once when it was replayed.
            assert 2 * count == len(stored)

    check()
