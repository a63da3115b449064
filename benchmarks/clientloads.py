"""The loads of our client and of nats-py, and the time each took."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import nats

import penstock
import penstock.client
from penstock.net.process import HOST

CORE_PAYLOAD = bytes(128)
STREAM_PAYLOAD = bytes(256)
FETCH = 500
WINDOW = 4000
"""nats-py's default, so that both may have the same number of unacked messages."""

Spent = tuple[float, float]
"""Seconds of wall time, and of this process's processor time."""

Load = Callable[[str, int], Awaitable[Spent]]
"""Runs a number of messages against a URL, and returns the time they took."""


def now() -> Spent:
    """Start measuring."""
    return time.perf_counter(), time.process_time()


def since(begin: Spent) -> Spent:
    """Return the time spent since `begin`."""
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


async def our_publish(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        begin = now()
        for _ in range(count):
            await client.publish("bench", CORE_PAYLOAD)
        await client.flush()
        return since(begin)


async def their_publish(url: str, count: int) -> Spent:
    client = await nats.connect(url)
    begin = now()
    for _ in range(count):
        await client.publish("bench", CORE_PAYLOAD)
    await client.flush()
    spent = since(begin)
    await client.close()
    return spent


async def our_receive(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        clock = Countdown(count)
        await client.subscribe("bench", callback=clock.tick)
        await client.flush()
        with Blast(url, count):
            return await clock.spent()


async def our_iterate(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        subscription = await client.subscribe("bench")
        await client.flush()
        clock = Countdown(count)
        with Blast(url, count):
            async for message in subscription:
                clock.tick(message)
                if clock.left == 0:
                    return await clock.spent()
    raise AssertionError("the subscription ended early")


async def their_receive(url: str, count: int) -> Spent:
    client = await nats.connect(url)
    clock = Countdown(count)

    async def handle(message: object) -> None:
        clock.tick(message)

    await client.subscribe("bench", cb=handle)
    await client.flush()
    with Blast(url, count):
        spent = await clock.spent()
    await client.close()
    return spent


async def their_iterate(url: str, count: int) -> Spent:
    client = await nats.connect(url)
    subscription = await client.subscribe("bench")
    await client.flush()
    clock = Countdown(count)
    with Blast(url, count):
        async for message in subscription.messages:
            clock.tick(message)
            if clock.left == 0:
                break
    await client.close()
    return await clock.spent()


async def our_request(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client, await penstock.connect(url) as responder:
        await responder.subscribe("bench", callback=_echo)
        await responder.flush()
        begin = now()
        for _ in range(count):
            await client.request("bench", CORE_PAYLOAD)
        return since(begin)


async def _echo(message: penstock.client.Message) -> None:
    await message.respond(message.payload)


async def their_request(url: str, count: int) -> Spent:
    client, responder = await nats.connect(url), await nats.connect(url)

    async def respond(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data)

    await responder.subscribe("bench", cb=respond)
    await responder.flush()
    await asyncio.sleep(0.1)  # nats-py's flush does not always wait for the subscription.
    begin = now()
    for _ in range(count):
        await client.request("bench", CORE_PAYLOAD)
    spent = since(begin)
    await client.close()
    await responder.close()
    return spent


async def our_publish_async(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream(window_messages_max=WINDOW)
        await _our_stream(jetstream)
        begin = now()
        futures = [await jetstream.publish_async("js", STREAM_PAYLOAD) for _ in range(count)]
        await jetstream.flush()
        spent = since(begin)
        assert count == futures[-1].result().sequence
        return spent


async def their_publish_awaited(url: str, count: int) -> Spent:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await _their_stream(jetstream)
    begin = now()
    for _ in range(count):
        await jetstream.publish("js", STREAM_PAYLOAD)
    spent = since(begin)
    await client.close()
    return spent


async def their_publish_async(url: str, count: int) -> Spent:
    client = await nats.connect(url)
    jetstream = client.jetstream(publish_async_max_pending=WINDOW)
    await _their_stream(jetstream)
    begin = now()
    for _ in range(count):
        await jetstream.publish_async("js", STREAM_PAYLOAD)
    await jetstream.publish_async_completed()
    spent = since(begin)
    await client.close()
    return spent


async def our_publish_awaited(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream()
        await _our_stream(jetstream)
        begin = now()
        for _ in range(count):
            await jetstream.publish("js", STREAM_PAYLOAD)
        return since(begin)


async def our_fetch(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream()
        await _our_filled_stream(jetstream, count)
        consumer = jetstream.pull_consumer("JS", "C")
        begin, left = now(), count
        while left:
            messages = await consumer.fetch(FETCH)
            for message in messages:
                await message.ack()
            left -= len(messages)
        await client.flush()
        return since(begin)


async def our_consume(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream()
        await _our_filled_stream(jetstream, count)
        begin, left = now(), count
        async with jetstream.pull_consumer("JS", "C").consume(batch=2 * FETCH) as messages:
            async for message in messages:
                await message.ack()
                left -= 1
                if not left:
                    break
        await client.flush()
        return since(begin)


async def their_fetch(url: str, count: int) -> Spent:
    async with await penstock.connect(url) as client:
        await _our_filled_stream(client.jetstream(), count)
    peer = await nats.connect(url)
    consumer = await peer.jetstream().pull_subscribe_bind(consumer="C", stream="JS")
    begin, left = now(), count
    while left:
        messages = await consumer.fetch(FETCH)
        for message in messages:
            await message.ack()
        left -= len(messages)
    await peer.flush()
    spent = since(begin)
    await peer.close()
    return spent


class Countdown:
    """Measures from the first to the last of a number of messages."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._begin: Spent | None = None
        self._spent: asyncio.Future[Spent] = asyncio.get_running_loop().create_future()

    def tick(self, _: object) -> None:
        if self._begin is None:
            self._begin = now()
        self.left -= 1
        if self.left == 0:
            self._spent.set_result(since(self._begin))

    async def spent(self) -> Spent:
        return await self._spent


class Blast:
    """
    A process that publishes as fast as the socket accepts it, so that receiving is what
    counts.
    """

    def __init__(self, url: str, count: int) -> None:
        self._command = [sys.executable, "-m", "benchmarks.clientloads", url, str(count)]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command)

    def __exit__(self, *_: object) -> None:
        self._process.wait()


def blast(url: str, count: int) -> None:
    """Publish `count` messages over a plain socket."""
    port = int(url.rpartition(":")[2])
    message = b"PUB bench %d\r\n%b\r\n" % (len(CORE_PAYLOAD), CORE_PAYLOAD)
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(b'CONNECT {"verbose":false}\r\n' + message * count + b"PING\r\n")
        while not connection.recv(65536).endswith(b"PONG\r\n"):
            pass


async def _our_stream(jetstream: penstock.client.JetStream) -> None:
    for name in await jetstream.streams.names():
        await jetstream.streams.delete(name)
    await jetstream.streams.create("JS", subjects=["js"])


async def _our_filled_stream(jetstream: penstock.client.JetStream, count: int) -> None:
    await _our_stream(jetstream)
    await jetstream.publish_batch([("js", STREAM_PAYLOAD)] * count)
    await jetstream.consumers.create(
        "JS", durable_name="C", ack_policy="explicit", max_ack_pending=10_000
    )


async def _their_stream(jetstream: nats.js.JetStreamContext) -> None:
    for info in await jetstream.streams_info():
        await jetstream.delete_stream(info.config.name)
    await jetstream.add_stream(name="JS", subjects=["js"])


if __name__ == "__main__":
    blast(sys.argv[1], int(sys.argv[2]))
