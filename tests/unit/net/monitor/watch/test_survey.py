"""Surveys of a running server, one after another, with a clock of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import penstock
from penstock.client import Client
from penstock.net.monitor.pipelines import Pipelines
from penstock.net.monitor.watch.attention import findings
from penstock.net.monitor.watch.reports import Reports
from penstock.net.monitor.watch.survey import Surveyor, newest_cause
from penstock.net.server import Server
from penstock.protocol import headers

SECOND_NS = 1_000_000_000
FREE = 1 << 30
REPORT = {"name": "lake", "stream": "S", "batch": 1, "rows_per_s": 1, "behind_s": 0}


class World:
    """A server, a client, and a surveyor whose time a test sets."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.client = client
        self.now_s = 1000.0
        self.free = FREE
        self.pipelines = Pipelines(lambda: round(self.now_s * SECOND_NS))
        self.surveyor = Surveyor(
            server,
            self.pipelines,
            clock_ns=lambda: round(self.now_s * SECOND_NS),
            free_bytes=lambda directory: self.free,
        )

    def look(self, after_s: float = 5.0) -> Reports:
        self.now_s += after_s
        work = self.surveyor.survey()
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    async def store(self, count: int, subject: str = "s.a", **headers: str) -> None:
        jetstream = self.client.jetstream()
        await jetstream.publish_batch([(subject, b"x" * 100)] * count)

    def rules(self) -> list[str]:
        return [each.rule for each in findings(self.look())]


def play(act: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            Server(jetstream=True) as server,
            await penstock.connect(server.url, name="tester") as client,
        ):
            await act(World(server, client))

    asyncio.run(main())


def test_a_survey_tells_what_is_stored_and_how_fast() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=100)
        await js.consumers.create("S", durable_name="c", ack_policy="explicit", max_ack_pending=7)
        world.look()
        await world.store(50)
        reports = world.look(after_s=5)
        stream, consumer = reports.streams["$G", "S"], reports.consumers["$G", "S", "c"]

        assert (50, 50, 10.0, 0.5) == (stream.messages, stream.last, stream.rate, stream.fill)
        assert (50, 0, 7, -1) == (
            consumer.pending,
            consumer.unacked,
            consumer.unacked_max,
            consumer.pending_before,
        )
        assert FREE == reports.server.disk_free
        assert stream.bytes == reports.server.storage_bytes
        assert 50.0 == world.surveyor.history.last(("pending", "$G", "S", "c"), 0)

    play(act)


def test_a_consumer_that_a_limit_passes_loses_messages_until_it_does_no_more() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=100)
        await js.consumers.create("S", durable_name="c", ack_policy="explicit")
        world.look()
        await world.store(130)
        reports = world.look()
        assert 30 == reports.consumers["$G", "S", "c"].passed
        await world.store(20)
        assert 50 == world.look().consumers["$G", "S", "c"].passed
        assert 50 == world.look().consumers["$G", "S", "c"].passed
        assert 0 == world.look(after_s=61).consumers["$G", "S", "c"].passed

    play(act)


def test_a_consumer_that_keeps_up_with_a_full_stream_loses_nothing() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=100)
        await js.consumers.create("S", durable_name="c", ack_policy="none", deliver_policy="all")
        for _ in range(4):
            await world.store(90)
            world.look()
            messages = await js.pull_consumer("S", "c").fetch(90, expires_s=5)
            assert 90 == len(messages)
            assert 0 == world.look().consumers["$G", "S", "c"].passed

    play(act)


def test_a_filtered_consumer_loses_only_what_is_for_it() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=100)
        for name in ("a", "b"):
            await js.consumers.create(
                "S", durable_name=name, ack_policy="explicit", filter_subject=f"s.{name}"
            )
        await world.store(10, "s.a")
        world.look()
        await world.store(95, "s.b")
        reports = world.look()

        assert 5 == reports.consumers["$G", "S", "a"].passed
        assert 0 == reports.consumers["$G", "S", "b"].passed

    play(act)


def test_a_purge_is_no_loss() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=100)
        await js.consumers.create("S", durable_name="c", ack_policy="explicit")
        await world.store(100)
        world.look()
        await js.streams.purge("S")

        assert 0 == world.look().consumers["$G", "S", "c"].passed

    play(act)


