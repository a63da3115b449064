"""Text about streams: a list, a page about one, and live figures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.cli.settings import shown
from penstock.cli.stream.settings import STREAM_SETTINGS
from penstock.cli.terminal import table
from penstock.cli.values import show_age, show_count, show_many, show_size, show_time
from penstock.cli.watch import Figures, Rate
from penstock.client import JetStream
from penstock.protocol.tables import details, render

SUBJECTS_WIDTH = 40
HEADER = ("NAME", "SUBJECTS", "STORAGE", "MESSAGES", "SIZE", "CONSUMERS", "LAST")


def list_text(infos: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of streams."""
    now = datetime.now(UTC)
    return table(HEADER, [_row(info["config"], info["state"], now) for info in infos], left=2)


def info_text(info: Mapping[str, Any]) -> str:
    """Return a page about one stream."""
    config, state = info["config"], info["state"]
    parts = [
        f"Stream {config['name']}, created {show_time(info['created'])} UTC",
        f"\nConfiguration\n{details(shown(STREAM_SETTINGS, config))}",
        f"\nState\n{details(_state(state))}",
    ]
    cluster = info.get("cluster") or {}
    if cluster.get("replicas"):
        parts.append(f"\nCluster\n{details(_replicas(cluster))}")
    for origin in [*filter(None, [info.get("mirror")]), *(info.get("sources") or [])]:
        parts.append(f"\n{_origin(origin)}")
    if state.get("subjects"):
        rows = [(name, show_count(count)) for name, count in sorted(state["subjects"].items())]
        parts.append("\n" + table(("SUBJECT", "MESSAGES"), rows))
    return "\n".join(parts)


class StreamFigures:
    """The figures of a stream and its consumers, updated repeatedly."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._published = Rate()
        self._delivered: dict[str, Rate] = {}

    async def look(self) -> Figures:
        """Request the figures and compare them with the last ones."""
        info = await self._js.streams.info(self._stream)
        consumers = await self._js.consumers.list(self._stream)
        now_s = asyncio.get_running_loop().time()
        state = info["state"]
        rate = self._published.per_second(state["last_seq"], now_s)
        lag = max((consumer["num_pending"] for consumer in consumers), default=0)
        consumed = render(
            ("CONSUMER", "LAG", "UNACKED", "REDELIVERED", "RATE"),
            [self._row(consumer, now_s) for consumer in consumers],
        )
        return Figures(
            screen=f"{_headline(info, rate)}\n\n{consumed if consumers else 'no consumers'}",
            line=f"{_clock()}  {_headline(info, rate)}  lag {show_count(lag)}",
            document={
                "time": info.get("ts", ""),
                "stream": self._stream,
                "messages": state["messages"],
                "bytes": state["bytes"],
                "first_sequence": state["first_seq"],
                "last_sequence": state["last_seq"],
                "messages_per_second": round(rate, 1),
                "lag": lag,
                "consumers": {each["name"]: each["num_pending"] for each in consumers},
            },
        )

    def _row(self, consumer: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
        name = consumer["name"]
        rate = self._delivered.setdefault(name, Rate())
        speed = rate.per_second(consumer["delivered"]["consumer_seq"], now_s)
        return (
            name,
            show_count(consumer["num_pending"]),
            show_count(consumer["num_ack_pending"]),
            show_count(consumer["num_redelivered"]),
            f"{speed:,.0f}/s",
        )


def _headline(info: Mapping[str, Any], rate: float) -> str:
    state = info["state"]
    return (
        f"{info['config']['name']}  {show_many(state['messages'], 'message')}  {rate:+,.0f}/s  "
        f"{show_size(state['bytes'])}  {show_many(state['consumer_count'], 'consumer')}"
    )


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S")


def _row(config: Mapping[str, Any], state: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    subjects = ", ".join(config.get("subjects") or ["(mirror)" if "mirror" in config else ""])
    if len(subjects) > SUBJECTS_WIDTH:
        subjects = subjects[: SUBJECTS_WIDTH - 1] + "…"
    return (
        config["name"],
        subjects,
        config["storage"],
        show_count(state["messages"]),
        show_size(state["bytes"]),
        show_count(state["consumer_count"]),
        show_age(state["last_ts"], now),
    )


def _state(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("messages", show_count(state["messages"])),
        ("size", show_size(state["bytes"])),
        ("first", f"{state['first_seq']} at {show_time(state['first_ts'])}"),
        ("last", f"{state['last_seq']} at {show_time(state['last_ts'])}"),
        ("deleted", show_count(state.get("num_deleted", 0))),
        ("subjects", show_count(state.get("num_subjects", 0))),
        ("consumers", show_count(state["consumer_count"])),
    ]
    if not state["messages"]:
        rows = [row for row in rows if row[0] not in ("first", "last")]
    return [row for row in rows if row[0] != "deleted" or row[1] != "0"]


def _origin(origin: Mapping[str, Any]) -> str:
    text = f"Copies {origin['name']}, {show_count(origin.get('lag', 0))} behind"
    error = origin.get("error")
    return f"{text}: {error['description']}" if error else text


def _replicas(cluster: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("leader", cluster.get("leader", "none"))]
    for replica in cluster["replicas"]:
        lag = replica.get("lag", 0)
        state = "current" if replica.get("current") else f"{show_count(lag)} behind"
        rows.append((replica["name"], "offline" if replica.get("offline") else state))
    return rows
