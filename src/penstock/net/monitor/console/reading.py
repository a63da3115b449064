"""
Reading what is stored, as somebody who has signed in: messages, keys and objects.

Each is read by a request of that user, so nobody reads more here than with a client. One answer
is bounded: long payloads are cut, and a page asks for the whole of one message.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.client import Client
from penstock.client.jetstream.streams import StoredMessage
from penstock.errors import JetStreamError, PenstockError
from penstock.net.monitor.console.fields import Fields, number, text
from penstock.net.monitor.console.signing import Refused, Visit
from penstock.protocol.compression import decompress, is_compressed

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

MESSAGES = 25
MESSAGES_MAX = 100
SHOWN_BYTES = 32 * 1024
WHOLE_BYTES = 1024 * 1024
SUBJECTS_MAX = 500
LOOKED_AT_MAX = 2000
"""The number of messages to read in search of the newest ones of a subject."""
HISTORY_MAX = 64


async def messages(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return some messages of a stream: from a sequence or a time on, or the newest."""
    stream, pattern = text(fields, "stream"), text(fields, "subject", "") or ">"
    count = number(fields, "count", MESSAGES, most=MESSAGES_MAX)
    client = visit.client
    state = (await client.jetstream().streams.info(stream))["state"]
    first, last = max(state["first_seq"], 1), state["last_seq"]
    if "time" in fields:
        start = _sequence_at(server, visit, stream, text(fields, "time"))
    elif "sequence" in fields:
        start = number(fields, "sequence")
    else:
        before = number(fields, "before", 0) or last + 1
        found = await _newest(client, stream, pattern, (first, before), count)
        return {"messages": found, "first": first, "last": last}
    following = await _from(client, stream, pattern, (max(start, first), last + 1), count)
    described = [await describe(each) for each in following]
    return {"messages": described, "first": first, "last": last}


async def message(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return one message with its whole payload, up to a bound."""
    streams = visit.client.jetstream().streams
    found = await streams.get(text(fields, "stream"), seq=number(fields, "sequence"))
    return await describe(found, WHOLE_BYTES)


async def subjects(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return subjects of a stream with the number of messages of each."""
    stream, search = text(fields, "stream"), text(fields, "search", "")
    is_pattern = "*" in search or ">" in search
    info = await visit.client.jetstream().streams.info(
        stream, subjects_filter=search if is_pattern else ">"
    )
    found: dict[str, int] = info["state"].get("subjects") or {}
    chosen = sorted(each for each in found if is_pattern or search.lower() in each.lower())
    return {
        "subjects": [[each, found[each]] for each in chosen[:SUBJECTS_MAX]],
        "matched": len(chosen),
        "total": info["state"].get("num_subjects", 0),
    }


async def history(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return the messages of one subject, the newest first: the history of a key."""
    stream, subject = text(fields, "stream"), text(fields, "subject")
    found = await _from(visit.client, stream, subject, (1, 2**63), HISTORY_MAX)
    return {"messages": [await describe(each) for each in reversed(found)]}


async def objects(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return the objects of an object store, by what is told about each."""
    stream = text(fields, "stream")
    pattern = f"$O.{stream.removeprefix('OBJ_')}.M.>"
    streams = visit.client.jetstream().streams
    info = await streams.info(stream, subjects_filter=pattern)
    names = sorted(info["state"].get("subjects") or {})
    found = []
    for subject in names[:SUBJECTS_MAX]:
        with suppress(JetStreamError, ValueError, RecursionError):
            meta = json.loads((await streams.get(stream, last_by_subj=subject)).payload)
            if isinstance(meta, dict):
                kept = ("name", "size", "chunks", "mtime", "digest", "description", "deleted")
                found.append({name: meta.get(name) for name in kept})
    return {"objects": found, "total": len(names)}


async def _from(
    client: Client, stream: str, pattern: str, between: tuple[int, int], count: int
) -> list[StoredMessage]:
    """Return messages from a sequence on and before another one, the oldest first."""
    streams = client.jetstream().streams
    found: list[StoredMessage] = []
    sequence, end = between
    while len(found) < count and sequence < end:
        try:
            one = await streams.get(stream, seq=sequence, next_by_subj=pattern)
        except JetStreamError as error:
            if not error.is_not_found:
                raise
            break
        if one.sequence >= end:
            break
        found.append(one)
        sequence = one.sequence + 1
    return found


async def _newest(
    client: Client, stream: str, pattern: str, between: tuple[int, int], count: int
) -> list[Json]:
    """Return the newest messages before a sequence, the newest first."""
    first, end = between
    found: list[StoredMessage] = []
    size, left = count, LOOKED_AT_MAX
    # How far back they are is not known: look at more and more, until there are enough.
    while len(found) < count and end > first and left > 0:
        start = max(first, end - size)
        older = await _from(client, stream, pattern, (start, end), left)
        found = older + found
        left -= len(older)
        end, size = start, size * 4
    return [await describe(each) for each in reversed(found[-count:])]


def _sequence_at(server: Watched, visit: Visit, stream: str, moment: str) -> int:
    """Return the first sequence at a time. Whoever gets here may already see the stream's state."""
    try:
        time_ns = round(datetime.fromisoformat(moment).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise Refused(400, "`time` is no time; hint: 2026-01-31T12:00:00Z") from None
    engine = server.journal.engines.get(visit.account) if server.journal is not None else None
    found = engine.streams.get(stream) if engine is not None else None
    return found.store.sequence_at(max(time_ns, 0)) if found is not None else 1


async def describe(found: StoredMessage, shown_bytes: int = SHOWN_BYTES) -> Json:
    """Return a message as the page shows it: text as text, anything else in base64."""
    payload, opened = found.payload, ""
    if is_compressed(payload):
        try:
            payload = await asyncio.to_thread(decompress, payload)
            opened = "decompressed"
        except PenstockError as error:
            opened = str(error)
    shown = payload[:shown_bytes]
    described: Json = {
        "sequence": found.sequence,
        "subject": found.subject,
        "time": found.time,
        "headers": [list(each) for each in found.header_pairs],
        "size": len(found.payload),
        "is_cut": len(payload) > shown_bytes,
        "opened": opened,
    }
    try:
        # The cut may go through a character.
        decoder = codecs.getincrementaldecoder("utf-8")()
        return described | {"text": decoder.decode(shown, final=len(shown) == len(payload))}
    except UnicodeDecodeError:
        return described | {"base64": base64.b64encode(shown).decode()}


READS = {
    "messages": messages,
    "message": message,
    "subjects": subjects,
    "history": history,
    "objects": objects,
}
"""Every kind of reading by its name; dead letters are added where both are known."""
