"""Our client against the real nats-server and against ours: publish, subscribe, request."""

from __future__ import annotations

import asyncio
import functools

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import Program, ServerProcess

import penstock
from penstock.client import Client, Message
from penstock.errors import (
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    NoResponders,
    RequestTimeout,
    SlowConsumer,
)
from penstock.hot.wire import Op


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program)


@asynchronous
async def test_messages_arrive_in_order_with_their_subject(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("orders.*")
        for number in range(10_000):
            await client.publish(f"orders.{number % 7}", b"%d" % number)

        received = [await subscription.next(timeout_s=5) for _ in range(10_000)]

        assert [b"%d" % number for number in range(10_000)] == [m.payload for m in received]
        assert [f"orders.{number % 7}" for number in range(10_000)] == [m.subject for m in received]


@asynchronous
async def test_payloads_of_every_size_pass_unchanged(server: ServerProcess) -> None:
    payloads = [bytes([size % 251]) * size for size in (0, 1, 2, 1000, 70_000, 1024 * 1024)]
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("sizes")
        for payload in payloads:
            await client.publish("sizes", payload)

        assert payloads == [(await subscription.next(timeout_s=5)).payload for _ in payloads]


@asynchronous
async def test_a_plain_function_is_called_with_each_message(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        received: list[bytes] = []
        await client.subscribe("calls", callback=lambda m: received.append(m.payload))
        for number in range(100):
            await client.publish("calls", b"%d" % number)

        await client.flush()

        assert [b"%d" % number for number in range(100)] == received


@asynchronous
async def test_a_coroutine_function_handles_one_message_after_another(
    server: ServerProcess,
) -> None:
    async with await penstock.connect(server.url) as client:
        steps: list[tuple[str, bytes]] = []

        async def handle(message: Message) -> None:
            steps.append(("begin", message.payload))
            await asyncio.sleep(0)
            steps.append(("end", message.payload))

        await client.subscribe("calls", callback=handle)
        for number in range(50):
            await client.publish("calls", b"%d" % number)
        await until(lambda: len(steps) == 100)

        expected = [(step, b"%d" % n) for n in range(50) for step in ("begin", "end")]
        assert expected == steps


@pytest.mark.parametrize("asynchronously", [False, True])
@asynchronous
async def test_a_failing_callback_is_reported_and_goes_on(
    server: ServerProcess, asynchronously: bool
) -> None:
    errors: list[Exception] = []
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.payload)
        raise KeyError(message.subject)

    async def handle_later(message: Message) -> None:
        handle(message)

    async with await penstock.connect(server.url, on_error=errors.append) as client:
        await client.subscribe("fails", callback=handle_later if asynchronously else handle)
        await client.publish("fails", b"1")
        await client.publish("fails", b"2")
        await until(lambda: len(handled) == 2)

    assert [KeyError, KeyError] == [type(error.__cause__) for error in errors]


@asynchronous
async def test_a_queue_group_gets_each_message_once(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        seen: list[list[bytes]] = [[], [], []]
        for received in seen:
            callback = functools.partial(_append_payload, received)
            await client.subscribe("work", queue="workers", callback=callback)
        for number in range(300):
            await client.publish("work", b"%d" % number)
        await client.flush()

        expected = sorted(b"%d" % number for number in range(300))
        assert expected == sorted(payload for received in seen for payload in received)
        assert all(seen)


def _append_payload(received: list[bytes], message: Message) -> None:
    received.append(message.payload)


@asynchronous
async def test_headers_arrive_as_they_were_given(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("headers")
        await client.publish("headers", b"body", headers={"A": "1", "b": ["2", "3"], "Ä": "ö"})

        message = await subscription.next(timeout_s=5)

        assert [("A", "1"), ("b", "2"), ("b", "3"), ("Ä", "ö")] == message.header_pairs
        assert {"A": "1", "b": "2", "Ä": "ö"} == message.headers
        assert ("3", None) == (message.header_pairs[2][1], message.header("missing"))
        assert b"body" == message.payload


@pytest.mark.parametrize("headers", [{"a\r\nb": "1"}, {"a": "1\r\nb: 2"}, {"": "1"}, {"a:": "1"}])
@asynchronous
async def test_a_header_cannot_break_out_of_its_line(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    async with await penstock.connect(server.url) as client:
        with pytest.raises(ClientError, match="cannot be sent"):
            await client.publish("headers", headers=headers)


@asynchronous
async def test_concurrent_requests_get_their_own_replies(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:

        async def double(message: Message) -> None:
            await message.respond(message.payload * 2, headers={"n": "1"})

        await client.subscribe("double", callback=double)
        requests = [client.request("double", b"%d" % number) for number in range(500)]

        replies = await asyncio.gather(*requests)

        assert [b"%d" % number * 2 for number in range(500)] == [r.payload for r in replies]
        assert {"n": "1"} == replies[0].headers
        assert 2 == len(client.connection.interests)


@asynchronous
async def test_a_plain_function_answers_requests(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        await client.subscribe("echo", callback=lambda m: m.respond_nowait(m.payload))

        assert b"once more" == (await client.request("echo", b"once more")).payload


@asynchronous
async def test_a_request_nobody_listens_to_fails_at_once(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        with pytest.raises(NoResponders, match=r"nobody\.here"):
            await client.request("nobody.here", timeout_s=60)


@asynchronous
async def test_a_request_nobody_answers_times_out(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        await client.subscribe("silent")
        with pytest.raises(RequestTimeout, match="silent"):
            await client.request("silent", timeout_s=0.05)


@asynchronous
async def test_a_subscription_ends_after_the_messages_it_wanted(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("few", messages_max=3)
        for number in range(10):
            await client.publish("few", b"%d" % number)
        await client.flush()

        assert [b"0", b"1", b"2"] == [message.payload async for message in subscription]
        assert subscription.closed


@asynchronous
async def test_an_unsubscribed_subject_is_silent(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        received: list[Message] = []
        subscription = await client.subscribe("quiet", callback=received.append)
        await client.publish("quiet", b"1")
        await client.flush()
        await subscription.unsubscribe()
        await client.publish("quiet", b"2")
        await client.flush()

        assert [b"1"] == [message.payload for message in received]


@asynchronous
async def test_draining_what_was_unsubscribed_waits_for_nothing(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("dropped")
        await client.publish("dropped")
        await until(lambda: subscription.pending_messages)
        await subscription.unsubscribe()

        await asyncio.wait_for(subscription.drain(), 10)


@asynchronous
async def test_draining_handles_all_that_was_sent(server: ServerProcess) -> None:
    handled = 0

    async def handle(message: Message) -> None:
        nonlocal handled
        await asyncio.sleep(0)
        handled += 1

    client = await penstock.connect(server.url)
    async with await penstock.connect(server.url) as publisher:
        await client.subscribe("drained", callback=handle)
        await client.flush()
        for _ in range(1000):
            await publisher.publish("drained")
        await publisher.flush()
        await client.drain()

    assert (1000, True) == (handled, client.closed)


@asynchronous
async def test_a_drained_subscription_leaves_the_client_open(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("drained")
        await client.publish("drained", b"1")
        drain = asyncio.ensure_future(subscription.drain())

        assert [b"1"] == [message.payload async for message in subscription]
        await drain
        await client.flush()


@asynchronous
async def test_a_slow_consumer_is_reported_once_and_loses_the_newest(
    server: ServerProcess,
) -> None:
    errors: list[Exception] = []
    async with await penstock.connect(server.url, on_error=errors.append) as client:
        subscription = await client.subscribe("slow", queue_messages_max=10)
        for number in range(100):
            await client.publish("slow", b"%d" % number)
        await client.flush()

        assert (10, 90, 100) == (
            subscription.pending_messages,
            subscription.dropped,
            subscription.received,
        )
        assert [SlowConsumer] == [type(error) for error in errors]
        assert b"0" == (await subscription.next()).payload


@asynchronous
async def test_a_queue_is_bounded_in_bytes_too(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("slow", queue_bytes_max=1000)
        for _ in range(10):
            await client.publish("slow", bytes(300))
        await client.flush()

        assert (3, 900, 7) == (
            subscription.pending_messages,
            subscription.pending_bytes,
            subscription.dropped,
        )


@asynchronous
async def test_batches_are_all_that_has_arrived(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("many", messages_max=1000)
        for number in range(1000):
            await client.publish("many", b"%d" % number)

        batches = [batch async for batch in subscription.batches()]

        assert [b"%d" % n for n in range(1000)] == [m.payload for b in batches for m in b]
        assert len(batches) < 1000


@asynchronous
async def test_a_listener_gets_the_raw_operations(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        operations: list[Op] = []
        interest = client.listen("raw", operations.extend)
        await client.publish("raw", b"x", reply="answer")
        await client.flush()
        client.unlisten(interest)
        await client.publish("raw", b"y")
        await client.flush()

        assert [(b"raw", b"answer", 0, b"x")] == [
            (subject, reply, header_bytes, payload)
            for _, subject, _, reply, header_bytes, payload in operations
        ]


@asynchronous
async def test_without_echo_own_messages_stay_away(server: ServerProcess) -> None:
    async with await penstock.connect(server.url, echo=False) as client:
        received: list[Message] = []
        await client.subscribe("mine", callback=received.append)
        await client.publish("mine")
        await client.flush()

        assert [] == received


@asynchronous
async def test_too_large_a_payload_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        with pytest.raises(ClientError, match="max_payload"):
            await client.publish("large", bytes(client.info["max_payload"] + 1))
        await client.flush()


@pytest.mark.parametrize("subject", ["", "a b", "a..b", ".a", "a\r\nPING"])
@asynchronous
async def test_what_is_no_subject_is_refused(server: ServerProcess, subject: str) -> None:
    async with await penstock.connect(server.url) as client:
        with pytest.raises(ClientError, match="not a valid subject"):
            await client.publish(subject)
        with pytest.raises(ClientError, match="not a valid subject"):
            await client.subscribe(subject)
        await client.flush()


async def _request(client: Client) -> None:
    await client.request("silent", timeout_s=60)


@asynchronous
async def test_closing_ends_everything_that_waits(server: ServerProcess) -> None:
    client = await penstock.connect(server.url)
    await client.subscribe("silent")
    subscription = await client.subscribe("quiet")
    request = asyncio.ensure_future(_request(client))
    iteration = asyncio.ensure_future(anext(subscription, None))
    await client.flush()
    await client.close()

    assert await iteration is None
    with pytest.raises(ConnectionClosed):
        await request
    with pytest.raises(ConnectionClosed):
        await client.publish("late")
    with pytest.raises(ConnectionClosed):
        await client.flush()


@asynchronous
async def test_what_was_published_before_close_is_sent(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as observer:
        subscription = await observer.subscribe("last.words")
        await observer.flush()
        client = await penstock.connect(server.url)
        await client.publish("last.words", b"bye")
        await client.close()

        assert b"bye" == (await subscription.next(timeout_s=5)).payload


@asynchronous
async def test_connecting_to_nobody_says_who_was_tried() -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1:.*; .*127\.0\.0\.1:2:"):
        await penstock.connect("nats://127.0.0.1:1,nats://127.0.0.1:2", randomize_servers=False)


@asynchronous
async def test_a_listener_that_fails_leaves_the_connection_up(server: ServerProcess) -> None:
    errors: list[Exception] = []

    def fail(operations: list[Op]) -> None:
        raise KeyError("listener")

    async with await penstock.connect(server.url, on_error=errors.append) as client:
        client.listen("fails", fail)
        await client.publish("fails")
        await client.flush()

        assert [KeyError] == [type(error) for error in errors]
        assert 0 == client.connection.reconnects


@asynchronous
async def test_a_request_that_cannot_be_sent_is_not_waited_for(server: ServerProcess) -> None:
    async with await penstock.connect(server.url) as client:
        with pytest.raises(ClientError, match="max_payload"):
            await client.request("large", bytes(client.info["max_payload"] + 1))

        assert {} == client._inbox._waiting
