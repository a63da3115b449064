"""The API calls that take a stream away as bytes, and bring it back."""

from __future__ import annotations

from penstock.errors import JetStreamError
from penstock.jetstream.api.api import Answer, ApiRequest, Call
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import STREAM_CONFIG_FIELDS, StreamConfig
from penstock.jetstream.snapshots.restore import Restore
from penstock.jetstream.snapshots.snapshot import Snapshot
from penstock.protocol import errorcodes, strictjson, subjects

SNAPSHOT_FIELDS = {
    "deliver_subject": "subject",
    "no_consumers": "bool",
    "chunk_size": "int",
    "window_size": "int",
    "jsck": "bool",
}
RESTORE_FIELDS = {"config": STREAM_CONFIG_FIELDS, "state": strictjson.ANYTHING}


def snapshot(request: ApiRequest) -> Answer:
    """`STREAM.SNAPSHOT.<stream>`: answer with its state; send its chunks to the deliver subject."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    stream = request.stream()
    options = request.decode(SNAPSHOT_FIELDS, "JSApiStreamSnapshotRequest")
    deliver = options.get("deliver_subject", "").encode()
    if not subjects.is_valid(deliver) or not subjects.is_literal(deliver):
        raise JetStreamError(errorcodes.SNAPSHOT_DELIVER_SUBJECT_INVALID)
    outgoing = Snapshot(request, stream, options)
    request.answer({"config": stream.config.to_json(), "state": outgoing.state})
    outgoing.start()
    return None


def restore(request: ApiRequest) -> Answer:
    """`STREAM.RESTORE.<stream>`: answer with the subject for its chunks."""
    if request.is_empty:
        raise JetStreamError(errorcodes.BAD_REQUEST)
    values = request.decode(RESTORE_FIELDS, "JSApiStreamRestoreRequest").get("config", {})
    name, engine = request.names[0], request.engine
    if (values.get("name") or name) != name:
        raise JetStreamError(errorcodes.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise JetStreamError(errorcodes.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    config = StreamConfig.from_json(values | {"name": name})
    config = rules.checked(config.with_static_metadata(), engine.find_config)
    if name in engine.streams:
        raise JetStreamError(errorcodes.STREAM_NAME_EXIST_RESTORE_FAILED)
    incoming = Restore(request, config)
    incoming.start()
    return {"deliver_subject": incoming.deliver_subject}


CALLS = {
    ("STREAM", "SNAPSHOT"): Call("stream_snapshot", 1, snapshot),
    ("STREAM", "RESTORE"): Call("stream_restore", 1, restore, {"deliver_subject": ""}),
}
