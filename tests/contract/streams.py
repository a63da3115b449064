"""Streams as the tests of JetStream want them."""

from __future__ import annotations

from penstock.client import JetStream


async def fresh_stream(jetstream: JetStream, name: str = "S", **config: object) -> None:
    """Make a stream that stores `s.>`, after deleting what earlier tests left."""
    for other in await jetstream.streams.names():
        await jetstream.streams.delete(other)
    await jetstream.streams.create(name, subjects=["s.>"], storage="memory", **config)


async def filled_stream(jetstream: JetStream, count: int, **config: object) -> None:
    """Make a stream with messages `0`, `1`, … and a durable pull consumer `C`."""
    await fresh_stream(jetstream)
    await jetstream.publish_batch([("s.a", b"%d" % number) for number in range(count)])
    await jetstream.consumers.create("S", durable_name="C", ack_policy="explicit", **config)


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
