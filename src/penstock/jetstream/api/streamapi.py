"""The calls of the API that are about streams and the messages in them."""

from __future__ import annotations

import base64
from typing import Any

from penstock.errors import JetStreamError
from penstock.jetstream.api.api import Answer, Call, Deferred, Request
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import STREAM_REQUEST_FIELDS, StreamConfig
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Message, Store
from penstock.jetstream.stream import Stream
from penstock.protocol import errorcodes, jsontext
from penstock.protocol.rfc3339 import format_time
from penstock.version import API_LEVEL

NAMES_MAX = 1024
LIST_MAX = 256
SUBJECT_DETAILS_MAX = 100_000
DELETED_DETAILS_MAX = 100_000

INFO_FIELDS = {"offset": "int", "deleted_details": "bool", "subjects_filter": "subject"}
LIST_FIELDS = {"offset": "int", "subject": "subject"}
PURGE_FIELDS = {"filter": "subject", "seq": "uint64", "keep": "uint64"}
DELETE_FIELDS = {"seq": "uint64", "no_erase": "bool"}
UNPAGED = {"total": 0, "offset": 0, "limit": 0}


def account_info(request: Request) -> Answer:
    """`INFO`: what the account uses and may use."""
    engine, limits = request.engine, request.engine.limits
    info: dict[str, Any] = {
        "memory": engine.used_bytes("memory"),
        "storage": engine.used_bytes("file"),
        "reserved_memory": engine.reserved_bytes("memory"),
        "reserved_storage": engine.reserved_bytes("file"),
        "streams": len(engine.streams),
        "consumers": sum(len(stream.consumers) for stream in engine.streams.values()),
        "limits": {
            "max_memory": limits.memory_bytes_max,
            "max_storage": limits.storage_bytes_max,
            "max_streams": limits.streams_max,
            "max_consumers": limits.consumers_max,
            "max_ack_pending": limits.ack_pending_max,
            "memory_max_stream_bytes": limits.memory_stream_bytes_max,
            "storage_max_stream_bytes": limits.storage_stream_bytes_max,
            "max_bytes_required": limits.requires_max_bytes,
        },
    }
    if engine.domain:
        info["domain"] = engine.domain
    # The request that asks does not count itself.
    counts = {"total": engine.api.total - 1, "errors": engine.api.errors}
    return info | {"api": {"level": API_LEVEL} | counts}


def create(request: Request) -> Answer:
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
        answer = stream.info() | {"did_create": True}
        # The one answer about a stream that does not say where it is.
        answer.pop("domain", None)
        request.answer(answer)

    request.engine.create_stream(config, done, pedantic=values.get("pedantic", False))
    return None


def update(request: Request) -> Answer:
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
            request.answer(updated.info())

    request.engine.update_stream(stream, config, done, pedantic=pedantic)
    return None


def info(request: Request) -> Answer:
    """`STREAM.INFO.<stream>`, perhaps with its subjects and its deleted messages."""
    options = request.decode_options(INFO_FIELDS, "JSApiStreamInfoRequest")
    stream = request.stream()
    offset = max(options.get("offset", 0), 0)
    pattern = options.get("subjects_filter", "")
    found = stream.store.subjects(pattern.encode()) if pattern else []
    total = len(found)
    found.sort()
    answer = stream.info()
    answer["state"] = stream.state(
        subjects={
            subject.decode(errors="replace"): count
            for subject, _, count in found[offset : offset + SUBJECT_DETAILS_MAX]
        },
        deleted_max=DELETED_DETAILS_MAX if options.get("deleted_details") else 0,
    )
    told = answer.pop("ts")
    page = UNPAGED
    if total:
        page = {"total": total, "offset": offset, "limit": SUBJECT_DETAILS_MAX}
    origins = {name: answer.pop(name) for name in ("mirror", "sources") if name in answer}
    cluster = {"cluster": {"leader": request.engine.server_name}}
    return page | answer | cluster | origins | {"ts": told}


def names(request: Request) -> Answer:
    """`STREAM.NAMES`, perhaps only of those that store a subject."""
    streams, page = _page(request, NAMES_MAX, "JSApiStreamNamesRequest")
    return page | {"streams": [stream.name for stream in streams] or None}


