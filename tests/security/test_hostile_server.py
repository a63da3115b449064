"""Our client at a server that lies, floods, or says nothing: a clear error, and no end to us."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.security.hostile import HostileServer, Peer

import penstock
from penstock.bus.config.nats import ConsumerConfig
from penstock.bus.engines.nats.source import Source
from penstock.client import Client
from penstock.client.connection.link import HANDSHAKE_OPERATIONS_MAX
from penstock.client.connection.servers import DISCOVERED_MAX
from penstock.client.jetstream.keyvalue import KeyValue
from penstock.client.jetstream.ordered import RESETS_IN_A_ROW_MAX
from penstock.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    PenstockError,
    RequestTimeout,
    SlowConsumer,
)
from penstock.spark.connection import Connection as TaskConnection
from penstock.spark.options import ConnectionOptions

MEGABYTE = 1 << 20

GREETINGS = {
    "nothing": b"",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no JSON": b"INFO {\r\n",
    "no object": b"INFO []\r\n",
    "a payload limit of text": b'INFO {"max_payload": "x"}\r\n',
    "a payload limit that is no number": b'INFO {"max_payload": NaN}\r\n',
    "a payload limit of 5000 digits": b'INFO {"max_payload": %b}\r\n' % (b"9" * 5000),
    "a nonce that is no text": b'INFO {"nonce": "\\ud800"}\r\n',
    "a nonce that is a list": b'INFO {"nonce": []}\r\n',
    "URLs that are no list": b'INFO {"connect_urls": 5}\r\n',
    "depth": b'INFO {"x": ' + b"[" * 100_000 + b"\r\n",
    "no UTF-8": b'INFO {"x": "\xff"}\r\n',
    "an endless INFO": b"INFO " + b"x" * (2 * MEGABYTE),
    "a message before anything": b"MSG a 1 5\r\nhello\r\n",
    "an error": b"-ERR 'go away'\r\n",
    "an error that is no UTF-8": b"-ERR '\xff\xfe'\r\n",
    "a huge message": b"INFO {}\r\nMSG a 1 999999999\r\n",
    "an endless number": b"INFO {}\r\nMSG a 1 " + b"9" * 5000 + b"\r\n",
    "a flood of pings": b"INFO {}\r\n" + b"PING\r\n" * (4 * HANDSHAKE_OPERATIONS_MAX),
    "a flood of INFOs": b"INFO {}\r\n" * (4 * HANDSHAKE_OPERATIONS_MAX),
}


async def connect(server: HostileServer, **settings: Any) -> Client:
    settings = {"connect_timeout_s": 20.0, "reconnect_wait_s": 0.01} | settings
    return await penstock.connect(server.url, **settings)


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
@asynchronous
async def test_a_hostile_greeting_is_a_failed_connect(greeting: bytes) -> None:
    async def greet(peer: Peer) -> None:
        peer.say(greeting)
        await peer.reader.read()

    async with HostileServer(greet) as server:
        patience_s = 0.2 if not greeting or greeting.startswith(b"INFO {}\r\nINFO") else 20.0
        with pytest.raises(ConnectFailed):
            await connect(server, connect_timeout_s=patience_s, reconnect=False)


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
@asynchronous
async def test_a_hostile_greeting_is_a_failed_connect_of_a_spark_task(greeting: bytes) -> None:
    async def greet(peer: Peer) -> None:
        peer.say(greeting)
        await peer.reader.read()

    async with HostileServer(greet) as server:
        options = ConnectionOptions(servers=server.url, timeout_seconds=0.3)
        with pytest.raises(PenstockError):
            await asyncio.to_thread(TaskConnection(options, "test").__enter__)


@asynchronous
async def test_a_server_that_pings_for_ever_is_no_answer_to_a_spark_task() -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        while True:
            peer.say(b"PING\r\n" * 100)
            await peer.writer.drain()
            await asyncio.sleep(0.01)

    async with HostileServer(serve) as server:
        options = ConnectionOptions(servers=server.url, timeout_seconds=1.0)
        connection = await asyncio.to_thread(TaskConnection(options, "test").__enter__)
        with pytest.raises(RequestTimeout, match="no answer within 1 s"):
            await asyncio.to_thread(connection.call, "INFO")
        connection.close()


BREACHES = {
    "garbage": b"WHAT IS THIS\r\n",
    "a message larger than is taken": b"MSG a 1 100000000\r\n",
    "a size that is no number": b"MSG a 1 -5\r\n",
    "headers larger than their message": b"HMSG a 1 50 5\r\n",
    "a payload that does not end": b"MSG a 1 5\r\nhello, world\r\n",
    "an INFO that is no JSON": b"INFO nonsense\r\n",
    "an INFO of wrong types": b'INFO {"max_payload": []}\r\n',
    "an INFO too deep": b'INFO {"x": ' + b"[" * 100_000 + b"\r\n",
    "an endless line": b"MSG " + b"a" * (2 * MEGABYTE),
}


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
@asynchronous
async def test_a_server_that_breaks_the_protocol_is_left_for_the_next(breach: bytes) -> None:
    """The first connection is broken, the second works: nothing of the client has died."""
    connections = count()

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        if next(connections) == 0:
            peer.say(breach)
        await peer.listen()

    lost: list[Exception] = []
    async with (
        HostileServer(serve) as server,
        await connect(server, on_disconnected=lost.append) as client,
    ):
        await until(lambda: client.connection.reconnects == 1)
        await client.flush()
    assert ["ConnectionLost"] == [type(error).__name__ for error in lost]


@asynchronous
async def test_the_error_of_a_large_message_names_the_setting() -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        peer.say(b"MSG a 1 2000\r\n")
        await peer.listen()

    lost: list[Exception] = []
    async with (
        HostileServer(serve) as server,
        await connect(server, on_disconnected=lost.append, message_bytes_max=1000),
    ):
        await until(lambda: lost)
    assert "`message_bytes_max`" in str(lost[0])


@asynchronous
async def test_named_servers_are_bounded_and_must_be_addresses() -> None:
    garbage = ["", "x y", "a:b:c", "http://x", "127.0.0.1:70000", None, 5, {"a": 1}, "\ud800"]
    flood = [f"host-{number}.invalid:4222" for number in range(10_000)]

    async def serve(peer: Peer) -> None:
        await peer.welcome(connect_urls=[*garbage, *flood])
        peer.say(b"INFO %b\r\n" % json.dumps({"connect_urls": flood}).encode())
        await peer.listen()

    async with HostileServer(serve) as server, await connect(server) as client:
        await client.flush()
        assert len(client.connection.pool) <= DISCOVERED_MAX + 1


@asynchronous
async def test_pings_that_nobody_reads_the_answers_of_fill_no_memory() -> None:
    flooded = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        await peer.spoken_to()
        for _ in range(12):
            peer.say(b"PING\r\n" * (MEGABYTE // 6))
            await peer.writer.drain()
        flooded.set()
        await asyncio.Event().wait()

    async with HostileServer(serve) as server, await connect(server) as client:
        await client.publish("go")
        await asyncio.wait_for(flooded.wait(), 50)
        assert client.connection.outbox.pending_bytes < MEGABYTE


@asynchronous
async def test_messages_nobody_asked_for_fill_no_memory() -> None:
    flooded = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for pull in peer.publishes():
            body = b"x" * 1000
            for sequence in range(1, 100_001):
                reply = f"$JS.ACK.S.c.1.{sequence}.{sequence}.1.0"
                peer.deliver(pull.reply, body, reply=reply)
                if sequence % 1000 == 0:
                    await peer.writer.drain()
            flooded.set()

    errors: list[Exception] = []
    async with HostileServer(serve) as server, await connect(server, on_error=errors.append) as nc:
        consume = nc.jetstream().pull_consumer("S", "c").consume(batch=100)
        await asyncio.wait_for(flooded.wait(), 50)
        await nc.flush()
        assert consume.pending_messages <= 400
        assert SlowConsumer in map(type, errors)
        await consume.stop()


@asynchronous
async def test_a_server_that_takes_us_only_to_drop_us_does_not_keep_us_busy() -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        await peer.writer.drain()

    async with HostileServer(serve) as server:
        async with await connect(
            server, reconnect_wait_s=3600.0, reconnect_wait_s_max=3600.0
        ) as nc:
            await until(lambda: not nc.connected)
            # A loop without a pause would have been through in a few turns of the loop.
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert 1 == server.accepted


@asynchronous
async def test_an_error_flood_is_heard_and_outlived() -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        await peer.spoken_to()
        peer.say(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n" * 2000)
        peer.say(b"-ERR '\xff\x00'\r\n-ERR\t\r\n-ERR ''\r\n" * 100)
        await peer.listen()

    errors: list[Exception] = []
    async with HostileServer(serve) as server, await connect(server, on_error=errors.append) as nc:
        await nc.publish("go")
        await nc.flush()
        assert 2300 == len(errors)


@asynchronous
async def test_a_server_that_never_answers_is_a_timeout() -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        await peer.reader.read()

    async with HostileServer(serve) as server, await connect(server, request_timeout_s=0.2) as nc:
        with pytest.raises(RequestTimeout):
            await nc.request("a")
        with pytest.raises(RequestTimeout):
            await nc.flush()
        with pytest.raises(RequestTimeout):
            await nc.jetstream(request_timeout_s=0.2).streams.names()


ANSWERS = {
    "no JSON": b"{",
    "nothing": b"",
    "no UTF-8": b'{"x": "\xff"}',
    "a list": b"[]",
    "a number": b"5",
    "NaN": b'{"total": NaN}',
    "depth": b'{"x": ' + b"[" * 100_000,
    "a number of 5000 digits": b'{"seq": %b}' % (b"9" * 5000),
    "an error that is none": b'{"error": 5}',
    "an error of wrong types": b'{"error": {"code": [], "err_code": {}, "description": 5}}',
    "an empty object": b"{}",
    "fields of wrong types": json.dumps(
        dict.fromkeys(["name", "config", "message", "purged", "streams", "num_pending"], 5.5)
    ).encode(),
    "lists of wrong types": json.dumps(
        {name: ["x"] for name in ("name", "config", "message", "purged", "num_pending", "total")}
    ).encode(),
    "a message of wrong types": b'{"message": {"subject": 1, "seq": "x", "time": 5, "data": []}}',
    "no base64": b'{"message": {"subject": "a", "seq": 1, "time": "", "data": "\xc3\xa9"}}',
}
CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "info": lambda nc: nc.jetstream().streams.info("S"),
    "purge": lambda nc: nc.jetstream().streams.purge("S"),
    "names": lambda nc: nc.jetstream().streams.names(),
    "get": lambda nc: nc.jetstream().streams.get("S", seq=1),
    "direct get": lambda nc: nc.jetstream().streams.get_direct("S", seq=1),
    "publish": lambda nc: _sequence(nc),
    "push consumer": lambda nc: nc.jetstream().push_consumer("S", "c"),
    "ordered consumer": lambda nc: anext(nc.jetstream().ordered_consumer("S")),
    "open a bucket": lambda nc: KeyValue.open(nc.jetstream(), "b"),
    "keys of a bucket": lambda nc: KeyValue(nc.jetstream(), "b", is_direct=True).keys(),
}
UNREAD = ("info", "names", "open a bucket")
"""Calls that may be content with an object of any kind."""


async def _failure(call: Awaitable[object]) -> str:
    """Return the words of the error of ours that a call ends with; any other is the test's."""
    try:
        await call
    except PenstockError as error:
        return str(error)
    return ""


