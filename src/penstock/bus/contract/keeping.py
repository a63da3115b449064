"""Stored messages: replay by pattern, delete by number, dead-letter and bring back."""

from __future__ import annotations

from typing import Any

from penstock.bus.contract.world import TOPIC, Seen, World, event, scenario, until
from penstock.bus.deadletters.stored import DeadLetterBox, Selection
from penstock.bus.engine import ReplayFrom
from penstock.bus.replaying import Replay


@scenario
async def topics_are_read_again_by_pattern_however_they_are_kept(world: World) -> None:
    async with world.open() as bus:
        await bus.configure_topic("orders.limited", max_bytes=1024 * 1024)
        for number, topic in enumerate(("orders.plain", "orders.limited", "bills.plain")):
            await bus.publish_envelope_sync(topic, event(number))

        async def topics(pattern: str) -> list[str]:
            found = bus.engine.replay(pattern, ReplayFrom())
            return sorted([one.topic async for deliveries in found for one in deliveries])

        assert await topics("orders.*") == ["orders.limited", "orders.plain"]
        assert await topics("orders.limited") == ["orders.limited"]
        assert await topics("orders.plain") == ["orders.plain"]
        assert await topics("nothing.>") == []


@scenario
async def what_is_kept_can_be_listed_with_how_much_of_it_there_is(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 1}) as bus:
        if not bus.features.limits_messages and bus.config.strategy == "skip":
            return  # limits cannot be asked for where nothing may be managed
        seen = Seen()
        seen.failing = lambda _: True
        await bus.subscribe_envelope("orders.plain", seen)
        for _ in range(3):
            await bus.publish_envelope_sync("orders.plain", event(1))
        # What it has on the shared stream, if there is one, counts too.
        await bus.publish_envelope_sync("orders.limited", event(1))
        await bus.configure_topic("orders.limited", retention=3600.0)
        await bus.publish_envelope_sync("orders.limited", event(2))
        await until(lambda: bus.metrics.dead_letters_total == 3)
        topics = await bus.engine.topics()

        assert {"orders.limited": 2, "orders.plain": 3} == {
            topic: state.messages for topic, state in topics.items()
        }
        assert topics["orders.plain"].shared is bus.features.shares_storage
        assert not topics["orders.limited"].shared


@scenario
async def a_message_is_discarded_once_and_alone(world: World) -> None:
    async with world.open() as bus:
        receipts = await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        middle = receipts[1].sequence
        discarded = [
            await bus.engine.discard(TOPIC, n) for n in (middle, middle, middle + 1_000_000)
        ]

        assert discarded == [True, False, False]
        left = [envelope.payload["number"] async for _, envelope in bus.replay(TOPIC)]
        assert left == [0, 2]


@scenario
async def dead_letters_come_back_in_order_and_once(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 1}) as bus:
        seen = Seen()
        seen.failing = lambda _: True
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(5)])
        await until(lambda: bus.metrics.dead_letters_total == 5)
        seen.failing = lambda _: False
        box = DeadLetterBox(bus)
        await box.replay(Selection(topic=TOPIC, key="a"))
        await seen.count(5)

        assert seen.numbers() == list(range(5))
        assert [letter async for letter in box.find()] == []


@scenario
async def health_follows_the_number_of_dead_letters(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 1}) as bus:
        seen = Seen()
        seen.failing = lambda _: True
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_sync(TOPIC, event(0))
        await until(lambda: bus.health().dead_letters == 1)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(1, 5)])
        await until(lambda: bus.health().dead_letters == 5)
        box = DeadLetterBox(bus)
        first = await anext(box.find())
        await box.discard(Selection(numbers=frozenset((first.number,)), topic=TOPIC))
        await until(lambda: bus.health().dead_letters == 4)
        await box.discard(Selection(topic=TOPIC))
        await until(lambda: bus.snapshot().dead_letters == 0)


@scenario
async def dead_letters_outlive_the_events_that_come_after_them(world: World) -> None:
    async with world.open(stream={"max_msgs": 10}, subscriber={"max_attempts": 1}) as bus:
        seen = Seen()
        seen.failing = lambda one: one.payload["number"] == 0
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_sync(TOPIC, event(0))
        await until(lambda: bus.metrics.dead_letters_total == 1)
        for number in range(1, 50):
            await bus.publish_envelope_sync(TOPIC, event(number))

        letters = [letter async for letter in DeadLetterBox(bus).find()]
        assert [letter.cause for letter in letters] == ["RuntimeError: no 0"]


@scenario
async def a_topic_is_copied_in_order_and_once(world: World) -> None:
    async with world.open() as bus:
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % 3}") for n in range(30)])
        for _ in range(2 if bus.features.deduplicates else 1):
            assert await Replay(bus, TOPIC).into_topic("copies") == 30

        for key in range(3):
            copies: list[Any] = [one async for _, one in bus.replay("copies", key=f"k{key}")]
            assert [one.payload["number"] for one in copies] == list(range(key, 30, 3))
