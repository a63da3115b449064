"""
A survey: look at everything the server has and make reports of it, a portion at a time.

With ten thousand consumers a look takes longer than clients should wait. So the survey is a
generator, and whoever runs it lets others have their turn in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.jetstream.consumers.consumer import Consumer
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.stream import Stream
from penstock.net.monitor import usage
from penstock.net.monitor.pipelines import Pipelines
from penstock.net.monitor.views import subscription_count
from penstock.net.monitor.watch.history import History, Key
from penstock.net.monitor.watch.reports import (
    ConsumerKey,
    ConsumerReport,
    PipelineReport,
    Reports,
    ServerReport,
    StreamKey,
    StreamReport,
)
from penstock.protocol import headers, times
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

MINUTE_NS = 60 * times.SECOND_NS
LATELY_S = 900.0
GROWTH_S_MIN = 300.0
"""How long growth must have been seen before it tells when a disk is full."""
CLOSED_LOOKED_AT = 1000
KEPT = (
    *("in_rate", "in_bytes_rate", "out_rate", "out_bytes_rate", "connections", "subscriptions"),
    *("memory_bytes", "cpu_percent", "slow_consumers", "storage_bytes"),
)
"""The figures of the server that have a history."""


class Surveyor:
    """Makes one survey after another, and remembers what the next one compares itself with."""

    def __init__(
        self,
        server: Watched,
        pipelines: Pipelines,
        *,
        clock_ns: Callable[[], int],
        free_bytes: Callable[[str], int],
    ) -> None:
        self.history = History()
        self._server = server
        self._pipelines = pipelines
        self._clock_ns = clock_ns
        self._free_bytes = free_bytes
        self._before: Reports | None = None
        self._anchors: list[tuple[int, dict[ConsumerKey, int]]] = []
        """The messages pending a minute ago and, until that is a minute old, since then."""
        self._passed: dict[ConsumerKey, tuple[int, int]] = {}
        """How many messages a limit took from a consumer, and when the last."""
        self._heard: dict[tuple[str, str], tuple[float, int]] = {}
        """By pipeline: when it reported last, and the last sequence of its stream then."""
        self._newest: dict[StreamKey, tuple[int, str]] = {}
        self._slow_last = ""

    def survey(self) -> Generator[None, None, Reports]:
        """Look at everything, with a turn for others between any two portions."""
        now_ns = self._clock_ns()
        streams: dict[StreamKey, StreamReport] = {}
        consumers: dict[ConsumerKey, ConsumerReport] = {}
        unreadable: list[tuple[str, str, str]] = []
        journal = self._server.journal
        for engine in list(journal.engines.values()) if journal is not None else ():
            problems = engine.unreadable | engine.unreadable_consumers()
            unreadable += [(engine.account.name, *each) for each in problems.items()]
            for stream in list(engine.streams.values()):
                report = self._stream(engine, stream, now_ns)
                streams[report.key] = report
                yield
                for consumer in list(stream.consumers.values()):
                    yield from consumer.backlog.count_ahead()
                    if not consumer.is_closed:
                        one = self._consumer(report, consumer, now_ns)
                        consumers[one.key] = one
                    yield
        used = sum(each.bytes for each in streams.values() if each.storage == "file")
        yield
        server = self._server_report(now_ns, used)
        pipelines = self._pipeline_reports(streams)
        reports = Reports(server, streams, consumers, pipelines, unreadable)
        yield from self._remember(reports)
        return reports

    def _elapsed_s(self, now_ns: int) -> float:
        before = self._before
        return (now_ns - before.server.time_ns) / times.SECOND_NS if before is not None else 0.0

    def _rate(self, now_ns: int, total: float, before: float | None) -> float:
        elapsed_s = self._elapsed_s(now_ns)
        if before is None or elapsed_s <= 0:
            return 0.0
        return round(max(total - before, 0) / elapsed_s, 1)

    def _stream(self, engine: JetStreamEngine, stream: Stream, now_ns: int) -> StreamReport:
        store, config = stream.store, stream.config
        key = engine.account.name, stream.name
        known = self._before.streams.get(key) if self._before is not None else None
        return StreamReport(
            account=key[0],
            name=key[1],
            created=format_time(stream.created_ns),
            storage=config.storage,
            messages=store.messages,
            bytes=store.size_bytes,
            first=store.first_sequence,
            last=store.last_sequence,
            consumers=len(stream.consumers),
            messages_max=config.max_msgs,
            bytes_max=config.max_bytes,
            age_max_ns=config.max_age,
            per_subject_max=config.max_msgs_per_subject,
            discards_old=config.discard == "old",
            retention=config.retention,
            lost=store.lost,
            faults=len(stream.losses.faults),
            failure=store.failure or "",
            rate=self._rate(now_ns, store.last_sequence, known and known.last),
            newest=self._newest_cause(key, stream) if stream.name.endswith("-dead") else "",
        )

    def _newest_cause(self, key: StreamKey, stream: Stream) -> str:
        """Return where the newest dead letter is from and the kind of its cause: no content."""
        last = stream.store.last_sequence if stream.store.messages else 0
        sequence, text = self._newest.get(key, (0, ""))
        if last and last != sequence:
            message = stream.store.get(last)
            text = newest_cause(message[3]) if message is not None else ""
            self._newest[key] = last, text
        return text if last else ""

    def _consumer(self, stream: StreamReport, consumer: Consumer, now_ns: int) -> ConsumerReport:
        ledger, config = consumer.ledger, consumer.config
        key = stream.account, stream.name, consumer.name
        known = self._before.consumers.get(key) if self._before is not None else None
        report = ConsumerReport(
            account=stream.account,
            stream=stream.name,
            name=consumer.name,
            pending=max(consumer.backlog.count(), 0),
            unacked=len(ledger.pending),
            unacked_max=max(config.max_ack_pending, 0) if config.ack_policy != "none" else 0,
            redelivered=len(ledger.redelivered) if config.max_deliver != 1 else 0,
            waiting=len(consumer.outlet),
            delivered=ledger.next_consumer_sequence - 1,
            withdrawn=consumer.backlog.withdrawn,
            is_paused=consumer.paused_until_ns > now_ns,
            filters=tuple(each.decode(errors="replace") for each in config.filters),
        )
        anchor_ns, pending = self._anchors[0] if self._anchors else (now_ns, {})
        before = pending.get(key, -1) if now_ns - anchor_ns >= MINUTE_NS else -1
        rate = self._rate(now_ns, report.delivered, known and known.delivered)
        passed = self._passed_by(stream, report, known, now_ns)
        return report._replace(rate=rate, passed=passed, pending_before=before)

    def _passed_by(
        self, stream: StreamReport, now: ConsumerReport, known: ConsumerReport | None, now_ns: int
    ) -> int:
        """Return how many messages a limit removed before the consumer got them, lately."""
        was = self._before.streams.get(stream.key) if self._before is not None else None
        count, last_ns = self._passed.get(now.key, (0, 0))
        if last_ns and now_ns - last_ns > MINUTE_NS:
            self._passed.pop(now.key)
            count = 0
        if was is not None and known is not None and stream.is_at_limit:
            arrived = 0 if now.filters else stream.last - was.last
            left = now.pending + now.delivered - known.delivered
            gone = max(known.pending + arrived - left, now.withdrawn - known.withdrawn)
            gone = min(gone, stream.first - was.first)
            if gone > 0:
                count += gone
                self._passed[now.key] = count, now_ns
        return count

    def _server_report(self, now_ns: int, used: int) -> ServerReport:
        broker = self._server.broker
        was = self._before.server if self._before is not None else ServerReport(0)
        # First, because what follows looks back from here.
        noted: dict[Key, float] = {
            ("slow_consumers",): broker.slow_consumers,
            ("storage_bytes",): used,
        }
        self.history.note(now_ns / times.SECOND_NS, noted)
        messages_in, bytes_in, messages_out, bytes_out = broker.totals()
        report = ServerReport(
            now_ns,
            in_messages=messages_in,
            in_bytes=bytes_in,
            out_messages=messages_out,
            out_bytes=bytes_out,
            in_rate=self._rate(now_ns, messages_in, was.in_messages),
            in_bytes_rate=self._rate(now_ns, bytes_in, was.in_bytes),
            out_rate=self._rate(now_ns, messages_out, was.out_messages),
            out_bytes_rate=self._rate(now_ns, bytes_out, was.out_bytes),
            connections=len(broker.sessions),
            subscriptions=subscription_count(broker),
            memory_bytes=usage.resident_bytes(),
            cpu_percent=self._server.usage.cpu_percent(),
            slow_consumers=broker.slow_consumers,
        )
        return report._replace(**self._slow(was), **self._disk(used))

    def _slow(self, was: ServerReport) -> dict[str, Any]:
        broker = self._server.broker
        count = broker.slow_consumers
        if count > was.slow_consumers:
            latest = islice(reversed(broker.closed), CLOSED_LOOKED_AT)
            slow = (each for each in latest if each.reason.startswith("Slow Consumer"))
            found = next(slow, None)
            if found is not None:
                name = found.name or f"connection {found.client_id}"
                self._slow_last = f"`{name}` from {found.ip}: {found.reason}"
        earlier = self.history.last(("slow_consumers",), LATELY_S)
        lately = count - int(earlier) if earlier is not None else count
        return {"slow_lately": lately, "slow_last": self._slow_last if lately else ""}

    def _disk(self, used: int) -> dict[str, Any]:
        journal = self._server.journal
        if journal is None:
            return {}
        most = journal.config.max_file
        free = self._free_bytes(journal.config.store_dir)
        left = min(
            [each for each in (free, -1 if most is None else most - used) if each >= 0], default=-1
        )
        return {
            "storage_bytes": used,
            "storage_max": -1 if most is None else most,
            "disk_free": free,
            "disk_full_s": self._full_in_s(used, left),
        }

    def _full_in_s(self, used: int, left: int) -> float:
        """Return when what is left is used up, at the pace of the last hour; -1 for never."""
        key = ("storage_bytes",)
        seen_s = self.history.oldest_s(key)
        earlier = self.history.last(key, seen_s)
        if left < 0 or earlier is None or seen_s < GROWTH_S_MIN or used <= earlier:
            return -1.0
        return round(left / ((used - earlier) / seen_s), 1)

    def _pipeline_reports(self, streams: dict[StreamKey, StreamReport]) -> list[PipelineReport]:
        reports = []
        for each in self._pipelines.view()["pipelines"]:
            key = each["account"], each["name"]
            stream = streams.get((each["account"], each["stream"]))
            last = stream.last if stream is not None else 0
            age_s, at_report = self._heard.get(key, (0.0, last))
            if each["age_s"] <= age_s or key not in self._heard:
                at_report = last  # It has reported since the last survey.
            self._heard[key] = each["age_s"], at_report
            reports.append(
                PipelineReport(
                    account=each["account"],
                    name=each["name"],
                    stream=each["stream"],
                    behind_messages=int(each["behind_messages"]),
                    age_s=each["age_s"],
                    stored_since=max(last - at_report, 0),
                )
            )
        return reports

    def _remember(self, reports: Reports) -> Iterator[None]:
        now_ns = reports.server.time_ns
        now_s = now_ns / times.SECOND_NS
        self.history.note(now_s, {(name,): getattr(reports.server, name) for name in KEPT})
        for stream in reports.streams.values():
            self.history.note(now_s, {("stored", *stream.key): stream.rate})
            yield
        for consumer in reports.consumers.values():
            self.history.note(now_s, {("pending", *consumer.key): consumer.pending})
            yield
        if not self._anchors or now_ns - self._anchors[-1][0] >= MINUTE_NS:
            pending = {key: each.pending for key, each in reports.consumers.items()}
            self._anchors = [*self._anchors[-1:], (now_ns, pending)]
        known = self._heard.keys() & {(each.account, each.name) for each in reports.pipelines}
        self._heard = {key: self._heard[key] for key in known}
        self._newest = {key: self._newest[key] for key in self._newest.keys() & reports.streams}
        self._passed = {key: self._passed[key] for key in self._passed.keys() & reports.consumers}
        self._before = reports


def newest_cause(block: bytes) -> str:
    """Return the topic, the service and the kind of error of a dead letter."""
    topic, service, cause = (
        (headers.get(block, b"Dead-Letter-%b" % name) or b"").decode(errors="replace")[:128]
        for name in (b"Topic", b"Service", b"Cause")
    )
    kind = cause.partition(":")[0]
    parts = (topic and f"of `{topic}`", kind and f"with {kind}", service and f"by `{service}`")
    return " ".join(filter(None, parts))


def disk_free(directory: str) -> int:
    """Return the bytes left where a directory is; -1 if that cannot be known."""
    with suppress(OSError):
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize
    return -1
