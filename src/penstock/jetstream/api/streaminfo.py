"""StreamInfo: the description of a stream for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.protocol.jsontext import Encoded
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

Json = dict[str, Any]


def describe(stream: Stream, config: Json | Encoded | None = None) -> Json:
    """Return StreamInfo; `config` replaces the configuration of create and update answers."""
    info: Json = {
        "config": stream.config.to_answer() if config is None else config,
        "created": format_time(stream.created_ns),
        "state": state(stream),
    }
    if stream.context.domain:
        info["domain"] = stream.context.domain
    info |= stream.origins.info()
    return info | {"ts": format_time(stream.context.clock_ns())}


def state(stream: Stream, *, subjects: Encoded | None = None, deleted_max: int = 0) -> Json:
    """Return the figures of a stream, with these subjects and up to `deleted_max` gaps."""
    state = stream.store.state()
    document: Json = {
        "messages": state.messages,
        "bytes": state.size_bytes,
        "first_seq": state.first_sequence if state.last_sequence else 0,
        "first_ts": format_time(state.first_time_ns),
        "last_seq": state.last_sequence,
        "last_ts": format_time(state.last_time_ns or stream.last_time_ns),
    }
    optional: Json = {
        "num_subjects": state.subjects,
        "subjects": subjects,
        "num_deleted": state.deleted,
        "deleted": stream.store.deleted(deleted_max) if deleted_max else None,
        "lost": state.lost
        and {"msgs": stream.losses.sequences or None, "bytes": 0, "count": state.lost},
    }
    document |= {name: value for name, value in optional.items() if value}
    return document | {"consumer_count": stream.consumer_count}
