"""The work of JetStream scenarios: publish in three ways, consume in two, put and get keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from penstock.bench.load.part import PATIENCE_S, Finish, Part, now_ns
from penstock.bench.load.payload import Checker, Chunk, Tags
from penstock.bench.scenarios.plan import Plan
from penstock.client import JetStream, Outgoing, PubAck, connect
from penstock.client.messages import ACK
from penstock.errors import ClientError
from penstock.protocol import wellknown

ACK_PENDING_MAX = 20_000
"""Maximum unacked deliveries of a consumer: high, so that the server is measured, not the limit."""

KEYS = 1000
"""The number of keys in a bucket."""


async def publish_sync(part: Part) -> None:
    """Publish one message after another, each after the ack of the previous one."""
    jetstream = _jetstream(part)
    await part.started()
    part.begin()
    for payload in payloads(part.plan, part.index):
        sent_ns = now_ns()
        await jetstream.publish(part.plan.subject, payload)
        _acked(part, sent_ns, 1)


async def publish_async(part: Part) -> None:
    """Publish with a window of unacked messages; count acks as they arrive."""
    jetstream = _jetstream(part)
    subject = part.plan.subject

    def on_ack(sent_ns: int, ack: PubAck | None, error: Exception | None) -> None:
        if error is not None:
            part.error = part.error or str(error)
        else:
            _acked(part, sent_ns, 1)

    await part.started()
    part.begin()
    for payload in payloads(part.plan, part.index):
        await jetstream.publish_with(Outgoing(subject, payload), partial(on_ack, now_ns()))
        part.client.connection.check_open()
    await jetstream.flush()


async def publish_batch(part: Part) -> None:
    """Publish batch after batch, each after all acks of the previous one."""
    jetstream = _jetstream(part)
    remaining = payloads(part.plan, part.index)
    await part.started()
    part.begin()
    while batch := [(part.plan.subject, payload) for payload in islice(remaining, part.plan.batch)]:
        sent_ns = now_ns()
        await jetstream.publish_batch(batch)
        _acked(part, sent_ns, len(batch))


async def pull(part: Part) -> None:
    """Pull every message of the stream through this client's own consumer, and ack each."""
    plan = part.plan
    jetstream = _jetstream(part)
    name = f"pull-{part.index}"
    await jetstream.consumers.create(plan.stream, durable_name=name, **_consumer())
    checker = Checker(1, plan.size_bytes, part.latency_ns)
    await part.started()
    part.begin()
    async with jetstream.pull_consumer(plan.stream, name).consume(batch=plan.batch) as consume:
        async for batch in consume.batches():
            _consumed(part, checker, [message.operation for message in batch])
            await part.client.make_room()
            if checker.received >= plan.messages:
                break
    await part.client.flush(timeout_s=PATIENCE_S)
    part.end()


async def push(part: Part) -> None:
    """Receive every message of the stream through this client's own push consumer, and ack each."""
    plan, client = part.plan, part.client
    jetstream = _jetstream(part)
    checker = Checker(1, plan.size_bytes, part.latency_ns)
    finish = Finish(part)
    inbox = client.new_inbox()

    def receive(operations: list[Any]) -> None:
        _consumed(part, checker, operations)
        if checker.received >= plan.messages:
            finish.reach()

    # The server sends nothing without a subscriber, so all of it happens on the clock.
    await jetstream.consumers.create(
        plan.stream, durable_name=f"push-{part.index}", deliver_subject=inbox, **_consumer()
    )
    await part.started()
    part.begin()
    client.listen(inbox, receive)
    await finish.wait()
    await client.flush(timeout_s=PATIENCE_S)
    part.end()


async def put(part: Part) -> None:
    """Put values one after another, cycling through the keys of a bucket."""
    jetstream = _jetstream(part)
    await part.started()
    part.begin()
    for number, payload in enumerate(payloads(part.plan, part.index)):
        sent_ns = now_ns()
        await jetstream.publish(key_subject(part.plan, number), payload)
        _acked(part, sent_ns, 1)


