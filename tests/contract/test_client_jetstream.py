"""Our client's JetStream, on every server that has it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.contract.streams import fresh_stream, payloads
from tests.servers import NATS_SERVER, Program, ServerProcess

import penstock
from penstock.bus.testing import FaultProxy
from penstock.client import Expect, Outgoing, PubAck
from penstock.errors import (
    BatchFailed,
    ClientError,
    ConnectionLost,
    JetStreamError,
    NoResponders,
    RequestTimeout,
)


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program, "jetstream { store_dir: store }")


@asynchronous
async def test_an_ack_names_stream_and_sequence(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)

        first = await jetstream.publish("s.a", b"1")
        second = await jetstream.publish("s.b", b"2", headers={"k": "v"})

        assert ("S", 1, False) == (first.stream, first.sequence, first.duplicate)
        assert 2 == second.sequence


@asynchronous
async def test_all_acks_share_one_subscription(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        await jetstream.publish("s.a")
        before = len(client.connection.interests)
        for _ in range(10):
            await jetstream.publish("s.a")

        assert before == len(client.connection.interests)


@asynchronous
async def test_a_message_id_is_stored_once(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)

        acks = [await jetstream.publish("s.a", b"1", message_id="one") for _ in range(2)]

        assert [(1, False), (1, True)] == [(ack.sequence, ack.duplicate) for ack in acks]


@pytest.mark.parametrize(
    ("expect", "err_code"),
    [
        (Expect(stream="OTHER"), 10060),
        (Expect(last_sequence=7), 10071),
        (Expect(last_subject_sequence=7), 10071),
        (Expect(last_message_id="x"), 10070),
    ],
)
@asynchronous
async def test_what_is_expected_must_be_so(
    server: ServerProcess, expect: Expect, err_code: int
) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        await jetstream.publish("s.a", expect=Expect(stream="S", last_sequence=0))

        with pytest.raises(JetStreamError) as caught:
            await jetstream.publish("s.a", expect=expect)
        assert err_code == caught.value.err_code


@asynchronous
async def test_asynchronous_publishes_are_stored_in_order(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream(window_messages_max=100)
        await fresh_stream(jetstream)
        futures = []
        for number in range(1000):
            futures.append(await jetstream.publish_async("s.a", b"%d" % number))
            assert jetstream.unacked <= 100
        await jetstream.flush()

        assert list(range(1, 1001)) == [future.result().sequence for future in futures]
        assert 0 == jetstream.unacked


@asynchronous
async def test_a_callback_gets_the_ack_or_the_error(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        results: list[tuple[PubAck | None, Exception | None]] = []

        def on_ack(ack: PubAck | None, error: Exception | None) -> None:
            results.append((ack, error))

        await jetstream.publish_with(Outgoing("s.a"), on_ack)
        await jetstream.flush()
        await jetstream.publish_with(Outgoing("nowhere"), on_ack)
        await jetstream.flush()

        assert results[0][0] is not None
        assert 1 == results[0][0].sequence
        assert [None, NoResponders] == [results[0][1], type(results[1][1])]


@asynchronous
async def test_a_batch_reports_every_failure_with_its_index(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        messages: list[Outgoing | tuple[str, bytes]] = [("s.a", b"%d" % n) for n in range(10)]
        messages[3] = Outgoing("s.a", expect=Expect(stream="OTHER"))
        messages[5] = ("no subject", b"")
        messages[8] = ("nowhere", b"")

        with pytest.raises(BatchFailed, match="3 of 10") as caught:
            await jetstream.publish_batch(messages)

        kinds = {index: type(error) for index, error in caught.value.failures.items()}
        assert {3: JetStreamError, 5: ClientError, 8: NoResponders} == kinds
        assert 7 == sum(ack is not None for ack in caught.value.acks)


@asynchronous
async def test_an_ack_that_does_not_come_is_a_timeout(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream(ack_timeout_s=0.05)
        await fresh_stream(jetstream)
        await client.subscribe("silent")

        with pytest.raises(RequestTimeout, match="no ack"):
            await jetstream.publish("silent")
        assert 1 == (await jetstream.publish("s.a")).sequence


def is_ack(outcome: object) -> bool:
    return isinstance(outcome, PubAck)


@asynchronous
async def test_a_cut_fails_what_is_unacked_and_a_resend_stores_it_once(
    server: ServerProcess,
) -> None:
    async with (
        FaultProxy(server.url) as proxy,
        await penstock.connect(proxy.url, reconnect_wait_s=0.01) as client,
    ):
        jetstream = client.jetstream(ack_timeout_s=30)
        await fresh_stream(jetstream)
        proxy.drop("_INBOX.>", direction="down", count=500)
        ids = [f"id-{number}" for number in range(3000)]
        futures = [await jetstream.publish_async("s.a", message_id=one) for one in ids]
        await until(lambda: jetstream.unacked == 500)
        proxy.cut()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        lost = [one for one, outcome in zip(ids, outcomes, strict=True) if not is_ack(outcome)]
        again = [await jetstream.publish("s.a", message_id=one) for one in lost]

        assert {ConnectionLost} == {type(outcome) for outcome in outcomes if not is_ack(outcome)}
        assert [True] * 500 == [ack.duplicate for ack in again]
        assert 3000 == (await jetstream.streams.info("S"))["state"]["messages"]


@asynchronous
async def test_streams_are_managed(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        streams = client.jetstream().streams
        await fresh_stream(client.jetstream())

        created = await streams.create("A", subjects=["a.*"], max_age=timedelta(hours=1))
        await streams.update("A", subjects=["a.*", "b"], max_age=timedelta(hours=2))

        assert 3600 * 10**9 == created["config"]["max_age"]
        assert ["a.*", "b"] == (await streams.info("A"))["config"]["subjects"]
        assert ["A", "S"] == await streams.names()
        assert ["A"] == await streams.names(subject="b")
        assert {"A", "S"} == {info["config"]["name"] for info in await streams.list()}
        await streams.delete("A")
        with pytest.raises(JetStreamError, match="stream not found") as caught:
            await streams.info("A")
        assert (404, 10059) == (caught.value.code, caught.value.err_code)


@asynchronous
async def test_messages_are_read_deleted_and_purged(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream, allow_direct=True)
        for number in range(4):
            await jetstream.publish(f"s.{number % 2}", b"%d" % number, headers={"n": str(number)})
        streams = jetstream.streams

        stored = await streams.get("S", seq=2)
        direct = await streams.get_direct("S", last_by_subj="s.1")

        assert ("s.1", 2, b"1", {"n": "1"}) == (
            stored.subject,
            stored.sequence,
            stored.payload,
            stored.headers,
        )
        assert (4, b"3", {"n": "3"}) == (direct.sequence, direct.payload, direct.headers)
        await streams.delete_message("S", 2)
        with pytest.raises(JetStreamError, match="no message found"):
            await streams.get("S", seq=2)
        with pytest.raises(JetStreamError, match="Message Not Found"):
            await streams.get_direct("S", seq=2)
        assert 2 == await streams.purge("S", filter="s.0")
        assert 1 == await streams.purge("S")


@asynchronous
async def test_a_batch_of_messages_is_read_with_one_request(servers: Servers) -> None:
    # Penstock refuses batched direct gets by name so far; the client is held to nats-server's.
    server = servers(NATS_SERVER, "jetstream { store_dir: store }")
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream, allow_direct=True)
        await jetstream.publish_batch([("s.a", b"%d" % number) for number in range(500)])

        stored = [m async for m in jetstream.streams.get_batch("S", batch=200, seq=101)]

        assert list(range(101, 301)) == [message.sequence for message in stored]
        assert payloads(300)[100:] == [message.payload for message in stored]


@asynchronous
async def test_a_name_that_would_change_the_subject_is_refused(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream()
        for name in ("", "a.b", "*", ">", "a b"):
            with pytest.raises(ClientError, match="not a valid stream name"):
                await jetstream.streams.info(name)


@asynchronous
async def test_the_account_says_what_it_uses(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        await fresh_stream(client.jetstream())

        assert 1 == (await client.jetstream().account_info())["streams"]


@asynchronous
async def test_a_callback_that_fails_keeps_no_other_ack_away(server: ServerProcess) -> None:
    errors: list[Exception] = []

    def fail(ack: PubAck | None, error: Exception | None) -> None:
        raise KeyError("callback")

    async with await penstock.connect(server.url, on_error=errors.append) as client:
        jetstream = client.jetstream()
        await fresh_stream(jetstream)
        await jetstream.publish_with(Outgoing("s.a"), fail)
        future = await jetstream.publish_async("s.a")

        assert 2 == (await future).sequence
        assert [KeyError] == [type(error) for error in errors]


@asynchronous
async def test_a_publisher_that_gives_up_leaves_its_room_to_the_next(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        jetstream = client.jetstream(window_messages_max=1)
        await fresh_stream(jetstream)
        publishing = [asyncio.ensure_future(jetstream.publish("s.a")) for _ in range(4)]
        await asyncio.sleep(0)
        for task in publishing[1:3]:
            task.cancel()
        await asyncio.wait(publishing, timeout=10)

        assert [False, True, True, False] == [task.cancelled() for task in publishing]
        assert 2 == publishing[3].result().sequence
