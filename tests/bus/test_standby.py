"""One process reads for a service: the lease that says which, and what fences the others off."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import PROGRAMS, ServerProcess

import penstock
from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, SubscriberConfig
from penstock.bus.config.bus import PublisherConfig
from penstock.bus.config.nats import ConsumerConfig, JetStreamConfig, StreamConfig
from penstock.bus.engines.nats.lease import Lease
from penstock.bus.engines.nats.members.slots import Table
from penstock.bus.engines.nats.reader import STANDBY_LOOK_S
from penstock.bus.engines.nats.replay import stored_ns
from penstock.bus.engines.nats.source import GROUP, Source
from penstock.bus.testing import FaultProxy, PenstockServer
from penstock.errors import BusError, RequestTimeout

SUBJECT = "leases.billing"
SOON_S = 0.6
NEVER_S = 3600.0
SERVICE = Path(__file__).with_name("service.py")
UNBOUNDED = StreamConfig(max_bytes=0)
"""Nats-server sets aside as much disk as a stream may grow to."""


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> ServerProcess:
    return servers(request.param, "jetstream { store_dir: store }")


@asynccontextmanager
async def lease(
    server: ServerProcess,
    holder: str,
    takeover_s: float,
    lost: Callable[[], None] = lambda: None,
) -> AsyncIterator[Lease]:
    """A process that would like to read."""
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("leases", subjects=["leases.*"], max_msgs_per_subject=1)
        one = Lease(
            client,
            jetstream,
            subject=SUBJECT,
            holder=holder,
            takeover_s=takeover_s,
            lost=lost,
        )
        try:
            yield one
        finally:
            if one in client.connection.watchers:
                await one.close()


async def acquired(one: Lease) -> None:
    """Return once it is ours, as a standby waits for it."""
    while not await one.acquire():
        await one.news(0.05)


async def clear(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        if "leases" in await client.jetstream().streams.names():
            await client.jetstream().streams.delete("leases")


@asynchronous
async def test_one_has_it_and_the_next_gets_it_when_the_first_lets_go(
    server: ServerProcess,
) -> None:
    await clear(server)
    async with lease(server, "a", NEVER_S) as first, lease(server, "b", NEVER_S) as second:
        assert await first.acquire()
        assert not await second.acquire()
        waiting = asyncio.ensure_future(acquired(second))
        await first.close()
        await asyncio.wait_for(waiting, 20)

        assert (False, True) == (first.is_held, second.is_fresh)
        async with lease(server, "c", NEVER_S) as third:
            assert not await third.acquire()


@asynchronous
async def test_it_is_let_go_of_also_behind_a_renewal_whose_answer_nobody_heard(
    server: ServerProcess,
) -> None:
    await clear(server)
    async with lease(server, "a", NEVER_S) as first, lease(server, "b", NEVER_S) as second:
        assert await first.acquire()
        async with await penstock.connect(server.url) as client:
            await client.jetstream().publish(SUBJECT, b"a")
        await first.close()

        assert await second.acquire()


@asynchronous
async def test_a_silent_holder_is_replaced_and_learns_of_it(server: ServerProcess) -> None:
    await clear(server)
    lost: list[str] = []
    async with (
        lease(server, "a", SOON_S, lambda: lost.append("a")) as first,
        lease(server, "b", SOON_S) as second,
    ):
        assert await first.acquire()
        for _ in range(3):
            await asyncio.sleep(SOON_S)
            assert not await second.acquire(), "it is written again and again"
        # As a process does that is frozen.
        writing = first._write
        awake = asyncio.Event()

        async def frozen(holder: str, after: int, members: Table) -> bool:
            await awake.wait()
            return await writing(holder, after, members)

        first._write = frozen  # type: ignore[method-assign]
        await asyncio.wait_for(acquired(second), 20)
        assert not first.is_fresh, "it stops relying on it before another has it"
        awake.set()
        await until(lambda: lost == ["a"])

        assert (False, True) == (first.is_held, second.is_held)


@asynchronous
async def test_what_another_process_is_served_comes_back_before_anything_newer(
    server: ServerProcess,
) -> None:
    """The server is asked for messages behind the back of the process that reads."""
    consumer = ConsumerConfig(ack_wait=600.0)
    config = BusConfig(
        type="nats",
        namespace="snatched",
        service="billing",
        nats=NatsConfig(
            urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
        ),
    )
    async with EventBus(config) as bus, await penstock.connect(server.url) as other:
        numbers: list[int] = []

        async def handle(envelope: Envelope[int]) -> None:
            numbers.append(envelope.payload)

        await bus.subscribe_envelope("t", handle)
        await publish(bus, range(10))
        await until(lambda: len(numbers) == 10)
        place = "snatched.billing+t"
        for _ in range(20):
            start = len(await everything(bus))
            await other.request(
                f"$JS.API.CONSUMER.UNPIN.{place}", json.dumps({"group": GROUP}).encode()
            )
            snatched = asyncio.ensure_future(snatch(other, place))
            await publish(bus, range(start, start + 5))
            if await snatched:
                break
        else:
            pytest.fail("the process that reads was served every time")
        start = len(await everything(bus))
        await publish(bus, range(start, start + 5))
        await until(lambda: len(numbers) >= start + 5)

        assert list(range(start + 5)) == numbers


@pytest.mark.parametrize("way", ["freezes", "freezes on a thread"])
@asynchronous
async def test_a_process_that_was_frozen_begins_with_nothing_that_another_has_handled(
    server: ServerProcess, way: str
) -> None:
    keys, count, namespace = 4, 1000, f"n{os.urandom(6).hex()}"
    consumer = ConsumerConfig(takeover=1.0)
    config = BusConfig(
        type="nats",
        namespace=namespace,
        service="shop",
        nats=NatsConfig(
            urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
        ),
    )
    handled: set[int] = set()

    async def handle(envelope: Envelope[int]) -> None:
        handled.add(envelope.payload)

    async with EventBus(config) as bus:
        await bus.publish_envelope_batch(
            "orders",
            [
                Envelope(aggregate_id=f"k{n % keys}", event_type="t", payload=n)
                for n in range(count)
            ],
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SERVICE), server.url, namespace, "0", way),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            begun = {int(await process.stdout.readline()) for _ in range(3 * keys)}
            await bus.subscribe_envelope("orders", handle)
            process.send_signal(signal.SIGSTOP)
            last = set(range(count - keys, count))
            await until(lambda: last <= handled, 60)
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                while b"this process stands by" not in await process.stderr.readline():
                    pass
            process.send_signal(signal.SIGTERM)
            rest, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    begun.update(map(int, (line for line in rest.split() if line.isdigit())))
    assert 0 == process.returncode, said.decode()
    assert begun | handled == set(range(count))
    # Of each key one event was being handled, and the ack of the one before may not have left.
    assert len(begun & handled) <= 2 * keys


def test_a_service_goes_on_within_five_seconds_of_the_death_of_its_process() -> None:
    """The holder has written its lease just then, and the standby looks just before it may."""
    config = ConsumerConfig()

    assert config.takeover + STANDBY_LOOK_S + config.fetch_wait < 5.0


@pytest.mark.parametrize("takeover_s", [1.0, NEVER_S], ids=["a second", "never"])
@asynchronous
async def test_a_standby_takes_over_from_a_killed_process_when_its_lease_is_over(
    server: ServerProcess, takeover_s: float
) -> None:
    """By the times at which the server stored both names: nothing else decides when it may."""
    namespace = f"n{os.urandom(6).hex()}"
    jetstream = {"consumer": {"takeover": takeover_s}, "stream": {"max_bytes": 0}}
    nats = {"urls": server.url, "jetstream": jetstream}
    settings = {"type": "nats", "namespace": namespace, "service": "shop", "nats": nats}
    seen = asyncio.Event()

    async def handle(_: Envelope[int]) -> None:
        seen.set()

    async with EventBus.open(settings) as bus, await penstock.connect(server.url) as client:
        victim = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SERVICE), server.url, namespace, "0", f"takeover {takeover_s}"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await publish(bus, range(1), "orders")
            assert victim.stdout is not None
            assert await victim.stdout.readline() == b"0\n"
            await bus.subscribe_envelope("orders", handle)
            assert not bus.health().active
        finally:
            victim.kill()
            await victim.wait()
        before = await last_name(client, namespace)
        await publish(bus, range(1, 2), "orders")
        if takeover_s == NEVER_S:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(seen.wait(), 3.0)
            assert before == await last_name(client, namespace)
            return
        await asyncio.wait_for(seen.wait(), 60)
        after = await last_name(client, namespace)

    assert before[0] != after[0]
    # The rest is what a busy machine takes, not what the standby waits for.
    assert takeover_s < after[1] - before[1] < takeover_s + 30


@asynchronous
async def test_nothing_is_begun_while_the_lease_cannot_be_renewed(tmp_path: Path) -> None:
    """Another process might reach the server first."""
    takeover_s, numbers = 1.0, []
    with PenstockServer(tmp_path) as server:
        consumer = ConsumerConfig(takeover=takeover_s)
        nats = NatsConfig(
            urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
        )

        async def handle(envelope: Envelope[int]) -> None:
            numbers.append(envelope.payload)
            await asyncio.sleep(0.01)

        async with EventBus(BusConfig(type="nats", nats=nats)) as bus:
            await publish(bus, range(400))
            await bus.subscribe_envelope("t", handle)
            await until(lambda: len(numbers) > 5)
            server.kill()
            await asyncio.sleep(takeover_s)  # the time that is over then is what this is about
            begun = len(numbers)
            await asyncio.sleep(takeover_s / 2)
            assert begun == len(numbers) < 400
            server.start()
            await until(lambda: len(numbers) == 400, 60)

    assert list(range(400)) == numbers


@asynchronous
async def test_a_process_that_stops_while_it_lets_go_of_the_lease_closes_in_good_order(
    server: ServerProcess,
) -> None:
    """What runs on a thread keeps it from letting go, and a signal comes just then."""
    namespace = f"n{os.urandom(6).hex()}"
    may_end = threading.Event()
    ended: list[int] = []

    def handle(envelope: Envelope[int]) -> None:
        may_end.wait(60)
        ended.append(envelope.payload)

    consumer = ConsumerConfig(takeover=1.0)
    nats = NatsConfig(
        urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
    )
    bus = EventBus(BusConfig(type="nats", namespace=namespace, service="shop", nats=nats))
    async with bus, await penstock.connect(server.url) as other:
        await bus.subscribe_envelope("t", handle)
        await publish(bus, range(1))
        await until(lambda: bus.snapshot().in_flight == 1)
        # As another process takes it that has not heard of this one for a while.
        await other.jetstream().publish(f"{namespace}-leases.shop", b"another")
        await until(lambda: not bus.health().active)
        closing = asyncio.ensure_future(bus.close())
        await until(lambda: not bus.is_open)
        may_end.set()
        await asyncio.wait_for(closing, 30)

    assert ([0], 0) == (ended, bus.left_behind)


@asynchronous
async def test_a_function_that_waits_for_a_thread_is_not_begun_with_once_the_bus_closes(
    tmp_path: Path,
) -> None:
    """Nor does the bus wait for it, while it is not known whose turn it is."""
    takeover_s = 1.0
    may_end = threading.Event()
    begun: list[int] = []

    def handle(envelope: Envelope[int]) -> None:
        begun.append(envelope.payload)
        may_end.wait(60)

    with PenstockServer(tmp_path) as server:
        consumer = ConsumerConfig(takeover=takeover_s)
        nats = NatsConfig(
            urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
        )
        config = BusConfig(
            type="nats",
            service="shop",
            nats=nats,
            subscriber=SubscriberConfig(max_threads=1),
            shutdown_timeout=NEVER_S,
        )
        async with EventBus(config) as bus:
            events = [Envelope(aggregate_id=f"k{n}", event_type="t", payload=n) for n in range(2)]
            await bus.publish_envelope_batch("t", events)
            await bus.subscribe_envelope("t", handle)
            await until(lambda: bus.snapshot().in_flight == 2 and begun)
            server.kill()
            await asyncio.sleep(takeover_s)  # the time that is over then is what this is about
            closing = asyncio.ensure_future(bus.close())
            await until(lambda: not bus.is_open)
            may_end.set()
            await asyncio.sleep(0.1)  # a handler that is begun with now was seen by then
            server.start()
            await asyncio.wait_for(closing, 30)
        assert 1 == len(begun)

        async with EventBus(config) as bus:
            await bus.subscribe_envelope("t", handle)
            await until(lambda: len(begun) == 2)
    assert {0, 1} == set(begun)


@asynchronous
async def test_what_has_come_is_handled_also_if_the_server_cannot_be_asked_what_comes_first(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One topic has got a stream of its own, and waits for that answer. The other does not."""
    seen: dict[str, list[int]] = {"moved": [], "other": []}
    async with shop(server, f"n{os.urandom(6).hex()}") as bus:
        for topic, numbers in seen.items():
            await bus.subscribe(topic, lambda payload, seen=numbers: seen.append(int(payload)))
        await bus.publish("moved", b"-1")
        await bus.configure_topic("moved", retention=3600.0)

        async def away(stream: str, subject: str) -> int:
            raise RequestTimeout("no reply")

        with monkeypatch.context() as patched:
            patched.setattr(bus.engine._admin, "last_sequence", away)  # type: ignore[attr-defined]
            for number in range(50):
                await asyncio.gather(*(bus.publish(topic, b"%d" % number) for topic in seen))
            await until(lambda: len(seen["other"]) == 50)
        await until(lambda: len(seen["moved"]) == 51)

    assert {"moved": list(range(-1, 50)), "other": list(range(50))} == seen


