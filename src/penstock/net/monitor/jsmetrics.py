"""The metrics of JetStream: totals, per stream, and per consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.config.accounts import GLOBAL
from penstock.jetstream.engine import JetStreamEngine
from penstock.net.monitor.metric import Labels, Metric

if TYPE_CHECKING:
    from penstock.net.committer import Journal


def jetstream_metrics(journal: Journal | None) -> Iterator[Metric]:
    """Yield the metrics of JetStream; none if it is off."""
    if journal is None:
        return
    for name, text, value in _figures(journal):
        yield Metric(f"penstock_jetstream_{name}", text, [({}, value)])
    engines = list(journal.engines.values())
    yield from _of_streams(engines)
    yield from _of_consumers(engines)


def _figures(journal: Journal) -> Iterator[tuple[str, str, float]]:
    engines = journal.engines.values()
    streams = [stream for engine in engines for stream in engine.streams.values()]
    yield "streams", "Streams.", len(streams)
    consumers = sum(len(stream.consumers) for stream in streams)
    yield "consumers", "Consumers.", consumers
    unreadable = sum(len(each.unreadable | each.unreadable_consumers()) for each in engines)
    yield "unreadable_streams", "Streams that could not be brought back whole.", unreadable
    yield "memory_bytes", "Messages in memory streams.", _used(engines, "memory")
    yield "storage_bytes", "Messages in file streams.", _used(engines, "file")
    contexts = [each.context for each in engines]
    requests = sum(each.api_requests for each in contexts)
    yield "api_requests_total", "Requests to the API.", requests
    errors = sum(each.api_errors for each in contexts)
    yield "api_errors_total", "Requests that failed.", errors
    yield (
        "commits_total",
        "Commits to the disk; each syncs all that came meanwhile.",
        journal.commits,
    )
    yield "commit_seconds_total", "Time that commits took, syncs included.", journal.commit_s


def _used(engines: Iterable[JetStreamEngine], storage: str) -> int:
    return sum(engine.used_bytes(storage) for engine in engines)


def _labels(engine: JetStreamEngine, **names: str) -> Labels:
    """Return the labels of a sample; the account only if it is not the global one."""
    account = engine.account.name
    return names if account == GLOBAL else {"account": account} | names


def _of_streams(engines: list[JetStreamEngine]) -> Iterator[Metric]:
    faults: list[tuple[Labels, float]] = [
        (_labels(engine, stream=each.name), len(each.losses.faults))
        for engine in engines
        for each in engine.streams.values()
    ]
    yield Metric("penstock_stream_faults", "Damage found in the files of the stream.", faults)
    streams = [
        (_labels(engine, stream=each.name), each.store)
        for engine in engines
        for each in engine.streams.values()
    ]
    prefix = "penstock_stream_"
    found: list[tuple[Labels, float]] = [(name, store.messages) for name, store in streams]
    yield Metric(f"{prefix}messages", "Messages in the stream.", found)
    found = [(name, store.size_bytes) for name, store in streams]
    yield Metric(f"{prefix}bytes", "Bytes of those messages.", found)
    found = [(name, store.first_sequence) for name, store in streams]
    yield Metric(f"{prefix}first_sequence", "Sequence of the first message.", found)
    found = [(name, store.last_sequence) for name, store in streams]
    yield Metric(f"{prefix}last_sequence", "Sequence of the last message.", found)
    found = [(name, int(store.failure is not None)) for name, store in streams]
    yield Metric(f"{prefix}failed", "1 while the stream cannot store.", found)
    found = [(name, store.lost) for name, store in streams]
    yield Metric(f"{prefix}lost_messages", "Messages that are damaged on disk.", found)


def _of_consumers(engines: list[JetStreamEngine]) -> Iterator[Metric]:
    consumers = [
        (_labels(engine, stream=stream.name, consumer=each.name), each)
        for engine in engines
        for stream in engine.streams.values()
        for each in stream.consumers.values()
    ]
    prefix = "penstock_consumer_"
    found: list[tuple[Labels, float]]
    found = [(names, max(each.backlog.count(), 0)) for names, each in consumers]
    yield Metric(f"{prefix}pending_messages", "Messages still to be delivered.", found)
    found = [(names, len(each.ledger.pending)) for names, each in consumers]
    yield Metric(f"{prefix}ack_pending_messages", "Messages delivered and not acked.", found)
    found = [(names, len(each.outlet)) for names, each in consumers]
    yield Metric(f"{prefix}waiting_requests", "Pull requests that wait for messages.", found)