async def _sequence(nc: Client) -> int:
    return (await nc.jetstream().publish("a")).sequence


@pytest.mark.parametrize("call", CALLS)
@asynchronous
async def test_a_wrong_answer_of_the_api_is_an_error_of_ours(call: str) -> None:
    answer = b""

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            if request.reply:
                peer.deliver(request.reply, answer)

    async with HostileServer(serve) as server, await connect(server) as client:
        for name, answer in ANSWERS.items():  # noqa: B007  (the server says it)
            error = await _failure(CALLS[call](client))
            assert call in UNREAD or error, name
            assert len(error) < 300, name


@asynchronous
async def test_a_list_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.jetstream.api.ENTRIES_MAX", 1000)

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            page = {"total": 10**18, "offset": 0, "streams": ["x"] * 100}
            peer.deliver(request.reply, json.dumps(page).encode())

    async with HostileServer(serve) as server, await connect(server) as client:
        with pytest.raises(ClientError, match="returned more than 1000"):
            await client.jetstream().streams.names()


REPLIES = {
    "short": "$JS.ACK.S.c.1.1",
    "no numbers": "$JS.ACK.S.c.a.b.c.d.e",
    "negative": "$JS.ACK.S.c.-1.-1.-1.-1.-1",
    "underscores": "$JS.ACK.S.c.1_0.1_0.1_0.1_0.1_0",
    "huge": "$JS.ACK.S.c." + ".".join(["9" * 5000] * 5),
    "other digits": "$JS.ACK.S.c" + ".\N{ARABIC-INDIC DIGIT ONE}" * 5,
    "something else": "orders.new",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
@asynchronous
async def test_an_ack_subject_that_lies_is_an_error_of_ours(reply: str) -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for pull in peer.publishes():
            if b"batch" in pull.data:
                peer.deliver(pull.reply, b"x", reply=reply)

    async with HostileServer(serve) as server, await connect(server) as client:
        async with client.jetstream().pull_consumer("S", "c") as pull:
            [message] = await pull.fetch(1)
            with pytest.raises(ClientError):
                _ = message.metadata


@pytest.mark.parametrize("sequence", ["5", "0", "-1", "x", "9" * 30, ""], ids=lambda text: text[:3])
@asynchronous
async def test_sequences_that_jump_for_ever_end_an_ordered_consumer(
    sequence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.jetstream.ordered.RETRY_WAIT_S", 0.001)
    created = count()

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            if "CONSUMER.CREATE" in request.subject:
                next(created)
                peer.deliver(request.reply, b'{"name": "c"}')
            elif "MSG.NEXT" in request.subject:
                reply = f"$JS.ACK.S.c.1.{sequence}.{sequence}.1.0"
                peer.deliver(request.reply, b"x", reply=reply)
            else:
                peer.deliver(request.reply, b'{"success": true}')

    async with HostileServer(serve) as server, await connect(server) as client:
        consumer = client.jetstream().ordered_consumer("S")
        with pytest.raises(ConnectionLost, match="cannot be read in order"):
            await anext(consumer)
        assert RESETS_IN_A_ROW_MAX + 1 == next(created)


STATUSES = {
    "over at once": b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 100\r\n\r\n",
    "a negative count": b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: -100\r\n\r\n",
    "a count that is none": b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: x\r\n\r\n",
    "a long count": b"NATS/1.0 408 x\r\nNats-Pending-Messages: %b\r\n\r\n" % (b"9" * 5000),
}


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)
@asynchronous
async def test_pulls_that_end_at_once_are_not_made_without_a_pause(status: bytes) -> None:
    pulls = 0

    async def serve(peer: Peer) -> None:
        nonlocal pulls
        await peer.welcome()
        async for request in peer.publishes():
            if "MSG.NEXT" in request.subject:
                pulls += 1
                peer.deliver(request.reply, b"", headers=status)

    async with HostileServer(serve) as server, await connect(server) as client:
        consume = client.jetstream().pull_consumer("S", "c").consume(batch=100, retry_wait_s=3600.0)
        for _ in range(50):
            await client.flush()
        assert 1 <= pulls <= 4
        await consume.stop()


@pytest.mark.parametrize("block", [b"NATS/1.0 abc\r\n\r\n", b"NATS/1.0\r\n\r\n", b"garbage", b""])
@asynchronous
async def test_a_pull_answered_with_nonsense_fails_with_words(block: bytes) -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            if "MSG.NEXT" in request.subject:
                peer.deliver(request.reply, b"", headers=block)

    async with HostileServer(serve) as server, await connect(server) as client:
        consume = client.jetstream().pull_consumer("S", "c").consume(batch=100)
        with pytest.raises(ClientError, match="neither a message nor a status"):
            await anext(consume)


@asynchronous
async def test_what_is_no_ack_is_a_failed_publish() -> None:
    """Somebody else's answer to the subject is no word of JetStream."""

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            peer.deliver(request.reply, b"thanks, got it" * 100)

    async with HostileServer(serve) as server, await connect(server) as client:
        with pytest.raises(ClientError, match="not an ack") as raised:
            await client.jetstream().publish("orders")
        assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "block",
    [b"", b"NATS/1.0\r\nNats-Consumer-Stalled: $JS.API.STREAM.DELETE.ORDERS\r\n\r\n"],
    ids=["reply", "stalled"],
)
@pytest.mark.parametrize("status", [b"", b" 100 FlowControl Request"])
@asynchronous
async def test_a_push_consumer_publishes_nowhere_but_to_flow_control(
    block: bytes, status: bytes
) -> None:
    """Whoever may publish to a deliver subject must not call the API in our name."""
    published: list[str] = []

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        info = {"name": "c", "config": {"deliver_subject": "deliver"}}
        async for request in peer.publishes():
            published.append(request.subject)
            if "CONSUMER.INFO" in request.subject:
                peer.deliver(request.reply, json.dumps(info).encode())
            elif request.subject == "go":
                headers = block.replace(b"NATS/1.0", b"NATS/1.0" + status)
                headers = headers or b"NATS/1.0" + status + b"\r\n\r\n"
                reply = "" if block else "$JS.API.STREAM.DELETE.ORDERS"
                peer.deliver("deliver", b"", reply=reply, headers=headers)
                flow = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
                peer.deliver("deliver", b"", reply="$JS.FC.S.c.1", headers=flow)
                peer.deliver("deliver", b"x", reply="$JS.ACK.S.c.1.1.1.1.0")

    async with HostileServer(serve) as server, await connect(server) as client:
        async with await client.jetstream().push_consumer("S", "c") as consumer:
            await client.flush()
            await client.publish("go")
            await consumer.next(timeout_s=10)
            await client.flush()
    assert "$JS.FC.S.c.1" in published
    assert "$JS.API.STREAM.DELETE.ORDERS" not in published


