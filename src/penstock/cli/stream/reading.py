"""Read the messages of a stream one after the other, on any server and of any stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.client import JetStream, StoredMessage
from penstock.errors import JetStreamError
from penstock.protocol.rfc3339 import parse_time

BATCH = 500
ALL = ">"


async def messages(
    js: JetStream, stream: str, *, first: int = 1, last: int | None = None, subject: str = ALL
) -> AsyncIterator[StoredMessage]:
    """Iterate over stored messages; a consumer could not read a work queue beside its workers."""
    info = await js.streams.info(stream)
    end = info["state"]["last_seq"] if last is None else last
    in_batches = info["config"].get("allow_direct", False)
    sequence = max(first, 1)
    while sequence <= end:
        found = 0
        async for message in _page(js, stream, sequence, subject, in_batches=in_batches):
            if message.sequence > end:
                return
            found, sequence = found + 1, message.sequence + 1
            yield message
        if not found:
            return


async def first_since(js: JetStream, stream: str, time_ns: int) -> int:
    """Return the sequence of the first message since a time, by halving the interval."""
    state = (await js.streams.info(stream))["state"]
    low, high = int(state["first_seq"]), int(state["last_seq"]) + 1
    while low < high:
        middle = (low + high) // 2
        message = await anext(_page(js, stream, middle, ALL, in_batches=False), None)
        if message is None or parse_time(message.time) >= time_ns:
            high = middle
        else:
            low = message.sequence + 1
    return low


async def _page(
    js: JetStream, stream: str, sequence: int, subject: str, *, in_batches: bool
) -> AsyncIterator[StoredMessage]:
    request = {"seq": sequence, "next_by_subj": subject}
    try:
        if in_batches:
            async for message in js.streams.get_batch(stream, batch=BATCH, **request):
                yield message
        else:
            yield await js.streams.get(stream, **request)
    except JetStreamError as error:
        if not error.is_not_found:
            raise
