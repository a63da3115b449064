"""The work of core NATS scenarios: publish, subscribe, request, reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.bench.load.part import PATIENCE_S, Finish, Part, now_ns
from penstock.bench.load.payload import Checker, Chunk, Tags
from penstock.errors import ClientError

RESPONDERS = "bench"
"""The queue group of the responders, so that each request gets one reply."""


async def publish(part: Part) -> None:
    """Publish this client's messages as fast as the connection accepts them, then flush."""
    plan, client = part.plan, part.client
    prefix = b"PUB %b %d\r\n" % (client.encode_subject(plan.subject), plan.size_bytes)
    tags = Tags(part.index, plan.publishers)
    chunk = Chunk(prefix, plan.size_bytes, b"\r\n", tags, single=plan.rate > 0)
    outbox = client.connection.outbox
    messages = plan.share(part.index)
    await part.started()
    part.begin()
    due_ns = _paced(part) if plan.rate else _at_once
    for sequence in range(0, messages, chunk.messages):
        count = min(chunk.messages, messages - sequence)
        client.connection.check_open()
        # Whole chunks, encoded in advance: one `publish` per message would measure Python.
        outbox.add(chunk.fill(sequence, count, await due_ns(sequence)))
        part.count(count)
        await client.make_room()
        part.end()
    await client.flush(timeout_s=PATIENCE_S)
    part.end()


async def subscribe(part: Part) -> None:
    """Receive all messages of all publishers, and check them."""
    plan, client = part.plan, part.client
    checker = Checker(plan.publishers, plan.size_bytes, part.latency_ns)
    finish = Finish(part)

    def receive(operations: list[Any]) -> None:
        part.begin()
        checker.take(operations, now_ns())
        part.end()
        part.count(checker.received - part.messages)
        part.disordered, part.foreign = checker.disordered, checker.foreign
        if checker.received >= plan.messages:
            finish.reach()

    client.listen(plan.subject, receive)
    await client.flush(timeout_s=PATIENCE_S)
    await part.started()
    await finish.wait()


async def ask(part: Part) -> None:
    """Send requests one after another, each after the reply to the previous one."""
    plan, client = part.plan, part.client
    payload = bytes(plan.size_bytes)
    await part.started()
    part.begin()
    for _ in range(plan.share(part.index)):
        asked_ns = now_ns()
        reply = await client.request(plan.subject, payload, timeout_s=plan.stall_s)
        part.end()
        part.latency_ns.record(part.end_ns - asked_ns)
        if len(reply.payload) != plan.size_bytes:
            raise ClientError(f"unexpected reply of {len(reply.payload)} bytes")
        part.count(1)


async def answer(part: Part) -> None:
    """Send each request's payload back, until all clients are done."""
    client = part.client
    finish = Finish(part)

    def receive(operations: list[Any]) -> None:
        part.begin()
        for operation in operations:
            client.send_nowait(operation[3], operation[5], b"", b"")
        part.end()
        part.count(len(operations))

    client.listen(part.plan.subject, receive, queue=RESPONDERS)
    await client.flush(timeout_s=PATIENCE_S)
    await part.started()
    await finish.wait()


async def _at_once(sequence: int) -> int:
    return now_ns()


def _paced(part: Part) -> Callable[[int], Awaitable[int]]:
    """Return a function that waits until a message is due and returns the due time."""
    interval_ns = 1_000_000_000 * part.plan.publishers / part.plan.rate
    # Publishers take turns instead of all starting together.
    first_ns = part.start_ns + interval_ns * part.index / part.plan.publishers

    async def due_ns(sequence: int) -> int:
        due = round(first_ns + sequence * interval_ns)
        early_ns = due - now_ns()
        if early_ns > 0:
            await asyncio.sleep(early_ns / 1e9)
        # Return when it should have been sent, not when it was: a server that blocks the
        # publisher must not look fast because of that.
        return due

    return due_ns
