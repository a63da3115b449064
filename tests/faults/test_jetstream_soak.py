"""
Publish, consume, purge and age out under limits: disk and memory stay level.

`SOAK_SECONDS` says how long; a few seconds show a leak by the message, minutes one by the hour.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.servers import DEADLINE_S, PENSTOCK, ServerProcess

from penstock.client import Client, connect

SECONDS = float(os.environ.get("SOAK_SECONDS", "12"))
MEGABYTE = 1 << 20
PAYLOAD = bytes(20_000)
BATCH = 100
STREAMS = {
    "COUNT": {"max_msgs": 200},
    "BYTES": {"max_bytes": 2 * MEGABYTE},
    "AGE": {"max_age": 500_000_000},
    "KEYS": {"max_msgs_per_subject": 1},
    "WORK": {"retention": "workqueue", "max_bytes": 4 * MEGABYTE},
    "PURGED": {},
}
STORED_BYTES_MAX = len(STREAMS) * 4 * 32 * MEGABYTE
"""Each stream keeps a segment that is not full, and a few that are about to be removed."""
GROWTH_BYTES_MAX = 12 * MEGABYTE


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 3 + 60)
def test_disk_and_memory_stay_level_under_limits(tmp_path: Path) -> None:
    with ServerProcess(PENSTOCK, "", "-js", "-sd", str(tmp_path)) as running:
        asyncio.run(soak(running, tmp_path))


async def soak(running: ServerProcess, store: Path) -> None:
    """Work for half of the time, take the figures, work on, and compare."""
    async with await connect(running.url) as client:
        await create(client)
        await work(client, SECONDS / 2)
        resident_bytes = running.resident_bytes
        await work(client, SECONDS / 2)
        assert running.resident_bytes < resident_bytes + GROWTH_BYTES_MAX
        assert disk_bytes(store) < STORED_BYTES_MAX
        await check(client)


async def create(client: Client) -> None:
    jetstream = client.jetstream()
    for name, config in STREAMS.items():
        await jetstream.streams.create(name, subjects=[f"{name}.>"], **config)
    await jetstream.consumers.create("WORK", durable_name="C", ack_policy="explicit")


async def work(client: Client, seconds: float) -> None:
    """Publish to all streams and consume, for so long."""
    end_s = asyncio.get_running_loop().time() + seconds
    jetstream = client.jetstream()
    async with jetstream.pull_consumer("WORK", "C") as consumer:
        while asyncio.get_running_loop().time() < end_s:
            for name in STREAMS:
                messages = [(f"{name}.{number % 50}", PAYLOAD) for number in range(BATCH)]
                await jetstream.publish_batch(messages)
            for message in await consumer.fetch(BATCH, no_wait=True):
                await message.ack()
            await jetstream.streams.purge("PURGED", keep=10)


async def check(client: Client) -> None:
    """See that each stream holds what its limits say."""
    states = {
        each["config"]["name"]: each["state"] for each in await client.jetstream().streams.list()
    }
    assert states["COUNT"]["messages"] == 200
    assert states["BYTES"]["bytes"] <= 2 * MEGABYTE
    assert states["KEYS"]["messages"] == 50
    assert states["WORK"]["bytes"] <= 4 * MEGABYTE
    assert states["PURGED"]["messages"] == 10
    async with asyncio.timeout(DEADLINE_S):
        while (await client.jetstream().streams.info("AGE"))["state"]["messages"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def disk_bytes(store: Path) -> int:
    """Return what the files take. One may go while we look."""
    total = 0
    for path in store.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
