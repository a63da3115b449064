"""
The server and the stream that the Spark benchmarks read: envelopes of about 200 bytes.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import process_cpu_s
from benchmarks.servers import find_command, free_port

STREAM = "ENVELOPES"
SUBJECTS = 5000
PUBLISH_WINDOW = 10_000


@dataclass(frozen=True)
class Server:
    """The server under measurement."""

    url: str
    pid: int


@contextmanager
def serving(command: str, directory: str) -> Iterator[Server]:
    """Run a server with its streams in a directory."""
    program, *arguments = command.split()
    port = free_port()
    process = subprocess.Popen(
        [
            *(find_command(program), *arguments, "-a", "127.0.0.1", "-p", str(port)),
            *("-js", "-sd", f"{directory}/store"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Server(f"nats://127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def envelope(number: int) -> bytes:
    """Return one of the envelopes."""
    return b'{"event_id":"%032d","aggregate_id":"order-%d","payload":"%b"}' % (
        *(number, number % SUBJECTS),
        b"x" * 110,
    )


async def fill(url: str, first: int, count: int) -> None:
    """Publish a range of envelopes, on 5,000 subjects."""
    from penstock.client import Outgoing, connect
    from penstock.errors import ConnectFailed

    deadline_s = time.monotonic() + 30
    while True:
        try:
            client = await connect(url)
            break
        except ConnectFailed:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)
    async with client:
        js = client.jetstream(window_messages_max=PUBLISH_WINDOW, ack_timeout_s=60.0)
        await js.streams.create(STREAM, subjects=[f"{STREAM}.>"])
        await js.streams.create("COPY", subjects=["COPY.>"])
        for number in range(first, count):
            subject = f"{STREAM}.{number % SUBJECTS}"
            await js.publish_with(Outgoing(subject, envelope(number)), _check)
        await js.flush()


def _check(ack: object, error: Exception | None) -> None:
    if error is not None:
        raise error


def processor_times() -> dict[int, float]:
    """Return the processor time of this process and of its running descendants."""
    return {pid: process_cpu_s(pid) for pid in descendants(os.getpid())}


def spent_s(before: dict[int, float], after: dict[int, float]) -> float:
    """Return the time spent between two readings, without workers that have ended."""
    return sum(time_s - before.get(pid, 0.0) for pid, time_s in after.items())


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    # A JVM starts its children from threads other than the first.
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = {int(child) for task in tasks for child in task.read_text().split()}
    return [pid, *[each for child in found for each in descendants(child)]]