def list_streams(request: Request) -> Answer:
    """`STREAM.LIST`: the same, with everything about them."""
    streams, page = _page(request, LIST_MAX, "JSApiStreamListRequest")
    listed = [stream.info_with(stream.config.encoded) for stream in streams]
    return page | {"streams": jsontext.encode_all(listed)}


def _page(request: Request, limit: int, type_name: str) -> tuple[list[Stream], dict[str, int]]:
    options = request.decode_options(LIST_FIELDS, type_name)
    pattern, streams = options.get("subject", ""), request.engine.streams
    names = request.engine.storing([pattern]) & streams.keys() if pattern else streams
    found = [streams[name] for name in sorted(names)]
    offset = min(max(options.get("offset", 0), 0), len(found))
    page = {"total": len(found), "offset": offset, "limit": limit}
    return found[offset : offset + limit], page


def delete(request: Request) -> Answer:
    """`STREAM.DELETE.<stream>`."""
    if not request.is_empty:
        raise JetStreamError(errorcodes.NOT_EMPTY_REQUEST)
    request.engine.delete_stream(request.stream(), lambda: request.answer({"success": True}))
    return None


def purge(request: Request) -> Answer:
    """`STREAM.PURGE.<stream>`: everything, or what matches, lies below or is too many."""
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
    purged = stream.purge(pattern, before=before, keep=keep)
    return Deferred(stream, {"success": True, "purged": purged})


def delete_message(request: Request) -> Answer:
    """`STREAM.MSG.DELETE.<stream>`: one message, overwritten unless `no_erase`."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    options = request.decode(DELETE_FIELDS, "JSApiMsgDeleteRequest")
    stream = request.stream()
    if stream.config.sealed:
        raise JetStreamError(errorcodes.STREAM_SEALED)
    if stream.config.deny_delete:
        raise _delete_failed("message delete not permitted")
    sequence = options.get("seq", 0)
    if not stream.remove([sequence], erase=not options.get("no_erase", False)):
        raise _not_there(stream.store, sequence)
    return Deferred(stream, {"success": True})


def _not_there(store: Store, sequence: int) -> JetStreamError:
    """Return what nats-server says of a message that cannot be deleted: it depends on where."""
    if sequence > store.last_sequence:
        return _delete_failed("stream store EOF")
    if sequence >= store.first_sequence:
        return JetStreamError(errorcodes.SEQUENCE_NOT_FOUND, seq=sequence)
    return _delete_failed("no message found")


def _delete_failed(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_MESSAGE_DELETE_FAILED, err=text)


def get_message(request: Request) -> Answer:
    """`STREAM.MSG.GET.<stream>`: one message by sequence, by time or by subject."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    options = request.decode(lookup.FIELDS, "JSApiMsgGetRequest")
    if options.get("batch") or options.get("max_bytes") or not lookup.is_one_question(options):
        raise JetStreamError(errorcodes.BAD_REQUEST)
    stream = request.stream()
    try:
        message = lookup.find(stream.store, lookup.with_times(options))
    except ValueError as error:
        raise JetStreamError(errorcodes.INVALID_JSON, err=error) from None
    if message is None:
        raise JetStreamError(errorcodes.NO_MESSAGE_FOUND)
    return {"message": _stored(message, with_headers=not options.get("no_hdr"))}


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
    ("STREAM", "INFO"): Call("stream_info", 1, info, UNPAGED),
    ("STREAM", "NAMES"): Call("stream_names", 0, names, UNPAGED | {"streams": None}),
    ("STREAM", "LIST"): Call("stream_list", 0, list_streams, UNPAGED | {"streams": []}),
    ("STREAM", "DELETE"): Call("stream_delete", 1, delete),
    ("STREAM", "PURGE"): Call("stream_purge", 1, purge, {"purged": 0}),
    ("STREAM", "MSG", "GET"): Call("stream_msg_get", 1, get_message, is_audited=False),
    ("STREAM", "MSG", "DELETE"): Call("stream_msg_delete", 1, delete_message),
}