@asynchronous
async def test_a_topic_that_moves_while_the_server_does_not_answer_is_read_once_it_does(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.bus")
    namespace = f"n{os.urandom(6).hex()}"
    seen: list[int] = []
    async with FaultProxy(server.url) as proxy, shop(server, namespace) as operator:
        nats = NatsConfig(urls=(proxy.url,), jetstream=JetStreamConfig(request_timeout=0.5))
        config = BusConfig(type="nats", namespace=namespace, service="shop", nats=nats)
        async with EventBus(config) as bus:
            await bus.subscribe("moved", lambda payload: seen.append(int(payload)))
            await operator.publish("moved", b"0")
            await until(lambda: seen == [0])
            proxy.drop("$JS.API.CONSUMER.INFO.>", count=None)
            await operator.configure_topic("moved", retention=3600.0)
            await until(lambda: "new streams cannot be seen" in caplog.text, 30)
            proxy.heal()
            await operator.publish("moved", b"1")
            await until(lambda: seen == [0, 1], 30)


@asynchronous
async def test_a_process_that_loses_the_lease_while_it_begins_to_read_reads_once_it_has_it_again(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was frozen just then, and that another has taken for dead."""
    namespace = f"n{os.urandom(6).hex()}"
    numbers: list[int] = []
    losses: list[int] = []
    unpin = Source.unpin
    consumer = ConsumerConfig(takeover=1.0)
    nats = NatsConfig(
        urls=(server.url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED)
    )
    bus = EventBus(BusConfig(type="nats", namespace=namespace, service="shop", nats=nats))
    async with bus, await penstock.connect(server.url) as other:
        reader: Any = bus.engine._reader  # type: ignore[attr-defined]

        async def lose_it_first(source: Source) -> None:
            if not losses:
                losses.append(1)
                await other.jetstream().publish(f"{namespace}-leases.shop", b"another")
                await until(lambda: not reader._lease.is_held)
            await unpin(source)

        async def handle(envelope: Envelope[int]) -> None:
            numbers.append(envelope.payload)

        monkeypatch.setattr(Source, "unpin", lose_it_first)
        await bus.subscribe_envelope("t", handle)
        await publish(bus, range(3))
        await until(lambda: len(numbers) == 3, 30)
        assert reader.is_active

    assert [0, 1, 2] == numbers


@asynchronous
async def test_a_topic_that_several_publishers_see_move_makes_none_of_them_wait_for_ever(
    server: ServerProcess,
) -> None:
    namespace = f"n{os.urandom(6).hex()}"
    async with FaultProxy(server.url) as proxy, shop(server, namespace) as operator:
        config = BusConfig(
            type="nats",
            namespace=namespace,
            nats=NatsConfig(urls=(proxy.url,)),
            publisher=PublisherConfig(publish_timeout=2.0),
        )
        async with EventBus(config) as bus:
            await bus.publish("busy", b"")
            await operator.configure_topic("moved", retention=3600.0)
            # Its target changes once earlier messages are stored, or have failed as this one does.
            proxy.drop(f"{namespace}.busy")
            lost = asyncio.ensure_future(bus.publish("busy", b""))
            publishing = [asyncio.ensure_future(bus.publish("moved", b"")) for _ in range(3)]
            await asyncio.wait(publishing, timeout=20)

            assert [True] * 3 == [one.done() for one in publishing]
            assert {1, 2, 3} == {one.result().sequence for one in publishing}  # type: ignore[union-attr]
            with pytest.raises(RequestTimeout):
                await lost


@asynchronous
async def test_a_consumer_that_somebody_deletes_is_made_again_and_goes_on_where_it_was(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = f"n{os.urandom(6).hex()}"
    seen: dict[str, list[int]] = {"orders.a": [], "orders.b": []}

    async def handle(envelope: Envelope[int]) -> None:
        seen[envelope.event_type].append(envelope.payload)

    async def write(bus: EventBus, numbers: range) -> None:
        for topic in seen:
            await bus.publish_envelope_batch(
                topic,
                [Envelope(aggregate_id="k", event_type=topic, payload=one) for one in numbers],
            )

    async with shop(server, namespace) as bus:
        await bus.subscribe_envelope("orders.a", handle)
    async with shop(server, namespace) as bus, await penstock.connect(server.url) as other:
        # The consumer that the earlier release has left is read along.
        await bus.subscribe_envelope("orders.*", handle)
        for end in (20, 40, 60):
            await write(bus, range(end - 20, end))
            await until(lambda: all(len(numbers) == end for numbers in seen.values()), 30)  # noqa: B023
            consumers = other.jetstream().consumers
            for name in await consumers.names(namespace):
                await consumers.delete(namespace, name)
        assert bus.health().active

    assert {"orders.a": list(range(60)), "orders.b": list(range(60))} == seen
    assert "the consumer `shop+orders+a`" in caplog.text
    assert "the consumer `shop+orders+@`" in caplog.text


def shop(server: ServerProcess, namespace: str) -> EventBus:
    nats = NatsConfig(urls=(server.url,))
    return EventBus(BusConfig(type="nats", namespace=namespace, service="shop", nats=nats))


@asynchronous
async def test_a_standby_whose_pattern_cannot_be_read_is_told_at_once(
    server: ServerProcess,
) -> None:
    namespace = f"n{os.urandom(6).hex()}"
    async with shop(server, namespace) as active, shop(server, namespace) as standby:
        await active.subscribe_envelope("orders.*", lambda _: None)
        with pytest.raises(BusError, match=r"`shop` has read `orders\.\*`"):
            await standby.subscribe_envelope("*.created", lambda _: None)


@asynchronous
async def test_a_standby_that_cannot_read_after_all_leaves_its_turn_to_another(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = f"n{os.urandom(6).hex()}"
    numbers: list[int] = []

    async def handle(envelope: Envelope[int]) -> None:
        numbers.append(envelope.payload)

    async with shop(server, namespace) as active, shop(server, namespace) as unable:
        await active.subscribe_envelope("first", handle)
        await unable.subscribe_envelope("*.created", handle)
        await active.subscribe_envelope("orders.*", handle)
        await active.close()
        await until(lambda: "`shop` has read `orders.*`" in caplog.text, 30)
        async with shop(server, namespace) as able:
            await able.subscribe_envelope("orders.*", handle)
            await publish(able, range(3), "orders.created")
            await until(lambda: len(numbers) == 3, 30)

    assert [0, 1, 2] == numbers


async def publish(bus: EventBus, numbers: Any, topic: str = "t") -> None:
    await bus.publish_envelope_batch(
        topic, [Envelope(aggregate_id="k", event_type="t", payload=one) for one in numbers]
    )


async def last_name(client: penstock.Client, namespace: str) -> tuple[str, float]:
    """Return whose name is on the lease, and when the server stored it."""
    subject = f"{namespace}-leases.shop"
    message = await client.jetstream().streams.get(f"{namespace}-leases", last_by_subj=subject)
    return json.loads(message.payload)["holder"], stored_ns(message.time) / 1e9


async def everything(bus: EventBus) -> list[int]:
    return [one.payload async for _, one in bus.replay("t")]


async def snatch(other: penstock.Client, place: str) -> bool:
    """Ask for messages, and tell whether some came."""
    wish = {"batch": 3, "group": GROUP, "expires": 300_000_000}
    async with await other.subscribe(other.new_inbox()) as replies:
        await other.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{place}", json.dumps(wish).encode(), reply=replies.subject
        )
        return (await replies.next(timeout_s=10)).status[0] == 0
