"""Text about consumers: a list, a page about one, and live figures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.cli.consumer.settings import CONSUMER_SETTINGS
from penstock.cli.settings import shown
from penstock.cli.terminal import table
from penstock.cli.values import NEVER, show_age, show_count, show_time
from penstock.cli.watch import Figures, Rate
from penstock.client import JetStream
from penstock.protocol.tables import details

HEADER = ("NAME", "MODE", "FILTER", "ACK", "PENDING", "UNACKED", "REDELIVERED", "LAST")

REPORT_HEADER = (
    *("STREAM", "CONSUMER", "MODE", "PENDING", "UNACKED", "REDELIVERED", "WAITING", "ACK FLOOR"),
    "",
)


def list_text(infos: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of consumers."""
    now = datetime.now(UTC)
    return table(HEADER, [_row(info, now) for info in infos], left=4)


def report_text(infos: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the figures of consumers."""
    return table(REPORT_HEADER, map(_report_row, infos), left=3)


def info_text(info: Mapping[str, Any]) -> str:
    """Return a page about one consumer."""
    config = {key: value for key, value in info["config"].items() if key != "durable_name"}
    kind = "durable" if "durable_name" in info["config"] else "ephemeral"
    created = show_time(info["created"])
    return "\n".join(
        [
            f"Consumer {info['stream_name']} > {info['name']}, "
            f"{kind} {_mode(config)}, created {created} UTC",
            f"\nConfiguration\n{details(shown(CONSUMER_SETTINGS, config))}",
            f"\nState\n{details(_state(info))}",
        ]
    )


class ConsumerFigures:
    """The figures of a consumer, updated repeatedly."""

    def __init__(self, js: JetStream, stream: str, consumer: str) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._delivered = Rate()
        self._acked = Rate()

    async def look(self) -> Figures:
        """Request the figures and compare them with the last ones."""
        info = await self._js.consumers.info(self._stream, self._consumer)
        now_s = asyncio.get_running_loop().time()
        delivered = self._delivered.per_second(info["delivered"]["consumer_seq"], now_s)
        acked = self._acked.per_second(info["ack_floor"]["consumer_seq"], now_s)
        figures = [
            ("pending", show_count(info["num_pending"])),
            ("unacked", show_count(info["num_ack_pending"])),
            ("redelivered", show_count(info["num_redelivered"])),
            ("waiting", show_count(info["num_waiting"])),
            ("delivered", f"{delivered:,.0f}/s"),
            ("acked", f"{acked:,.0f}/s"),
        ]
        title = f"{self._stream} > {self._consumer}"
        clock = datetime.now().strftime("%H:%M:%S")
        return Figures(
            screen=f"{title}\n\n{details(figures)}",
            line=f"{clock}  {title}  " + "  ".join(f"{name} {text}" for name, text in figures),
            document={
                "time": info.get("ts", ""),
                "stream": self._stream,
                "consumer": self._consumer,
                "pending": info["num_pending"],
                "ack_pending": info["num_ack_pending"],
                "redelivered": info["num_redelivered"],
                "waiting": info["num_waiting"],
                "delivered_per_second": round(delivered, 1),
                "acked_per_second": round(acked, 1),
            },
        )


def _row(info: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    config = info["config"]
    filters = [config.get("filter_subject", ""), *config.get("filter_subjects", [])]
    return (
        info["name"],
        _mode(config),
        ", ".join(filter(None, filters)) or "all",
        config["ack_policy"],
        show_count(info["num_pending"]),
        show_count(info["num_ack_pending"]),
        show_count(info["num_redelivered"]),
        show_age(info["delivered"].get("last_active", NEVER), now),
    )


def _report_row(info: Mapping[str, Any]) -> tuple[str, ...]:
    config = info["config"]
    state = "paused" if info.get("paused") else ""
    if config.get("deliver_subject") and not info.get("push_bound"):
        state = "nobody subscribes"
    bound = config.get("max_ack_pending", -1)
    if bound > 0 and info["num_ack_pending"] >= bound:
        state = "unacked at its bound"
    return (
        info["stream_name"],
        info["name"],
        _mode(config),
        show_count(info["num_pending"]),
        show_count(info["num_ack_pending"]),
        show_count(info["num_redelivered"]),
        show_count(info["num_waiting"]),
        show_count(info["ack_floor"]["stream_seq"]),
        state,
    )


def _mode(config: Mapping[str, Any]) -> str:
    return "push" if config.get("deliver_subject") else "pull"


def _state(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("pending", show_count(info["num_pending"])),
        ("unacked", show_count(info["num_ack_pending"])),
        ("redelivered", show_count(info["num_redelivered"])),
        ("waiting pulls", show_count(info["num_waiting"])),
        ("delivered", _place(info["delivered"])),
        ("ack floor", _place(info["ack_floor"])),
    ]
    if info["config"].get("deliver_subject"):
        rows[3] = ("subscribed", "yes" if info.get("push_bound") else "no")
    if info.get("paused"):
        rows.append(("paused until", show_time(info["config"].get("pause_until", NEVER))))
    return rows


def _place(place: Mapping[str, Any]) -> str:
    text = f"sequence {show_count(place['stream_seq'])}"
    return f"{text} at {show_time(place['last_active'])}" if "last_active" in place else text
