"""More streams than descriptors: all of them store, and are there again after a kill."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path

from tests.aio import asynchronous
from tests.servers import DEADLINE_S, PENSTOCK, Program, ServerProcess

from penstock.client import Client, JetStream, connect

STREAMS = int(os.environ.get("DESCRIPTOR_STREAMS", "100"))
DESCRIPTORS = int(os.environ.get("DESCRIPTORS", "100"))
PATIENCE_S = 6 * DEADLINE_S


def limited(store: Path) -> ServerProcess:
    script = f'ulimit -n {DESCRIPTORS}; exec "$@"'
    program = Program("penstock", ("sh", "-c", script, "sh", *PENSTOCK.command))
    return ServerProcess(program, "", "-js", "-sd", str(store))


def patient(client: Client) -> JetStream:
    """Return a client that waits: ten thousand streams on a busy machine take their time."""
    return client.jetstream(request_timeout_s=PATIENCE_S, ack_timeout_s=PATIENCE_S)


async def use(jetstream: JetStream, name: str) -> None:
    """Make a stream and a consumer, and store, fetch and acknowledge a message."""
    await jetstream.streams.create(name, subjects=[name])
    await jetstream.consumers.create(name, durable_name="C", ack_policy="explicit")
    await jetstream.publish(name, b"1")
    async with jetstream.pull_consumer(name, "C") as consumer:
        (message,) = await consumer.fetch(1, expires_s=PATIENCE_S)
        await message.ack_sync(timeout_s=PATIENCE_S)


@asynchronous
async def test_streams_share_the_descriptors_there_are(tmp_path: Path) -> None:
    names = [f"S{number}" for number in range(STREAMS)]
    with limited(tmp_path) as running:
        async with await connect(running.url, connect_timeout_s=PATIENCE_S) as client:
            jetstream = patient(client)
            for first in range(0, STREAMS, 50):
                await asyncio.gather(*[use(jetstream, name) for name in names[first : first + 50]])
            await jetstream.publish_batch([(name, b"2") for name in names])
        running.signal(signal.SIGKILL)
        running.process.wait()
    with limited(tmp_path) as running:
        async with await connect(running.url, connect_timeout_s=PATIENCE_S) as client:
            jetstream = patient(client)
            assert (await jetstream.publish(names[0], b"3")).sequence == 3
            for name in names:
                assert (await jetstream.streams.get(name, seq=2)).payload == b"2"
                info = await jetstream.consumers.info(name, "C")
                assert info["ack_floor"]["stream_seq"] == 1


def test_the_limit_is_raised_to_what_is_allowed_and_said(tmp_path: Path) -> None:
    program = Program(
        "penstock", ("sh", "-c", 'ulimit -S -n 100; exec "$@"', "sh", *PENSTOCK.command)
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ServerProcess(program) as running:
        assert f"Raised the limit of open files from 100 to {hard}" in running.log
