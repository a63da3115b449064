"""
`penstock demo`: a broker, publishers and subscribers on this machine, live.

The broker runs in this process, as it does embedded in an application;
publishers and subscribers are processes of their own. Every subscriber checks
that it gets every message of every publisher, once and in order.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
import sys
import time
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from typing import Any, TextIO

PUBLISHERS = 2
SUBSCRIBERS = 4
MESSAGES = 200_000
"""Messages of each publisher."""
PAYLOAD = struct.Struct(">IQ116x")
"""Publisher, sequence, and room up to 128 bytes."""
SUBJECT = "demo.orders"
REFRESH_S = 0.1
STALLED_S = 30.0
READY, FAILED = -1, -2
"""What a subscriber's counter says besides the number of messages it has."""


def run(arguments: Sequence[str]) -> int:
    """Run the demo; 0 when every subscriber got everything in order."""
    if arguments:
        print("usage: penstock demo\n\nTakes no options; Ctrl-C stops it.", file=sys.stderr)
        return 0 if arguments[0] in ("-h", "--help") else 2
    try:
        return _demo(sys.stdout)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def _demo(out: TextIO) -> int:
    import penstock
    from penstock import _hot

    context = multiprocessing.get_context("spawn")
    with penstock.serve() as server:
        hot_path = "compiled" if _hot.COMPILED else "pure Python"
        print(f"broker      {server.url} ({hot_path} hot path, embedded in this process)", file=out)
        counters = context.Array("q", SUBSCRIBERS, lock=False)
        start = context.Event()
        workers = [
            context.Process(target=_subscribe, args=(server.url, index, counters), daemon=True)
            for index in range(SUBSCRIBERS)
        ] + [
            context.Process(target=_publish, args=(server.url, index, start), daemon=True)
            for index in range(PUBLISHERS)
        ]
        try:
            for worker in workers:
                worker.start()
            return _watch(counters, start, workers, out)
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


def _watch(counters: Any, start: Any, workers: list[SpawnProcess], out: TextIO) -> int:
    _wait_until_ready(counters, workers)
    expected = PUBLISHERS * MESSAGES * SUBSCRIBERS
    print(f"publishers  {PUBLISHERS} processes, {MESSAGES:,} messages of {PAYLOAD.size} B each")
    print(f"subscribers {SUBSCRIBERS} processes, every one gets every message\n", file=out)
    started = moved = time.monotonic()
    start.set()
    received = 0
    while received < expected:
        time.sleep(REFRESH_S)
        if FAILED in counters[:] or time.monotonic() - moved > STALLED_S:
            print("\n\nFAILED: a message was lost or out of order", file=out)
            return 1
        before, received = received, sum(max(count, 0) for count in counters)
        if received != before:
            moved = time.monotonic()
        _show(received, expected, received - before, out)
    elapsed = moved - started
    print(f"\n\npublished   {PUBLISHERS * MESSAGES:>12,}", file=out)
    print(f"received    {expected:>12,}   0 lost, 0 out of order", file=out)
    print(f"throughput  {expected / elapsed:>12,.0f} msgs/s delivered in {elapsed:.2f} s", file=out)
    return 0


def _wait_until_ready(counters: Any, workers: list[SpawnProcess]) -> None:
    while any(count != READY for count in counters):
        dead = [worker for worker in workers if worker.exitcode not in (None, 0)]
        if dead:
            raise SystemExit(f"penstock demo: a worker ended with code {dead[0].exitcode}")
        time.sleep(REFRESH_S / 10)


def _show(received: int, expected: int, fresh: int, out: TextIO) -> None:
    """Redraw the progress bar; on something that is no terminal say only how it ended."""
    if not out.isatty() and received < expected:
        return
    filled = 40 * received // expected
    rate = fresh / REFRESH_S
    bar = "█" * filled + "░" * (40 - filled)
    out.write(f"\r{bar} {received:>11,} / {expected:,}  {rate:>11,.0f} msgs/s ")
    out.flush()


def _publish(url: str, publisher: int, start: Any) -> None:
    async def main() -> None:
        import penstock

        async with await penstock.connect(url) as client:
            await asyncio.to_thread(start.wait)
            for sequence in range(MESSAGES):
                await client.publish(SUBJECT, PAYLOAD.pack(publisher, sequence))
            await client.flush()

    _run_worker(main())


def _subscribe(url: str, index: int, counters: Any) -> None:
    async def main() -> None:
        import penstock

        async with await penstock.connect(url) as client:
            subscription = await client.subscribe(SUBJECT)
            await client.flush()
            counters[index] = READY
            await _check_order(subscription, index, counters)

    _run_worker(main())


async def _check_order(subscription: Any, index: int, counters: Any) -> None:
    following = [0] * PUBLISHERS
    async for batch in subscription.batches():
        for message in batch:
            publisher, sequence = PAYLOAD.unpack(message.payload)
            if sequence != following[publisher]:
                counters[index] = FAILED
                return
            following[publisher] = sequence + 1
        counters[index] = sum(following)


def _run_worker(main: Any) -> None:
    """Ctrl-C reaches the whole process group; the parent is the one to speak of it."""
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