async def get(part: Part) -> None:
    """Get values one after another, cycling through the keys of a bucket."""
    plan, client = part.plan, part.client
    bucket = f"{wellknown.API}.DIRECT.GET.{bucket_stream(plan)}"
    await part.started()
    part.begin()
    for number in range(plan.share(part.index)):
        asked_ns = now_ns()
        reply = await client.request(
            f"{bucket}.{key_subject(plan, number)}", timeout_s=plan.stall_s
        )
        if len(reply.payload) != plan.size_bytes:
            raise ClientError(f"key {number}: {len(reply.payload)} bytes, status {reply.status}")
        _acked(part, asked_ns, 1)


async def make_stream(plan: Plan, url: str) -> None:
    """Create the stream to publish into."""
    async with await connect(url) as client:
        await client.jetstream().streams.create(
            plan.stream, subjects=[plan.subject], storage=plan.storage
        )


async def make_full_stream(plan: Plan, url: str) -> None:
    """Create the stream to read from, with all its messages."""
    await make_stream(plan, url)
    async with await connect(url) as client:
        jetstream = client.jetstream()
        alone = Plan(messages=plan.messages, size_bytes=plan.size_bytes)
        await _fill(jetstream, ((plan.subject, payload) for payload in payloads(alone, 0)))


async def make_bucket(plan: Plan, url: str) -> None:
    """Create the bucket to put values into, as ADR-8 defines a bucket."""
    async with await connect(url) as client:
        await client.jetstream().streams.create(
            bucket_stream(plan),
            subjects=[f"{wellknown.KEY_VALUE}{plan.stream}.>"],
            storage=plan.storage,
            max_msgs_per_subject=1,
            discard="new",
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
        )


async def make_full_bucket(plan: Plan, url: str) -> None:
    """Create the bucket to read from, with a value for every key."""
    await make_bucket(plan, url)
    async with await connect(url) as client:
        value = bytes(plan.size_bytes)
        keys = (key_subject(plan, number) for number in range(KEYS))
        await _fill(client.jetstream(), ((key, value) for key in keys))


async def stored(plan: Plan, url: str) -> int:
    """Return the number of messages in the stream, according to the server."""
    async with await connect(url) as client:
        info = await client.jetstream().streams.info(plan.stream)
        return int(info["state"]["messages"])


async def clean(plan: Plan, url: str) -> None:
    """Delete everything that a scenario may have created."""
    async with await connect(url) as client:
        streams = client.jetstream().streams
        for name in {plan.stream, bucket_stream(plan)} & set(await streams.names()):
            await streams.delete(name)


def bucket_stream(plan: Plan) -> str:
    """Return the stream behind the bucket."""
    return f"KV_{plan.stream}"


def key_subject(plan: Plan, number: int) -> str:
    """Return the subject of one of the keys."""
    return f"{wellknown.KEY_VALUE}{plan.stream}.key-{number % KEYS}"


def payloads(plan: Plan, publisher: int) -> Iterator[bytes]:
    """Yield the payloads of one publisher, numbered."""
    size, messages = plan.size_bytes, plan.share(publisher)
    chunk = Chunk(b"", size, b"", Tags(publisher, plan.publishers))
    for sequence in range(0, messages, chunk.messages):
        data = chunk.fill(sequence, chunk.messages, 0)
        for index in range(min(chunk.messages, messages - sequence)):
            yield data[index * size : (index + 1) * size]


def _jetstream(part: Part) -> JetStream:
    return part.client.jetstream(
        window_messages_max=part.plan.window,
        ack_timeout_s=part.plan.stall_s,
        request_timeout_s=part.plan.stall_s,
    )


def _consumer() -> dict[str, Any]:
    return {"ack_policy": "explicit", "max_ack_pending": ACK_PENDING_MAX, "mem_storage": False}


def _acked(part: Part, sent_ns: int, messages: int) -> None:
    part.end()
    part.latency_ns.record(part.end_ns - sent_ns)
    part.count(messages)


def _consumed(part: Part, checker: Checker, operations: list[Any]) -> None:
    """Check and ack the messages of one read."""
    checker.take(operations, part.end_ns)
    send = part.client.send_nowait
    for operation in operations:
        send(operation[3], ACK, b"", b"")
    part.end()
    part.count(checker.received - part.messages)
    part.disordered, part.foreign = checker.disordered, checker.foreign


async def _fill(jetstream: JetStream, messages: Iterator[tuple[str, bytes]]) -> None:
    while batch := list(islice(messages, jetstream.options.window_messages_max)):
        await jetstream.publish_batch(batch)
