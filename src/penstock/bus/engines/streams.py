"""Managing the streams and the consumer of a bus. Never used while publishing."""

from __future__ import annotations

from datetime import timedelta
from time import time_ns
from typing import Any

from penstock import subjects
from penstock.bus.config import TopicOptions
from penstock.bus.engine import Lag, TopicState
from penstock.bus.engines.layout import Layout
from penstock.bus.engines.replay import stored_ns
from penstock.bus.engines.source import Source
from penstock.bus.natsconfig import ConsumerConfig, StreamConfig
from penstock.client import JetStream
from penstock.errors import BusError, JetStreamError

SEQUENCE_NOT_FOUND = 10043
NO_MESSAGE = ("no message found", "stream store EOF")
"""What nats-server says of a message that is gone, or never was: it depends on where."""
NANOSECONDS = 1_000_000_000


class StreamAdmin:
    """What is on the server, and what is remembered of it."""

    def __init__(self, jetstream: JetStream, layout: Layout, defaults: StreamConfig) -> None:
        self._jetstream = jetstream
        self._layout = layout
        self._defaults = defaults
        self._own: dict[str, str] = {}

    @property
    def own_topics(self) -> list[str]:
        """Topics that have a stream of their own."""
        return list(self._own)

    def has_own_stream(self, topic: str) -> bool:
        """Tell whether a topic has a stream of its own. Asks nobody."""
        return topic in self._own

    async def discover(self) -> None:
        """Learn which topics have streams of their own: one request, when connecting."""
        for name in await self._jetstream.streams.names(subject=self._layout.own_subject(">")):
            topic = self._topic_of(name)
            if topic:
                self._own[topic] = name

    async def inspect(self, topic: str) -> TopicState | None:
        """Return how the server keeps a topic."""
        own = await self._info(self._layout.own_stream(topic))
        if own is not None:
            self._own[topic] = self._layout.own_stream(topic)
            return _state(own, shared=False)
        shared = await self._info(self._layout.stream)
        return None if shared is None else _state(shared, shared=True)

    async def create(self, topic: str, options: TopicOptions) -> None:
        """Make the stream of a topic: its own if it asks for limits, else the shared one."""
        name, subject = self._place(topic, options)
        await self._jetstream.streams.create(
            name, subjects=[subject], **self._settings(options), **self._fixed()
        )
        if options.limits:
            self._own[topic] = name

    async def update(self, topic: str, options: TopicOptions) -> None:
        """Change the limits of a topic's stream; whatever else it has stays."""
        name, _ = self._place(topic, options)
        info = await self._info(name)
        assert info is not None, "what is updated was inspected before"
        config = info["config"] | self._settings(options)
        config.pop("name")
        await self._jetstream.streams.update(name, **config)

    def places(self, pattern: str) -> list[tuple[str, str]]:
        """Return the streams that store these topics, and their subjects there."""
        layout = self._layout
        own = [topic for topic in self._own if subjects.matches(pattern.encode(), topic.encode())]
        places = [(layout.own_stream(topic), layout.own_subject(topic)) for topic in own]
        # A topic with a stream of its own is in no other; a pattern may stand for more.
        return places if own == [pattern] else [(layout.stream, layout.subject(pattern)), *places]

    async def discard(self, topic: str, sequence: int) -> bool:
        """Delete one message for good; tell whether it was there."""
        (stream, _), *_ = self.places(topic)
        try:
            await self._jetstream.streams.delete_message(stream, sequence)
        except JetStreamError as error:
            if error.err_code == SEQUENCE_NOT_FOUND or error.description in NO_MESSAGE:
                return False
            raise
        return True

    async def ensure_consumer(
        self, stream: str, durable: str, config: ConsumerConfig, filters: list[str]
    ) -> None:
        """Have a durable consumer read these subjects, and all that it read before."""
        info = await self._consumer(stream, durable)
        before = _filters(info["config"]) if info is not None else []
        wanted = {
            "durable_name": durable,
            "ack_policy": "explicit",
            "ack_wait": timedelta(seconds=config.ack_wait_s),
            "max_ack_pending": config.ack_pending_max,
            "max_waiting": config.waiting_max,
            # Attempts are counted here, where the order of a key is known.
            "max_deliver": -1,
            "filter_subjects": union(before, filters),
        }
        if info is None or not _is_as_wanted(info["config"], wanted):
            await self._jetstream.consumers.create_or_update(stream, **wanted)

    async def unfilter(self, stream: str, durable: str, subject: str) -> bool:
        """Have a durable consumer read a subject no more; tell whether it is still there."""
        info = await self._consumer(stream, durable)
        if info is None:
            return False
        config = info["config"]
        left = [one for one in _filters(config) if one != subject]
        config.pop("filter_subject", None)
        if left:
            config["filter_subjects"] = left
            await self._jetstream.consumers.update(stream, **config)
        else:
            await self._jetstream.consumers.delete(stream, durable)
        return bool(left)

    async def lag(self, source: Source) -> Lag:
        """Return how many messages a consumer has before it, and when the oldest was stored."""
        info = await source.info()
        messages = info["num_pending"] + info["num_ack_pending"]
        if source.held:
            oldest_ns = min(delivery.timestamp_ns for delivery in source.held.values())
        elif messages:
            oldest_ns = await self._oldest_ns(source.stream, info)
        else:
            oldest_ns = 0
        return Lag(messages, oldest_ns)

    async def _oldest_ns(self, stream: str, info: dict[str, Any]) -> int:
        times = []
        for subject in _filters(info["config"]):
            try:
                message = await self._jetstream.streams.get(
                    stream, seq=info["ack_floor"]["stream_seq"] + 1, next_by_subj=subject
                )
            except JetStreamError as error:
                if not error.is_not_found:
                    raise
                continue
            times.append(stored_ns(message.time))
        return min(times, default=time_ns())

    async def _info(self, stream: str) -> dict[str, Any] | None:
        try:
            return await self._jetstream.streams.info(stream)
        except JetStreamError as error:
            if error.is_not_found:
                return None
            raise

    async def _consumer(self, stream: str, durable: str) -> dict[str, Any] | None:
        try:
            return await self._jetstream.consumers.info(stream, durable)
        except JetStreamError as error:
            if error.is_not_found:
                return None
            raise

    def _place(self, topic: str, options: TopicOptions) -> tuple[str, str]:
        if options.limits:
            return self._layout.own_stream(topic), self._layout.own_subject(topic)
        return self._layout.stream, self._layout.subject(">")

    def _settings(self, options: TopicOptions) -> dict[str, Any]:
        """Return the limits in JetStream's words; what is left out is as the shared stream's."""
        defaults = self._defaults
        if options.compression not in (None, "none", "s2"):
            raise BusError(f"JetStream has no `compression` {options.compression}; hint: s2")
        retention_s = defaults.age_s_max if options.retention_s is None else options.retention_s
        bytes_max = defaults.bytes_max if options.bytes_max is None else options.bytes_max
        messages_max = (
            defaults.messages_max if options.messages_max is None else options.messages_max
        )
        settings = {
            "max_age": round(retention_s * NANOSECONDS),
            "max_bytes": bytes_max or -1,
            "max_msgs": messages_max or -1,
            "num_replicas": options.replicas or defaults.replicas,
            "compression": options.compression or "none",
        }
        # A window longer than messages are kept would be refused.
        window_s = min(defaults.duplicate_window_s, retention_s or defaults.duplicate_window_s)
        settings["duplicate_window"] = round(window_s * NANOSECONDS)
        return settings | ({"description": options.description} if options.description else {})

    def _fixed(self) -> dict[str, Any]:
        return {"storage": self._defaults.storage, "retention": "limits", "discard": "old"}

    def _topic_of(self, stream: str) -> str:
        prefix = self._layout.own_stream("")
        return stream.removeprefix(prefix).replace("+", ".") if stream.startswith(prefix) else ""


