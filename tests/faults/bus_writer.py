"""
A process that publishes numbered events, to be killed: it goes on where its journal ends.

The journal is its outbox: how many events the broker has acked. What was acked and not
written down is published again, under the same id.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.faults.bus_member import config

from penstock.bus import Envelope, EventBus
from penstock.errors import PenstockError

BATCH = 10
KEYS = 40


def event(topic: str, number: int) -> Envelope[int]:
    """Return an event of a topic: the same whoever asks."""
    key = f"k{number % KEYS}"
    return Envelope(aggregate_id=key, event_type="t", payload=number, event_id=f"{topic}-{number}")


def written(journal: Path) -> int:
    """Return how many events are acked."""
    return int(journal.read_text() or 0) if journal.exists() else 0


def write(journal: Path, number: int) -> None:
    """Have so many events be acked, or as many as before if we die now."""
    new = Path(f"{journal}.new")
    new.write_text(str(number))
    new.replace(journal)


async def main(url: str, namespace: str, topic: str, path: str, rate_per_s: str) -> None:
    """Publish until SIGTERM."""
    journal, stop = Path(path), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with EventBus(config(url, namespace, "writer")) as bus:
        number = written(journal)
        while not stop.is_set():
            batch = [event(topic, one) for one in range(number, number + BATCH)]
            try:
                await bus.publish_envelope_batch(topic, batch)
            except PenstockError:
                continue  # all of it again: what is stored is recognised
            number += BATCH
            write(journal, number)
            await asyncio.sleep(BATCH / float(rate_per_s))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