@asynchronous
async def test_a_bucket_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.jetstream.keyvalue.ENTRIES_MAX", 1000)
    sequences = count(1)

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            if "MSG.NEXT" in request.subject:
                for _ in range(500):
                    number = next(sequences)
                    reply = f"$JS.ACK.S.c.1.{number}.{number}.1.7"
                    peer.deliver(request.reply, b"x", reply=reply)
            else:
                answer = {"name": "c", "num_pending": 1, "success": True}
                peer.deliver(request.reply, json.dumps(answer).encode())

    async with HostileServer(serve) as server, await connect(server) as client:
        bucket = KeyValue(client.jetstream(), "b", is_direct=True)
        with pytest.raises(ClientError, match="changes faster than it can be read"):
            await bucket.history()


@pytest.mark.parametrize("denied", [True, False])
@asynchronous
async def test_a_flood_of_errors_fills_no_log(
    denied: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for the first, and one that counts the others."""
    monkeypatch.setattr("penstock.client.connection.complaints.INTERVAL_S", 600.0)
    heard: list[Exception] = []

    async def serve(peer: Peer) -> None:
        await peer.welcome()
        await peer.spoken_to()
        text = b"Permissions Violation for Publish to" if denied else b"go away"
        peer.say(b"".join(b"-ERR '%b \"%d\"'\r\n" % (text, number) for number in range(5000)))
        await peer.listen()

    async with (
        HostileServer(serve) as server,
        await connect(server, on_error=heard.append) as client,
    ):
        await client.publish("a", b"")
        await until(lambda: len(heard) == 5000)
    assert len([each for each in caplog.records if each.name == "penstock.client"]) < 5


STATES = {
    "nothing": {},
    "no numbers": {"delivered": {}, "ack_floor": [], "num_ack_pending": "x"},
    "huge": {
        "delivered": {"stream_seq": 10**400, "consumer_seq": 10**400},
        "ack_floor": {"stream_seq": 0},
        "num_ack_pending": 10**400,
    },
    "negative": {
        "delivered": {"stream_seq": -5, "consumer_seq": -5},
        "ack_floor": {"stream_seq": -9},
        "num_ack_pending": 5,
    },
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@asynchronous
async def test_a_consumer_state_that_lies_ends_no_reader_of_a_bus(state: dict[str, Any]) -> None:
    async def serve(peer: Peer) -> None:
        await peer.welcome()
        async for request in peer.publishes():
            if "CONSUMER.INFO" in request.subject:
                peer.deliver(request.reply, json.dumps(state).encode())
            elif "MSG.NEXT" in request.subject:
                for reply in REPLIES.values():
                    peer.deliver(request.reply, b"x", reply=reply)
                peer.deliver(request.reply, b"x", reply="$JS.ACK.S.d.1.7.7.1.0")

    async with HostileServer(serve) as server, await connect(server) as client:
        source = Source(
            client,
            client.jetstream(),
            stream="S",
            durable="d",
            pattern=">",
            config=ConsumerConfig(ack_wait=1.0, fetch_wait=0.1),
            arrived=asyncio.Event(),
            is_ours=lambda: True,
            excluded=[],
        )
        source.ask(10)
        await until(lambda: source.arrived)
        found = await source.recover()

        assert [7] == [delivery.sequence for delivery in found]
        source.close()
