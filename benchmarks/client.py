"""
Measure our client beside nats-py, on one nats-server, and print the ratios against their goals.

The clients take turns, each in its own event loop, and the best of three rounds counts: what else
the machine does meanwhile, it does to both. Processor time per message is printed too, because it
does not depend on who else is running. Run it with `python -m benchmarks.client`.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata

import nats

import penstock
import penstock.client
from benchmarks.servers import HOST, Program, Server, find_command
from penstock import _hot

CORE_PAYLOAD = bytes(128)
STREAM_PAYLOAD = bytes(256)
FETCH = 500
WINDOW = 4000
"""nats-py's default, so both may have as many messages unacked."""

Spent = tuple[float, float]
"""Seconds of time, and of this process's processor time."""

Load = Callable[[str, int], Awaitable[Spent]]
"""Runs so many messages against a URL, and returns what they took."""


def now() -> Spent:
    """Start measuring."""
    return time.perf_counter(), time.process_time()


def since(begin: Spent) -> Spent:
    """Return what was spent since `begin`."""
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


@dataclass
class Result:
    """The best round of one client."""

    rate: float = 0.0
    cpu_us: float = field(default=float("inf"))

    def add(self, count: int, seconds: float, cpu_s: float) -> None:
        self.rate = max(self.rate, count / seconds)
        self.cpu_us = min(self.cpu_us, cpu_s / count * 1e6)


@dataclass(frozen=True)
class Shape:
    """One row: what we do, what they do, and how many times faster we must be."""

    name: str
    ours: Load
    theirs: Load
    goal: float
    count: int
    their_count: int


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


SHAPES = (
    Shape("publish, 128 B", our_publish, their_publish, 3, 400_000, 200_000),
    Shape("receive by callback, 128 B", our_receive, their_receive, 3, 300_000, 150_000),
    Shape("receive by async for, 128 B", our_iterate, their_iterate, 3, 300_000, 150_000),
    Shape("request and reply, one at a time", our_request, their_request, 1, 5_000, 5_000),
    Shape(
        "JetStream: asynchronous beside awaited publish",
        *(our_publish_async, their_publish_awaited, 5, 60_000, 3_000),
    ),
    Shape(
        "JetStream: asynchronous beside asynchronous",
        *(our_publish_async, their_publish_async, 2, 60_000, 20_000),
    ),
    Shape(
        "JetStream: awaited beside awaited publish",
        *(our_publish_awaited, their_publish_awaited, 1, 5_000, 3_000),
    ),
    Shape("pull: fetch 500 and ack", our_fetch, their_fetch, 2, 60_000, 20_000),
    Shape("pull: consume beside fetch", our_consume, their_fetch, 2, 60_000, 20_000),
)


class Countdown:
    """Measures from the first to the last of so many messages."""

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
    """A process that publishes as fast as a socket takes it, so that receiving is what counts."""

    def __init__(self, url: str, count: int) -> None:
        self._command = [sys.executable, "-m", "benchmarks.client", "--blast", url, str(count)]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command)

    def __exit__(self, *_: object) -> None:
        self._process.wait()


def blast(url: str, count: int) -> None:
    """Publish `count` messages with nothing but a socket."""
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


def measure(shape: Shape, url: str, *, rounds: int, share: float) -> tuple[Result, Result]:
    """Return our best round and theirs; they alternate."""
    ours, theirs = Result(), Result()
    for _ in range(rounds):
        for result, load, count in (
            (ours, shape.ours, int(shape.count * share)),
            (theirs, shape.theirs, int(shape.their_count * share)),
        ):
            seconds, cpu_s = asyncio.run(load(url, count))  # type: ignore[arg-type]
            result.add(count, seconds, cpu_s)
    return ours, theirs


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, one round")
    parser.add_argument("--only", default="", help="shapes with this in their name")
    parser.add_argument("--blast", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.blast:
        blast(options.blast[0], int(options.blast[1]))
        return 0
    program = Program("nats-server", (find_command("nats-server"), "-js", "-sd", "store"))
    _print_header()
    missed = 0
    for shape in SHAPES:
        if options.only not in shape.name:
            continue
        with Server(program) as server:
            url = f"nats://{HOST}:{server.port}"
            rounds, share = (1, 0.2) if options.quick else (options.rounds, 1.0)
            missed += not _print_row(shape, *measure(shape, url, rounds=rounds, share=share))
    return 1 if missed else 0


def _print_header() -> None:
    parser = "compiled" if _hot.COMPILED else "pure Python"
    print(
        f"penstock {penstock.__version__} ({parser} parser) beside nats-py "
        f"{metadata.version('nats-py')}, Python {sys.version.split()[0]}; messages/s, best round\n"
    )
    print(f"| {'shape':<46} | {'ours':>9} | {'nats-py':>8} | ratio | goal | CPU µs each |")
    print(f"|{'-' * 48}|{'-' * 10}:|{'-' * 9}:|------:|-----:|------------:|")


def _print_row(shape: Shape, ours: Result, theirs: Result) -> bool:
    ratio = ours.rate / theirs.rate
    cpu = f"{ours.cpu_us:.1f} / {theirs.cpu_us:.1f}"
    mark = "" if ratio >= shape.goal else " missed"
    print(
        f"| {shape.name:<46} | {ours.rate:9,.0f} | {theirs.rate:8,.0f} "
        f"| {ratio:5.1f} | {shape.goal:4.0f} | {cpu:>11} |{mark}",
        flush=True,
    )
    return ratio >= shape.goal


if __name__ == "__main__":
    sys.exit(main())
