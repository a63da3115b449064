"""The stream that the Spark benchmarks read: envelopes of about 200 bytes."""

import os

from penstock.client import Outgoing, connect
from penstock.net.process import cpu_s, family

STREAM = "ENVELOPES"
SUBJECTS = 5000
PUBLISH_WINDOW = 10_000


def envelope(number: int) -> bytes:
    """Return one of the envelopes."""
    return b'{"event_id":"%032d","aggregate_id":"order-%d","payload":"%b"}' % (
        *(number, number % SUBJECTS),
        b"x" * 110,
    )


async def fill(url: str, first: int, count: int) -> None:
    """Publish a range of envelopes, on 5,000 subjects."""
    async with await connect(url) as client:
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
    return {pid: cpu_s(pid) for pid in family(os.getpid())}


def spent_s(before: dict[int, float], after: dict[int, float]) -> float:
    """Return the time spent between two readings, without workers that have ended."""
    return sum(time_s - before.get(pid, 0.0) for pid, time_s in after.items())
