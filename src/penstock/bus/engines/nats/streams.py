"""Managing the streams and the consumers of a bus. Never used while publishing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.bus.config.bus import BusConfig, TopicOptions
from penstock.bus.engine import TopicState
from penstock.bus.engines.nats.layout import Layout, topic_of
from penstock.bus.events.names import is_dead
from penstock.client import JetStream
from penstock.errors import BusError, JetStreamError
from penstock.protocol import errorcodes, subjects

SEQUENCE_NOT_FOUND = errorcodes.SEQUENCE_NOT_FOUND.err_code
NO_MESSAGE = ("no message found", "stream store EOF")
"""The texts of nats-server for a message that is gone or never was; the text depends on where."""
NANOSECONDS = 1_000_000_000


class StreamAdmin:
    """The streams on the server, with a cache of what is known of them."""

    def __init__(self, jetstream: JetStream, config: BusConfig) -> None:
        self.own_topics: set[str] = set()
        """Topics that are known to have a stream of their own."""
        self._jetstream = jetstream
        self._layout = Layout(config.namespace)
        self._defaults = config.nats.jetstream.stream
        self._dead_letters_max = config.subscriber.max_dead_letters
        self._dead_prefix = config.subscriber.dead_letter_prefix

    def subject(self, topic: str) -> str:
        """Return the subject that a topic is published to, without asking the server."""
        return self._home(topic)[1]

    async def discover(self) -> list[str]:
        """Return newly found topics with streams of their own, by one request."""
        names = await self._jetstream.streams.names(subject=self._layout.own_subject(">"))
        topics = map(self._topic_of, names)
        return [topic for topic in topics if topic and topic not in self.own_topics]

    async def inspect(self, topic: str) -> TopicState | None:
        """Return the state of a topic on the server."""
        own = await self._info(self._layout.own_stream(topic))
        if own is not None:
            return _state(own, shared=False)
        shared = await self._info(self._home(topic)[0])
        return None if shared is None else _state(shared, shared=True)

    async def topics(self) -> dict[str, TopicState]:
        """Return every topic with stored messages or a stream of its own."""
        found, counts = {}, Counter[str]()
        shared = await self._info(self._layout.stream)
        if shared is not None:
            counts = await self._counts(self._layout.stream)
            found = dict.fromkeys(counts, _state(shared, shared=True))
        for info in await self._jetstream.streams.list(subject=self._layout.own_subject(">")):
            topic = self._topic_of(info["config"]["name"])
            if topic:
                found[topic] = _state(info, shared=False)
                counts[topic] += info["state"]["messages"]
        return {topic: replace(found[topic], messages=counts[topic]) for topic in sorted(found)}

    async def create(self, topic: str, options: TopicOptions) -> None:
        """Make the stream of a topic: its own if it asks for limits, else the shared one."""
        if not options.limits and self._is_dead(topic):
            await self.ensure_dead_letters()
            return
        name, subject = self._place(topic, options)
        await self._jetstream.streams.create(
            name, subjects=[subject], **self._settings(options), **self._fixed()
        )

    async def update(self, topic: str, options: TopicOptions) -> None:
        """Change the limits of a topic's stream; whatever else it has stays."""
        name, _ = self._place(topic, options)
        info = await self._info(name)
        assert info is not None, "what is updated was inspected before"
        config = info["config"] | self._settings(options)
        config.pop("name")
        await self._jetstream.streams.update(name, **config)

    def places(self, pattern: str) -> list[tuple[str, str, str]]:
        """Return the streams that store these topics, and what each has: a pattern, a subject."""
        layout, encoded = self._layout, pattern.encode()
        dead = f"{self._dead_prefix}.>".encode()
        places = []
        if not subjects.contains(dead, encoded):
            places.append((layout.stream, pattern, layout.subject(pattern)))
        if subjects.overlap(dead, encoded):
            places.append((layout.dead_stream, pattern, layout.dead_subject(pattern)))
        own = [topic for topic in self.own_topics if subjects.matches(encoded, topic.encode())]
        # A topic may have got its stream later: its messages on the shared one come first.
        return places + [(layout.own_stream(one), one, layout.own_subject(one)) for one in own]

    async def discard(self, topic: str, sequence: int) -> bool:
        """Delete one message for good; return whether it existed."""
        stream, _ = self._home(topic)
        try:
            await self._jetstream.streams.delete_message(stream, sequence)
        except JetStreamError as error:
            if (
                error.err_code == errorcodes.SEQUENCE_NOT_FOUND.err_code
                or error.description in NO_MESSAGE
            ):
                return False
            raise
        return True

    async def ensure_leases(self) -> None:
        """Ensure the stream of leases, which keeps only the last record of each service."""
        name = self._layout.lease_stream
        if await self._info(name) is None:
            await self._jetstream.streams.create(
                name,
                subjects=[self._layout.lease_subject("*")],
                max_msgs_per_subject=1,
                num_replicas=self._defaults.replicas,
                **self._fixed(),
            )

    async def ensure_dead_letters(self) -> None:
        """Ensure the stream of dead letters. It keeps them at any age, and replaces none."""
        name = self._layout.dead_stream
        if await self._info(name) is None:
            await self._jetstream.streams.create(
                name,
                subjects=[self._layout.dead_subject(">")],
                max_msgs=self._dead_letters_max,
                num_replicas=self._defaults.replicas,
                duplicate_window=round(self._defaults.duplicate_window * NANOSECONDS),
                **self._fixed() | {"discard": "new"},
            )

    async def check_dead(self, patterns: Iterable[str]) -> None:
        """Raise if events are stored on topics that would be read as topics of dead letters."""
        for one in patterns:
            if not self._is_dead(one):
                continue
            if await self.last_sequence(self._layout.stream, self._layout.subject(one)):
                raise BusError(
                    f"`{one}` begins with the `dead_letter_prefix`, so dead letters would be read, "
                    "and not the events on topics of that name; hint: another "
                    "`subscriber.dead_letter_prefix`"
                )

    async def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""
        own = [self._layout.own_stream(topic) for topic in self.own_topics if self._is_dead(topic)]
        found = [await self._info(stream) for stream in (self._layout.dead_stream, *own)]
        return sum(int(info["state"]["messages"]) for info in found if info is not None)

    async def last_sequence(self, stream: str, subject: str) -> int:
        """Return the sequence of the last message of a subject; 0 if there is none."""
        try:
            return (await self._jetstream.streams.get(stream, last_by_subj=subject)).sequence
        except JetStreamError as error:
            if error.is_not_found:
                return 0
            raise

    async def _counts(self, stream: str) -> Counter[str]:
        """Return the number of messages of each topic of a stream; the server answers in pages."""
        counts = Counter[str]()
        while True:
            info = await self._jetstream.streams.info(
                stream, subjects_filter=">", offset=len(counts)
            )
            page = info["state"].get("subjects") or {}
            counts.update({topic_of(subject): count for subject, count in page.items()})
            if not page or len(counts) >= info.get("total", 0):
                return counts

    async def _info(self, stream: str) -> dict[str, Any] | None:
        try:
            return await self._jetstream.streams.info(stream)
        except JetStreamError as error:
            if error.is_not_found:
                return None
            raise

    def _is_dead(self, topic: str) -> bool:
        return is_dead(topic, self._dead_prefix)

    def _home(self, topic: str) -> tuple[str, str]:
        """Return the stream and the subject that messages of a topic go to."""
        layout = self._layout
        if topic in self.own_topics:
            return layout.own_stream(topic), layout.own_subject(topic)
        if self._is_dead(topic):
            return layout.dead_stream, layout.dead_subject(topic)
        return layout.stream, layout.subject(topic)

    def _place(self, topic: str, options: TopicOptions) -> tuple[str, str]:
        if options.limits:
            return self._layout.own_stream(topic), self._layout.own_subject(topic)
        return self._layout.stream, self._layout.subject(">")

    def _settings(self, options: TopicOptions) -> dict[str, Any]:
        """Return the limits as JetStream settings; those left out follow the shared stream."""
        defaults = self._defaults
        if options.compression not in (None, "none", "s2"):
            raise BusError(f"JetStream has no `compression` {options.compression}; hint: s2")
        retention_s = defaults.max_age if options.retention is None else options.retention
        bytes_max = defaults.max_bytes if options.max_bytes is None else options.max_bytes
        messages_max = defaults.max_msgs if options.max_msgs is None else options.max_msgs
        settings = {
            "max_age": round(retention_s * NANOSECONDS),
            "max_bytes": bytes_max or -1,
            "max_msgs": messages_max or -1,
            "num_replicas": options.replicas or defaults.replicas,
            "compression": options.compression or "none",
        }
        # A window longer than messages are kept would be refused.
        window_s = min(defaults.duplicate_window, retention_s or defaults.duplicate_window)
        settings["duplicate_window"] = round(window_s * NANOSECONDS)
        return settings | ({"description": options.description} if options.description else {})

    def _fixed(self) -> dict[str, Any]:
        return {"storage": self._defaults.storage, "retention": "limits", "discard": "old"}

    def _topic_of(self, stream: str) -> str:
        prefix = self._layout.own_stream("")
        return stream.removeprefix(prefix).replace("+", ".") if stream.startswith(prefix) else ""


def _state(info: dict[str, Any], *, shared: bool) -> TopicState:
    config, state = info["config"], info["state"]
    options = TopicOptions(
        persistence="persistent",
        retention=config.get("max_age", 0) / NANOSECONDS or None,
        max_bytes=_limit(config.get("max_bytes", -1)),
        max_msgs=_limit(config.get("max_msgs", -1)),
        replicas=config.get("num_replicas", 1),
        compression=config.get("compression") or "none",
        description=config.get("description", ""),
    )
    return TopicState(options=options, shared=shared, messages=state["messages"])


def _limit(value: int) -> int | None:
    return value if value > 0 else None
