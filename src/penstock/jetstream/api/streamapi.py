"""The API calls about streams and the messages in them."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Generator
from typing import Any

from penstock.config.accounts import JetStreamLimits
from penstock.errors import JetStreamError, StoreError
from penstock.jetstream.api import streaminfo
from penstock.jetstream.api.api import Answer, ApiRequest, Call, Deferred, Portions, Shown
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import STREAM_REQUEST_FIELDS, StreamConfig
from penstock.jetstream.store import lookup
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Message
from penstock.jetstream.stream import Stream
from penstock.protocol import errorcodes, jsontext
from penstock.protocol.jsontext import Encoded
from penstock.protocol.rfc3339 import format_time
from penstock.protocol.version import API_LEVEL

NAMES_MAX = 1024
LIST_MAX = 256
SUBJECT_DETAILS_MAX = 100_000
DELETED_DETAILS_MAX = 100_000
ENCODED_AT_ONCE = 4096
"""The number of subjects to encode before others have their turn."""

INFO_FIELDS = {"offset": "int", "deleted_details": "bool", "subjects_filter": "subject"}
LIST_FIELDS = {"offset": "int", "subject": "subject"}
PURGE_FIELDS = {"filter": "subject", "seq": "uint64", "keep": "uint64"}
DELETE_FIELDS = {"seq": "uint64", "no_erase": "bool"}
NO_ROOM = JetStreamLimits(
    max_memory=0,
    max_store=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    store_max_stream_bytes=0,
)
"""The limits of an account with tiers, outside those tiers."""
UNPAGED = {"total": 0, "offset": 0, "limit": 0}


def account_info(request: ApiRequest) -> Answer:
    """`INFO`: the usage and the limits of the account."""
    engine, limits = request.engine, request.engine.quota.limits
    used = {
        "memory": engine.used_bytes("memory"),
        "storage": engine.used_bytes("file"),
        "reserved_memory": engine.reserved_bytes("memory"),
        "reserved_storage": engine.reserved_bytes("file"),
        "streams": len(engine.streams),
        "consumers": sum(len(stream.consumers) for stream in engine.streams.values()),
    }
    info: dict[str, Any] = used | {"limits": _limits(NO_ROOM if limits.tier else limits)}
    if limits.tier:
        # All streams of one server belong to one tier, so the tier uses as much as the account.
        info["tiers"] = {limits.tier: used | {"limits": _limits(limits)}}
    if engine.context.domain:
        info["domain"] = engine.context.domain
    # The request itself is not counted.
    context = engine.context
    counts = {"total": context.api_requests - 1, "errors": context.api_errors}
    return info | {"api": {"level": API_LEVEL} | counts}


def _limits(limits: JetStreamLimits) -> dict[str, Any]:
    return {
        "max_memory": limits.max_memory,
        "max_storage": limits.max_store,
        "max_streams": limits.max_streams,
        "max_consumers": limits.max_consumers,
        "max_ack_pending": limits.max_ack_pending,
        "memory_max_stream_bytes": limits.memory_max_stream_bytes,
        "storage_max_stream_bytes": limits.store_max_stream_bytes,
        "max_bytes_required": limits.max_bytes_required,
    }


def create(request: ApiRequest) -> Answer:
    """`STREAM.CREATE.<stream>`."""
    values = request.decode(STREAM_REQUEST_FIELDS, "StreamConfigRequest")
    name = request.names[0]
    if values.get("name", "") != name:
        raise JetStreamError(errorcodes.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise JetStreamError(errorcodes.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    config = StreamConfig.from_json(values)

    def done(stream: Stream | None, error: JetStreamError | None) -> None:
        if stream is None:
            request.refuse(error)
            return
        answer = streaminfo.describe(stream) | {"did_create": True}
        # This is the only answer about a stream that leaves out its domain.
        answer.pop("domain", None)
        request.answer(answer)

    request.engine.create_stream(config, done, pedantic=values.get("pedantic", False))
    return None


def update(request: ApiRequest) -> Portions:
    """`STREAM.UPDATE.<stream>`, with the whole configuration."""
    values = request.decode(STREAM_REQUEST_FIELDS, "StreamConfigRequest")
    config, pedantic = StreamConfig.from_json(values), values.get("pedantic", False)
    rules.checked(config, request.engine.find_config, pedantic=pedantic)
    if config.name != request.names[0]:
        raise JetStreamError(errorcodes.STREAM_MISMATCH)
    stream = request.stream()

    def done(updated: Stream | None, error: JetStreamError | None) -> None:
        if updated is None:
            request.refuse(error)
        else:
            request.answer(streaminfo.describe(updated))

    checked = request.engine.check_update(stream, config, pedantic=pedantic)
    try:
        with stream.prepared(checked) as portions:
            took_turns = False
            for _ in portions:
                took_turns = True
                yield
            if took_turns:  # and much may have changed meanwhile
                stream = request.stream()
                checked = request.engine.check_update(stream, config, pedantic=pedantic)
            request.engine.update_stream(stream, checked, done)
    except StoreError as error:
        raise JetStreamError(errorcodes.STREAM_STORE_FAILED, err=error) from None
    return None


def info(request: ApiRequest) -> Portions:
    """`STREAM.INFO.<stream>`, optionally with its subjects and its deleted messages."""
    options = request.decode_options(INFO_FIELDS, "JSApiStreamInfoRequest")
    stream = request.stream()
    offset = max(options.get("offset", 0), 0)
    pattern = options.get("subjects_filter", "")
    listed, total = None, 0
    if pattern:
        listed, total = yield from _list_subjects(stream.store, pattern.encode(), offset)
    answer = streaminfo.describe(stream)
    state = streaminfo.state(
        stream,
        subjects=listed,
        deleted_max=DELETED_DETAILS_MAX if options.get("deleted_details") else 0,
    )
    answer["state"] = Encoded(jsontext.encode(state))
    told = answer.pop("ts")
    page = UNPAGED
    if total:
        page = {"total": total, "offset": offset, "limit": SUBJECT_DETAILS_MAX}
    origins = {name: answer.pop(name) for name in ("mirror", "sources") if name in answer}
    cluster = {"cluster": {"leader": request.engine.shared.server_name}}
    return page | answer | cluster | origins | {"ts": told}


def _list_subjects(
    store: Store, pattern: bytes, offset: int
) -> Generator[None, None, tuple[Encoded | None, int]]:
    """Return a page of the matching subjects with their messages, and the number of all matches."""
    counts: dict[bytes, int] = {}
    runs: deque[list[bytes]] = deque()
    for portion in store.count_portions(pattern):
        counts |= portion
        runs.append(sorted(portion))
        yield
    while len(runs) > 1:
        # Merging two sorted lists is quick.
        runs.append(sorted(runs.popleft() + runs.popleft()))
        yield
    page = runs.pop()[offset : offset + SUBJECT_DETAILS_MAX] if runs else []
    members: list[str] = []
    for start in range(0, len(page), ENCODED_AT_ONCE):
        some = page[start : start + ENCODED_AT_ONCE]
        members.append(
            jsontext.members({each.decode(errors="replace"): counts[each] for each in some})
        )
        yield
    return Encoded("{" + ",".join(members) + "}") if page else None, len(counts)


def names(request: ApiRequest) -> Answer:
    """`STREAM.NAMES`, optionally only of the streams that store a subject."""
    streams, page = _page(request, NAMES_MAX, "JSApiStreamNamesRequest")
    return page | {"streams": [stream.name for stream in streams] or None}


def list_streams(request: ApiRequest) -> Answer:
    """`STREAM.LIST`: the same streams, with their StreamInfo."""
    streams, page = _page(request, LIST_MAX, "JSApiStreamListRequest")
    listed = [streaminfo.describe(stream, stream.config.encoded) for stream in streams]
    return page | {"streams": jsontext.encode_all(listed)}


def _page(request: ApiRequest, limit: int, type_name: str) -> tuple[list[Stream], dict[str, int]]:
    options = request.decode_options(LIST_FIELDS, type_name)
    pattern, streams = options.get("subject", ""), request.engine.streams
    names = request.engine.storing([pattern]) & streams.keys() if pattern else streams
    found = [streams[name] for name in sorted(names)]
    offset = min(max(options.get("offset", 0), 0), len(found))
    page = {"total": len(found), "offset": offset, "limit": limit}
    return found[offset : offset + limit], page


def delete(request: ApiRequest) -> Answer:
    """`STREAM.DELETE.<stream>`."""
    if not request.is_empty:
        raise JetStreamError(errorcodes.NOT_EMPTY_REQUEST)
    request.engine.delete_stream(request.stream(), lambda: request.answer({"success": True}))
    return None


def purge(request: ApiRequest) -> Portions:
    """`STREAM.PURGE.<stream>`: all, or by subject, below a sequence, beyond a number to keep."""
    options = request.decode_options(PURGE_FIELDS, "JSApiStreamPurgeRequest")
    before, keep = options.get("seq", 0), options.get("keep", 0)
    if before and keep:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    stream = request.stream()
    if stream.config.sealed:
        raise JetStreamError(errorcodes.STREAM_SEALED)
    if stream.config.deny_purge:
        raise JetStreamError(errorcodes.STREAM_PURGE_FAILED, err="stream purge not permitted")
    pattern = options.get("filter", "").encode() or b">"
    first = yield from lookup.search(stream.store, 0, (pattern,))
    answer = _Purged(stream, pattern, before, first[0] if first else 0)
    if keep:
        before = yield from stream.store.keeping(pattern, keep)
        if not before:
            return answer.after(0, keep)
    if pattern == b">" and (keep or not 0 < before <= stream.store.last_sequence):
        return answer.after(stream.purge(pattern, before=before), keep)
    purged = 0
    try:
        for count in stream.purge_in_portions(pattern, before=before):
            purged += count
            yield
    except StoreError:
        if not stream.is_in_doubt:
            answer.refuse()
            return None
    yield from _skip_purged(stream, pattern)
    return answer.after(purged, keep)


def _skip_purged(stream: Stream, pattern: bytes) -> Generator[None, None, None]:
    """Move consumers that wait for what was purged to the first message it left for them."""
    if any(consumer.is_within(pattern) for consumer in stream.consumers.values()):
        left = yield from lookup.search(stream.store, 0, (pattern,))
        stream.skip_purged(pattern, left[0] if left else stream.store.last_sequence + 1)


class _Purged:
    """The answer to a purge, whether the disk fails or not."""

    def __init__(self, stream: Stream, pattern: bytes, before: int, first_sequence: int) -> None:
        self._stream = stream
        self._filters = (pattern,)
        self._end = before or stream.store.last_sequence + 1
        self._first_sequence = first_sequence
        """The first message to purge; 0 if there is none."""

    def after(self, purged: int, keep: int = 0) -> Deferred:
        """Answer once it is safe that this number of messages is gone, all but the kept ones."""
        store = self._stream.store
        last_sequence = store.last_sequence

        def is_kept() -> bool:
            if last_sequence > store.last_sequence or (purged and not self._is_begun):
                return False
            left = None if keep else next(lookup.following(store, 0, self._filters), None)
            return left is None or left[0] >= self._end

        document = {"success": True, "purged": purged}
        return Deferred(self._stream, document, is_kept, lambda: not self._is_begun)

    def refuse(self) -> None:
        """Answer that nothing was purged; a purge that was done in part gets no answer."""
        if not self._is_begun:
            raise JetStreamError(
                errorcodes.STREAM_STORE_FAILED, err=self._stream.store.failure or "taken back"
            )

    @property
    def _is_begun(self) -> bool:
        """Whether a part of it was done."""
        first = self._first_sequence
        store = self._stream.store
        return 0 < first <= store.last_sequence and store.get(first) is None


def delete_message(request: ApiRequest) -> Answer:
    """`STREAM.MSG.DELETE.<stream>`: one message, overwritten unless `no_erase`."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    options = request.decode(DELETE_FIELDS, "JSApiMsgDeleteRequest")
    stream = request.stream()
    if stream.config.sealed:
        raise JetStreamError(errorcodes.STREAM_SEALED)
    if stream.config.deny_delete:
        raise _delete_failed("message delete not permitted")
    if stream.is_failing:
        raise JetStreamError(errorcodes.STREAM_STORE_FAILED, err=stream.store.failure)
    sequence, store = options.get("seq", 0), stream.store
    if not stream.delete(sequence, erase=not options.get("no_erase", False)):
        raise _not_there(stream, sequence)
    # A message that was taken back was never there, and another may get its sequence.
    return Deferred(
        stream,
        {"success": True},
        lambda: sequence <= store.last_sequence and store.get(sequence) is None,
    )