def union(one: list[str], other: list[str]) -> list[str]:
    """Return patterns that stand for all of both, none of them within another."""
    patterns = list(dict.fromkeys([*one, *other]))
    kept = [
        pattern
        for pattern in patterns
        if not any(
            wider != pattern and subjects.contains(wider.encode(), pattern.encode())
            for wider in patterns
        )
    ]
    for index, pattern in enumerate(kept):
        for second in kept[index + 1 :]:
            if subjects.overlap(pattern.encode(), second.encode()):
                raise BusError(
                    f"one consumer cannot read both `{pattern}` and `{second}`: they overlap; "
                    f"hint: `await bus.forget(…)` the one no longer handled"
                )
    return sorted(kept)


def _filters(config: dict[str, Any]) -> list[str]:
    single = config.get("filter_subject")
    return [single] if single else list(config.get("filter_subjects") or [])


def _is_as_wanted(config: dict[str, Any], wanted: dict[str, Any]) -> bool:
    ack_wait: timedelta = wanted["ack_wait"]
    pairs = (
        (sorted(_filters(config)), wanted["filter_subjects"]),
        (config["ack_wait"], round(ack_wait.total_seconds() * NANOSECONDS)),
        (config.get("max_ack_pending"), wanted["max_ack_pending"]),
        (config.get("max_waiting"), wanted["max_waiting"]),
    )
    return all(actual == expected for actual, expected in pairs)


def _state(info: dict[str, Any], *, shared: bool) -> TopicState:
    config, state = info["config"], info["state"]
    options = TopicOptions(
        persistence="persistent",
        retention_s=config.get("max_age", 0) / NANOSECONDS or None,
        bytes_max=_limit(config.get("max_bytes", -1)),
        messages_max=_limit(config.get("max_msgs", -1)),
        replicas=config.get("num_replicas", 1),
        compression=config.get("compression") or "none",
        description=config.get("description", ""),
    )
    return TopicState(options=options, shared=shared, messages=state["messages"])


def _limit(value: int) -> int | None:
    return value if value > 0 else None