def test_a_consumer_is_compared_with_what_it_was_a_minute_ago() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"])
        await js.consumers.create("S", durable_name="c", ack_policy="explicit")
        await world.store(200)
        assert [] == world.rules()
        await world.store(300)
        assert [] == world.rules(), "growth in a few seconds may be a burst"
        world.look(after_s=60)
        assert ["behind"] == world.rules()
        world.look(after_s=60)
        world.look(after_s=60)
        assert [] == world.rules(), "it grows no more"

    play(act)


def test_slow_clients_are_told_for_a_quarter_of_an_hour_with_the_last() -> None:
    async def act(world: World) -> None:
        world.look()
        broker = world.server.broker
        session = next(iter(broker.sessions.values()))
        assert session.transport is not None
        session.transport._cut_off("Slow Consumer (Pending Bytes)")
        reports = world.look()
        assert 1 == reports.server.slow_lately
        assert "`tester` from 127.0.0.1: Slow Consumer (Pending Bytes)" == reports.server.slow_last
        assert 1 == world.look(after_s=800).server.slow_lately
        assert 0 == world.look(after_s=200).server.slow_lately

    play(act)


def test_the_disk_is_full_when_the_growth_of_the_last_hour_goes_on() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"])
        await world.store(1)
        size = world.look().server.storage_bytes
        await world.store(599)
        assert -1.0 == world.look(after_s=100).server.disk_full_s, "too soon to tell"
        reports = world.look(after_s=500)
        grown = reports.server.storage_bytes - size
        expected_s = FREE / (grown / 600)
        assert abs(reports.server.disk_full_s - expected_s) < expected_s / 100
        world.free = 0
        assert ["disk"] == world.rules()

    play(act)


def test_a_pipeline_stands_still_when_its_stream_goes_on_without_it() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"])
        world.pipelines.keep("$G", REPORT | {"behind_messages": 0})
        world.look()
        await world.store(20)
        assert [] == world.rules()
        (pipeline,) = world.look(after_s=60).pipelines
        assert 20 == pipeline.stored_since
        assert ["standstill"] == world.rules()
        world.pipelines.keep("$G", REPORT | {"behind_messages": 0})
        assert [] == world.rules()

    play(act)


def test_dead_letters_are_told_without_their_content() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        for name in ("shop", "shop-dead"):
            await js.streams.create(name, subjects=[f"{name}.>"])
        dead = {
            "Dead-Letter-Topic": "orders.placed",
            "Dead-Letter-Service": "billing",
            "Dead-Letter-Cause": "ValueError: card 4111 1111 1111 1111",
        }
        await js.publish("shop-dead.dead-letters.orders.placed", b"{}", headers=dead)
        reports = world.look()
        newest = reports.streams["$G", "shop-dead"].newest
        assert "of `orders.placed` with ValueError by `billing`" == newest
        assert ["dead_letters"] == world.rules()

    play(act)


def test_a_dead_letter_of_somebody_else_says_what_it_can() -> None:
    odd: list[tuple[str, str]] = [("Dead-Letter-Cause", "x" * 5000)]

    assert "" == newest_cause(headers.encode([("other", "1")]))
    assert len(newest_cause(headers.encode(odd))) < 200


def test_what_is_gone_is_forgotten() -> None:
    async def act(world: World) -> None:
        js = world.client.jetstream()
        await js.streams.create("S", subjects=["s.>"], max_msgs=10)
        await js.consumers.create("S", durable_name="c", ack_policy="explicit")
        world.look()
        await world.store(30)
        assert ["losing"] == world.rules()
        await js.streams.delete("S")
        assert [] == world.rules()
        kept: dict[str, Any] = vars(world.surveyor)
        assert {} == kept["_passed"] == kept["_newest"] == kept["_heard"]

    play(act)


def test_a_report_of_a_pipeline_comes_over_the_wire() -> None:
    async def act(world: World) -> None:
        world.server.broker.directory.install(world.pipelines.listen)
        report = json.dumps(REPORT | {"behind_messages": 3}).encode()
        await world.client.publish("$PENSTOCK.PIPELINE", report)
        await world.client.flush()
        assert ["lake"] == [each.name for each in world.look().pipelines]

    play(act)