def _not_there(stream: Stream, sequence: int) -> JetStreamError:
    """Return nats-server's error for a message that cannot be deleted."""
    store = stream.store
    is_within = store.first_sequence <= sequence <= store.last_sequence
    if is_within or stream.config.storage == "memory":
        return JetStreamError(errorcodes.SEQUENCE_NOT_FOUND, seq=sequence)
    is_after = sequence > store.last_sequence
    return _delete_failed("stream store EOF" if is_after else "no message found")


def _delete_failed(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_MESSAGE_DELETE_FAILED, err=text)


def get_message(request: ApiRequest) -> Portions:
    """`STREAM.MSG.GET.<stream>`: one message by sequence, by time or by subject."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    options = request.decode(lookup.FIELDS, "JSApiMsgGetRequest")
    if options.get("batch") or options.get("max_bytes") or not lookup.is_one_question(options):
        raise JetStreamError(errorcodes.BAD_REQUEST)
    stream = request.stream()
    try:
        options = lookup.with_times(options)
    except ValueError as error:
        raise JetStreamError(errorcodes.INVALID_JSON, err=error) from None
    message = yield from lookup.finding(stream.store, options)
    if message is None:
        raise JetStreamError(errorcodes.NO_MESSAGE_FOUND)
    document = {"message": _stored(message, with_headers=not options.get("no_hdr"))}
    return Shown(document, message[0])


def _stored(message: Message, *, with_headers: bool) -> dict[str, Any]:
    sequence, time_ns, subject, header, payload = message
    document: dict[str, Any] = {"subject": subject.decode(errors="replace"), "seq": sequence}
    if header and with_headers:
        document["hdrs"] = base64.b64encode(header).decode()
    if payload:
        document["data"] = base64.b64encode(payload).decode()
    return document | {"time": format_time(time_ns)}


CALLS = {
    ("INFO",): Call("account_info", 0, account_info),
    ("STREAM", "CREATE"): Call("stream_create", 1, create),
    ("STREAM", "UPDATE"): Call("stream_update", 1, update),
    ("STREAM", "INFO"): Call("stream_info", 1, info, UNPAGED, is_view=True),
    ("STREAM", "NAMES"): Call("stream_names", 0, names, UNPAGED | {"streams": None}),
    ("STREAM", "LIST"): Call("stream_list", 0, list_streams, UNPAGED | {"streams": []}),
    ("STREAM", "DELETE"): Call("stream_delete", 1, delete),
    ("STREAM", "PURGE"): Call("stream_purge", 1, purge, {"purged": 0}),
    ("STREAM", "MSG", "GET"): Call(
        "stream_msg_get", 1, get_message, is_audited=False, is_view=True
    ),
    ("STREAM", "MSG", "DELETE"): Call("stream_msg_delete", 1, delete_message, is_view=True),
}
