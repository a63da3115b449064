"""
A stream that reads another one by messages alone: in another account, or on another server.

The follower asks the origin for a push consumer that starts after our last message. Its messages
are numbered, so a missing one is noticed; its flow control requests are answered once everything
before them is safe here; its heartbeats show that it is alive. When one of these fails, the
follower drops the consumer and asks for another, after a pause that grows with every failure. The
stored messages tell where to continue, so no message is missed and none comes twice.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import ApiError, JetStreamError
from penstock.jetstream.copies import sourcing
from penstock.jetstream.copies.origin import Origin, Take
from penstock.jetstream.copies.remote import Arrival, Remote
from penstock.jetstream.copies.sourcing import API_LEVELS, SILENCE_NS
from penstock.jetstream.store.values import Message
from penstock.protocol import errorcodes, headers
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.copies.streams import Copied, Copying
    from penstock.jetstream.timers import Timer

log = logging.getLogger("penstock")

RETRY_NS = SECOND_NS
RETRY_NS_MAX = 30 * SECOND_NS
STATUS = b"NATS/1.0 "
NOT_UNDERSTOOD = (errorcodes.REQUIRED_API_LEVEL.err_code, errorcodes.INVALID_JSON.err_code)
"""Errors of an older server for a request that asks for too much."""


class RemoteFollower:
    """Follows one origin through a consumer of it."""

    def __init__(
        self,
        stream: Copying,
        origin: Origin,
        take: Take,
        remote: Remote,
        *,
        skip_to: Callable[[int], None],
    ) -> None:
        """Begin; `skip_to` makes a mirror skip sequences that its origin does not have."""
        self.origin = origin
        self._stream = stream
        self._context = stream.context
        self._take = take
        self._remote = remote
        self._skip_to = skip_to
        self._is_open = self._is_connected = False
        self._level = self._first_level()
        """The index of the API level to ask the origin for."""
        self._failures = 0
        """The number of failed attempts in a row."""
        self._error: JetStreamError | None = None
        self._timer: Timer | None = None
        """Fires when the answer, the next heartbeat or the next attempt is due."""
        self._ends: list[Callable[[], None]] = []
        """Functions that end the subscriptions."""
        self._early: list[Arrival] = []
        """Messages that came before the origin's answer."""
        self._consumer = ""
        """The consumer that sends to us, once it exists."""
        self._durable = ""
        """The same if it is durable: an origin that keeps messages for its readers makes it so."""
        self._consumer_sequence = 0
        self._heard_ns = 0
        self._lag = 0
        self._unsafe: deque[tuple[int, int, int, bytes]] = deque()
        """Not safe yet: last sequence here, there, of the consumer; the reply subject for then."""

    @property
    def has_unsafe(self) -> bool:
        """Whether the stream could still lose a message that was read."""
        return bool(self._unsafe)

    @property
    def _is_mirror(self) -> bool:
        return self._stream.config.mirror is not None

    def _first_level(self) -> int:
        # A mirror has the sequences of its origin, so the origin's identity does not matter.
        return 1 if self._is_mirror else 0

    def open(self) -> None:
        """Begin to read, as soon as the origin can be reached."""
        if not self._is_open:
            self._is_open = True
            self._remote.attach(self)

    def on_stream(self, stream: Copied) -> None:
        """Do nothing: the origin is not in this account."""

    def close(self, *, for_good: bool) -> None:
        """Drop the consumer; a durable one stays to keep our place, unless it is for good."""
        if not self._is_open:
            return
        self._is_open = False
        self._let_go(deletes=for_good or not self._durable)
        self._remote.detach(self)

    def on_connected(self) -> None:
        """Ask for a consumer."""
        self._is_connected = True
        self._failures, self._level = 0, self._first_level()
        self._ask()

    def on_lost(self, reason: str) -> None:
        """Wait until the origin can be reached again."""
        self._is_connected = False
        self._ends.clear()
        self._let_go(deletes=False)
        self._error = self._setup_failed(reason)

    def on_refused(self, reason: str) -> None:
        """Report it; without a consumer, try again later."""
        if self._is_connected and not self._consumer:
            self._fail(reason)
        else:
            self._error = self._setup_failed(reason)

    # The consumer.

    def _ask(self) -> None:
        """Ask the origin to send the messages we do not have."""
        origin, remote = self.origin, self._remote
        if self._is_mirror:
            origin.read_sequence = self._stream.store.last_sequence
        inbox = remote.new_inbox()
        prefix = (origin.config.get("external") or {}).get("deliver")
        deliver = f"{prefix}.{self._context.new_id()}" if prefix else f"{inbox}.messages"
        request = sourcing.ask(self._stream, origin, deliver=deliver, level=API_LEVELS[self._level])
        answer = f"{inbox}.answer"
        self._ends.append(remote.subscribe(answer, lambda found: self._on_answer(found[0])))
        if origin.config.get("consumer") is None:
            # Now: it sends as soon as anybody listens, even a wildcard subscriber.
            self._ends.append(remote.subscribe(deliver, self._on_arrivals))
        self._wait(SILENCE_NS, lambda: self._fail(f"no answer on `{remote.api}`"))
        subject = f"{remote.api}.{request.call}".encode()
        remote.publish(subject, request.body, reply=answer.encode(), header=request.header)

    def _on_answer(self, arrival: Arrival) -> None:
        _, _, header, payload = arrival
        code, _ = headers.status(header)
        if code:
            self._fail(f"no answer on `{self._remote.api}`: is JetStream on there?")
            return
        try:
            info = json.loads(payload)
            if "error" in info:
                self._on_refused(info["error"])
            else:
                self._begin(info, headers.get(header, sourcing.IDENTITY.encode()) or b"")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._fail(f"the answer of the origin makes no sense: {error}")

    def _on_refused(self, error: dict[str, Any]) -> None:
        code = error.get("err_code", 0)
        if code in NOT_UNDERSTOOD and API_LEVELS[self._level]:
            self._level += 1
            self._ask_again()
        elif code == errorcodes.CONSUMER_STREAM_IDENTITY_MISMATCH.err_code:
            self._begin_again()
            self._ask_again()
        else:
            told = ApiError(error.get("code", 500), code, error.get("description", ""))
            self._fail_with(JetStreamError(told))

    def _ask_again(self) -> None:
        self._let_go(deletes=False)
        self._ask()

    def _begin_again(self) -> None:
        """Read the origin from its start: it is a different stream than the one we knew."""
        log.warning("Stream '%s': its source '%s' is new", self._stream.name, self.origin.name)
        self.origin.begin_again()
        self.origin.identity = ""
        self._unsafe.clear()

    def _begin(self, info: dict[str, Any], identity: bytes) -> None:
        """Take the messages of the consumer from now on."""
        origin, config = self.origin, info["config"]
        durable = origin.config.get("consumer")
        if durable is not None and config.get("ack_policy") != "flow_control":
            mirror, source = (
                errorcodes.MIRROR_CONSUMER_REQUIRES_ACK_FLOW_CONTROL,
                errorcodes.SOURCE_CONSUMER_REQUIRES_ACK_FLOW_CONTROL,
            )
            self._fail_with(JetStreamError(mirror if self._is_mirror else source))
            return
        known = origin.identity.encode()
        if not self._is_mirror and known and identity and known != identity:
            # A request for the operator's consumer is not refused for a wrong identity, which only
            # the answer shows.
            self._begin_again()
        origin.identity = identity.decode()
        begun = info["delivered"]
        # If it has sent messages by now, those tell where it began.
        if not begun["consumer_seq"] and begun["stream_seq"] > origin.read_sequence:
            self._skip_to(begun["stream_seq"])
            origin.read_sequence = begun["stream_seq"]
        self._consumer, self._consumer_sequence = info["name"], 0
        self._durable = self._consumer if durable or config.get("durable_name") else ""
        self._lag, self._error = info.get("num_pending", 0), None
        self._heard_ns = self._context.clock_ns()
        if durable is not None:
            deliver = durable["deliver_subject"]
            self._ends.append(self._remote.subscribe(deliver, self._on_arrivals))
        self._watch_heartbeats()
        early, self._early = self._early, []
        self._on_arrivals(early)

    def _let_go(self, *, deletes: bool) -> None:
        """Stop listening to the consumer."""
        if self._timer is not None:
            self._timer.cancel()
        for end in self._ends:
            end()
        self._ends.clear()
        self._early.clear()
        consumer, self._consumer = self._consumer or self._durable, ""
        self._unsafe = deque((*each[:3], b"") for each in self._unsafe)
        if consumer and deletes and self.origin.config.get("consumer") is None:
            call = f"{self._remote.api}.CONSUMER.DELETE.{self.origin.name}.{consumer}"
            self._remote.publish(call.encode(), reply=self._remote.new_inbox().encode())

    # Failures.

    def _watch_heartbeats(self) -> None:
        silence_ns = self._context.clock_ns() - self._heard_ns
        if silence_ns >= SILENCE_NS:
            self._fail("the origin is silent")
        else:
            self._wait(SILENCE_NS - silence_ns, self._watch_heartbeats)

    def _fail(self, reason: str) -> None:
        self._fail_with(self._setup_failed(reason))

    def _setup_failed(self, reason: str) -> JetStreamError:
        mirror, source = (
            errorcodes.MIRROR_CONSUMER_SETUP_FAILED,
            errorcodes.SOURCE_CONSUMER_SETUP_FAILED,
        )
        return JetStreamError(mirror if self._is_mirror else source, err=reason)

    def _fail_with(self, error: JetStreamError) -> None:
        """Drop the consumer, and ask for another after a while."""
        stream, origin = self._stream, self.origin
        log.warning("Stream '%s' cannot read '%s': %s", stream.name, origin.name, error)
        self._error = error
        self._let_go(deletes=not self._durable)
        delay_ns = min(RETRY_NS << min(self._failures, 10), RETRY_NS_MAX)
        self._failures += 1
        self._wait(delay_ns, self._ask)

    def _wait(self, delay_ns: int, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._context.clock_ns() + delay_ns
        self._timer = self._context.timers.at(deadline_ns, lambda now_ns: action())

    # Messages of the consumer.

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        if not self._consumer:
            self._early += arrivals
            return
        self._heard_ns = self._context.clock_ns()
        self._failures = 0 if arrivals else self._failures
        messages: list[Message] = []
        try:
            for subject, reply, header, payload in arrivals:
                if header.startswith(STATUS):
                    self._store(messages)
                    messages = []
                    self._on_status(reply, header)
                else:
                    self._collect(messages, reply, (subject, header, payload))
            self._store(messages)
        except JetStreamError as error:
            self._fail_with(error)
        except ValueError as error:
            self._store(messages)
            self._fail(str(error))

    def _collect(
        self, messages: list[Message], reply: bytes, content: tuple[bytes, bytes, bytes]
    ) -> None:
        """Add a message to those to store, unless we have it already."""
        deliveries, sequence, consumer_sequence, time_ns, self._lag = sourcing.delivered(reply)
        # A durable one may have sent a few messages before its reset, which starts at 1 again.
        is_old = self._durable and not self._consumer_sequence and consumer_sequence > 1
        if deliveries > 1 or is_old:
            return
        last_sequence = messages[-1][0] if messages else self.origin.read_sequence
        if consumer_sequence != self._consumer_sequence + 1:
            raise ValueError(f"messages are missing behind sequence {last_sequence}")
        self._consumer_sequence = consumer_sequence
        if sequence > last_sequence:
            messages.append((sequence, time_ns, *content))

    def _store(self, messages: list[Message]) -> None:
        if messages:
            self._take(self.origin, messages)
            self.origin.read_sequence = messages[-1][0]
            self._note(b"")

    def _note(self, reply: bytes) -> None:
        """Remember what has to be safe, and the reply subject for then; it may be safe already."""
        store, origin = self._stream.store, self.origin
        entry = (store.last_sequence, origin.read_sequence, self._consumer_sequence, reply)
        self._unsafe.append(entry)
        self.on_safe(self._stream.visible_sequence)

    def _on_status(self, reply: bytes, header: bytes) -> None:
        if reply:
            self._note(reply)
            return
        last = headers.get(header, b"Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_sequence:
            raise ValueError(f"messages are missing behind sequence {self.origin.read_sequence}")
        stalled = headers.get(header, b"Nats-Consumer-Stalled")
        if stalled:
            self._note(stalled)

    # Called by its own stream.

    def on_safe(self, visible_sequence: int) -> None:
        """Note that the stream cannot lose its messages up to a sequence; let more come."""
        while self._unsafe and self._unsafe[0][0] <= visible_sequence:
            _, safe_sequence, consumer_sequence, reply = self._unsafe.popleft()
            self.origin.safe_sequence = safe_sequence
            if reply:
                header = sourcing.flow_control_header(consumer_sequence, safe_sequence)
                self._remote.publish(reply, header=header)

    def info(self) -> dict[str, Any]:
        """Return the origin for StreamInfo."""
        passed_ns = max(self._context.clock_ns() - self._heard_ns, 0)
        return self.origin.info(
            lag=self._lag,
            active_ns=passed_ns if self._heard_ns else -1,
            is_mirror=self._is_mirror,
            error=self._error,
        )
