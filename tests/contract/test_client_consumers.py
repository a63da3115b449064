"""Our client's consumers, on every server that has them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.contract.streams import filled_stream, fresh_stream, payloads
from tests.servers import Program, ServerProcess

import penstock
from penstock.bus.testing import FaultProxy
from penstock.client import Message
from penstock.errors import JetStreamError, NoResponders, RequestTimeout


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program, "jetstream { store_dir: store }")


@asynchronous
async def test_a_fetch_returns_as_much_as_there_is(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 25)
        consumer = jetstream.pull_consumer("S", "C")

        sizes = []
        received: list[Message] = []
        for _ in range(3):
            batch = await consumer.fetch(10, expires_s=0.2)
            sizes.append(len(batch))
            received += batch
            for message in batch:
                await message.ack()

        assert ([10, 10, 5], payloads(25)) == (sizes, [m.payload for m in received])
        assert [] == await consumer.fetch(10, no_wait=True)
        await client.flush()
        assert 0 == (await consumer.info())["num_ack_pending"]


@asynchronous
async def test_a_fetch_that_waits_gets_what_comes(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 0)
        consumer = jetstream.pull_consumer("S", "C")
        fetch = asyncio.ensure_future(consumer.fetch(2, expires_s=10, heartbeat_s=1))
        await jetstream.publish("s.a", b"0")
        await jetstream.publish("s.a", b"1")

        assert payloads(2) == [message.payload for message in await fetch]


@asynchronous
async def test_fetches_of_one_handle_take_turns(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 40)
        consumer = jetstream.pull_consumer("S", "C")

        batches = await asyncio.gather(*[consumer.fetch(10) for _ in range(4)])

        assert payloads(40) == [message.payload for batch in batches for message in batch]


@asynchronous
async def test_fetching_from_nobody_is_an_error(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        with pytest.raises(NoResponders):
            await jetstream.pull_consumer("S", "missing").fetch(1)


@asynchronous
async def test_a_deleted_consumer_ends_a_waiting_fetch(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 0)
        consumer = jetstream.pull_consumer("S", "C")
        fetch = asyncio.ensure_future(consumer.fetch(1, expires_s=30))
        await client.flush()
        await jetstream.consumers.delete("S", "C")

        with pytest.raises(JetStreamError, match="Consumer Deleted"):
            await fetch


@pytest.mark.parametrize("in_batches", [False, True])
@asynchronous
async def test_consuming_takes_everything_in_order(server: ServerProcess, in_batches: bool) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 2000)
        received: list[bytes] = []
        async with jetstream.pull_consumer("S", "C").consume(batch=100) as messages:
            if in_batches:
                async for batch in messages.batches():
                    received += [message.payload for message in batch]
                    assert messages.pending_messages <= 100
                    for message in batch:
                        await message.ack()
                    if len(received) == 2000:
                        break
            else:
                async for message in messages:
                    received.append(message.payload)
                    await message.ack()
                    if len(received) == 2000:
                        break

        assert payloads(2000) == received


@asynchronous
async def test_consuming_goes_on_when_a_request_expires(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 1)
        consumer = jetstream.pull_consumer("S", "C")
        async with consumer.consume(expires_s=0.1, heartbeat_s=0.05) as messages:
            assert b"0" == (await anext(messages)).payload
            await asyncio.sleep(0.25)  # Two requests expire meanwhile: that is the condition.
            await jetstream.publish("s.a", b"1")

            assert b"1" == (await anext(messages)).payload


@asynchronous
async def test_consuming_ends_with_the_consumer(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 0)
        async with jetstream.pull_consumer("S", "C").consume() as messages:
            await client.flush()
            await jetstream.consumers.delete("S", "C")

            with pytest.raises(JetStreamError, match="Consumer Deleted"):
                await anext(messages)


@asynchronous
async def test_consuming_survives_cuts(server: ServerProcess) -> None:
    async with (
        await penstock.connect(server.url) as observer,
        FaultProxy(server.url) as proxy,
        await penstock.connect(proxy.url, reconnect_wait_s=0.01) as client,
    ):
        await filled_stream(observer.jetstream(), 3000, ack_wait=timedelta(seconds=1))
        seen: set[bytes] = set()
        consumer = client.jetstream().pull_consumer("S", "C")
        async with consumer.consume(batch=200) as messages:
            async for message in messages:
                seen.add(message.payload)
                await message.ack()
                if len(seen) in (500, 1500, 2500):
                    proxy.cut()
                if len(seen) == 3000:
                    break

        assert 3 == client.connection.reconnects


@asynchronous
async def test_each_way_to_settle_does_what_it_says(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 4, ack_wait=timedelta(milliseconds=400))
        consumer = jetstream.pull_consumer("S", "C")
        acked, refused, ended, slow = await consumer.fetch(4)
        await acked.ack_sync()
        await refused.nak()
        await ended.term("no use")
        again = (await consumer.fetch(1, expires_s=5))[0]
        await again.ack_sync()
        for _ in range(3):
            await asyncio.sleep(0.2)  # Longer in all than the ack wait, which it restarts.
            await slow.in_progress()
        await client.flush()

        assert (b"1", 2) == (again.payload, again.metadata.deliveries)
        assert (1, 1, 3) == (
            slow.metadata.deliveries,
            (await consumer.info())["num_ack_pending"],
            acked.metadata.pending,
        )
        assert [] == await consumer.fetch(1, no_wait=True)
        await slow.nak(delay_s=0.05)
        assert b"3" == (await consumer.fetch(1, expires_s=5))[0].payload


@asynchronous
async def test_metadata_says_where_a_message_comes_from(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 2)
        first, _ = await jetstream.pull_consumer("S", "C").fetch(2)

        metadata = first.metadata
        assert ("S", "C", 1, 1, 1, 1) == (
            metadata.stream,
            metadata.consumer,
            metadata.deliveries,
            metadata.stream_sequence,
            metadata.consumer_sequence,
            metadata.pending,
        )


@asynchronous
async def test_a_push_consumer_delivers_and_flow_control_stays_out_of_sight(
    server: ServerProcess,
) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 0)
        await jetstream.publish_batch([("s.a", bytes(1000))] * 5000)
        await jetstream.consumers.create(
            "S",
            durable_name="P",
            deliver_subject=client.new_inbox(),
            ack_policy="none",
            flow_control=True,
            idle_heartbeat=timedelta(milliseconds=100),
        )
        async with await jetstream.push_consumer("S", "P") as consumer:
            received = [await consumer.next(timeout_s=5) for _ in range(5000)]

            assert list(range(1, 5001)) == [m.metadata.stream_sequence for m in received]
            later = asyncio.ensure_future(consumer.next(timeout_s=10))
            await until(lambda: consumer.subscription.received > 5002)
            await jetstream.publish("s.a", b"later")
            assert b"later" == (await later).payload


@asynchronous
async def test_heartbeats_do_not_put_off_the_timeout_of_a_push_consumer(
    server: ServerProcess,
) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 0)
        await jetstream.consumers.create(
            "S",
            durable_name="P",
            deliver_subject=client.new_inbox(),
            ack_policy="none",
            idle_heartbeat=timedelta(milliseconds=100),
        )
        async with await jetstream.push_consumer("S", "P") as consumer:
            with pytest.raises(RequestTimeout):
                await consumer.next(timeout_s=0.3)


@asynchronous
async def test_a_push_consumer_calls_a_plain_function(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 10)
        await jetstream.consumers.create(
            "S", durable_name="P", deliver_subject=client.new_inbox(), ack_policy="explicit"
        )
        async with await jetstream.push_consumer("S", "P", callback=Message.ack_nowait) as consumer:
            await until(lambda: consumer.subscription.received == 10)
            await client.flush()

            assert 0 == (await jetstream.consumers.info("S", "P"))["num_ack_pending"]


@asynchronous
async def test_a_push_consumer_calls_back(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 100)
        await jetstream.consumers.create(
            "S", durable_name="P", deliver_subject=client.new_inbox(), ack_policy="explicit"
        )
        received: list[bytes] = []

        async def handle(message: Message) -> None:
            received.append(message.payload)
            await message.ack()

        async with await jetstream.push_consumer("S", "P", callback=handle):
            await until(lambda: len(received) == 100)

        assert payloads(100) == received


@asynchronous
async def test_an_ordered_consumer_reads_all_and_leaves_nothing(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 3000)
        received = []
        async with jetstream.ordered_consumer("S", filter_subject="s.>") as messages:
            async for message in messages:
                received.append(message.payload)
                if len(received) == 3000:
                    break

        assert (payloads(3000), 0) == (received, messages.resets)
        assert ["C"] == await jetstream.consumers.names("S")


@asynchronous
async def test_an_ordered_consumer_goes_on_after_a_cut_or_a_deletion(
    server: ServerProcess,
) -> None:
    async with (
        FaultProxy(server.url) as proxy,
        await penstock.connect(proxy.url, reconnect_wait_s=0.01) as client,
    ):
        jetstream = client.jetstream()
        await filled_stream(jetstream, 3000)
        received = []
        async with jetstream.ordered_consumer("S") as messages:
            async for message in messages:
                received.append(message.payload)
                if len(received) == 700:
                    proxy.cut()
                if len(received) == 1900:
                    for name in await jetstream.consumers.names("S"):
                        await jetstream.consumers.delete("S", name)
                if len(received) == 3000:
                    break

        assert payloads(3000) == received


@asynchronous
async def test_consumers_are_managed(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await filled_stream(jetstream, 5)
        consumers = jetstream.consumers
        await consumers.create("S", durable_name="D", filter_subject="s.a", ack_policy="explicit")
        await consumers.update(
            "S",
            durable_name="D",
            filter_subject="s.a",
            ack_policy="explicit",
            max_ack_pending=7,
        )

        assert (7, 5) == (
            (await consumers.info("S", "D"))["config"]["max_ack_pending"],
            (await consumers.info("S", "D"))["num_pending"],
        )
        assert ["C", "D"] == sorted(await consumers.names("S"))
        assert ["C", "D"] == sorted(info["name"] for info in await consumers.list("S"))
        await consumers.delete("S", "D")
        with pytest.raises(JetStreamError, match="consumer not found"):
            await consumers.info("S", "D")
