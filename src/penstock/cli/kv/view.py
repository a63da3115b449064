"""Buckets and their entries as text for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.cli.payload import payload_fields, payload_text
from penstock.cli.terminal import table
from penstock.cli.values import show_age, show_count, show_duration, show_size, show_time
from penstock.client.jetstream.keyvalue import STREAM_PREFIX, Entry
from penstock.protocol.tables import details

VALUE_WIDTH = 60


def list_text(infos: Sequence[dict[str, Any]]) -> str:
    """Return a table of buckets."""
    now = datetime.now(UTC)
    header = ("BUCKET", "VALUES", "HISTORY", "TTL", "SIZE", "STORAGE", "LAST")
    return table(header, [_row(info, now) for info in infos])


def history_text(entries: Sequence[Entry]) -> str:
    """Return a table of revisions."""
    rows = [
        (str(entry.revision), entry.operation, show_time(entry.time), _short(entry.value))
        for entry in entries
    ]
    return table(("REVISION", "OPERATION", "TIME", "VALUE"), rows, left=4)


def event_text(entry: Entry) -> str:
    """Return a line about a change."""
    value = f": {_short(entry.value)}" if entry.operation == "PUT" else ""
    return f"[{entry.revision}] {entry.operation} {entry.key}{value}"


def bucket_text(info: dict[str, Any]) -> str:
    """Return a page about one bucket."""
    config, state = info["config"], info["state"]
    rows = [
        ("description", config.get("description", "")),
        ("values", show_count(state["messages"])),
        ("keys", show_count(state.get("num_subjects", 0))),
        ("size", show_size(state["bytes"])),
        ("history", show_count(config["max_msgs_per_subject"])),
        ("ttl", show_duration(config["max_age"]) if config["max_age"] else "none"),
        ("max size", show_size(config["max_bytes"]) if config["max_bytes"] > 0 else "unlimited"),
        ("storage", config["storage"]),
        ("replicas", show_count(config["num_replicas"])),
        ("stream", config["name"]),
    ]
    title = f"Bucket {_name(info)}, created {show_time(info['created'])} UTC"
    return f"{title}\n\n{details(row for row in rows if row[1])}"


def bucket_document(info: dict[str, Any]) -> dict[str, Any]:
    """Return a bucket for JSON."""
    config, state = info["config"], info["state"]
    return {
        "bucket": _name(info),
        "description": config.get("description", ""),
        "values": state["messages"],
        "bytes": state["bytes"],
        "history": config["max_msgs_per_subject"],
        "ttl_ns": config["max_age"],
        "max_bytes": config["max_bytes"],
        "storage": config["storage"],
        "replicas": config["num_replicas"],
        "stream": config["name"],
    }


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return an entry for JSON."""
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "operation": entry.operation,
        "time": entry.time,
        **payload_fields(entry.value),
    }


def _row(info: dict[str, Any], now: datetime) -> tuple[str, ...]:
    config, state = info["config"], info["state"]
    return (
        _name(info),
        show_count(state["messages"]),
        show_count(config["max_msgs_per_subject"]),
        show_duration(config["max_age"]) if config["max_age"] else "-",
        show_size(state["bytes"]),
        config["storage"],
        show_age(state["last_ts"], now),
    )


def _name(info: dict[str, Any]) -> str:
    return str(info["config"]["name"]).removeprefix(STREAM_PREFIX)


def _short(value: bytes) -> str:
    """Shorten a value to one line."""
    text = payload_text(value).replace("\n", " ⏎ ")
    return text if len(text) <= VALUE_WIDTH else text[: VALUE_WIDTH - 1] + "…"
