"""
One connection's state machine: bytes in, operations done, bytes out.

A session knows nothing of sockets. `receive` takes what the peer sent; what the
peer is owed waits in `outbox` until somebody with a socket takes it from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.core.account import Account, Figures, single_messages
from penstock.core.identity.auth import Caller, Identity, Pending
from penstock.core.identity.connect import read_options
from penstock.core.identity.permissions import RESERVED_REPLIES, Permissions
from penstock.core.identity.tls import TlsState
from penstock.core.reports import trace
from penstock.core.routing.route import Subscription
from penstock.hot import wire
from penstock.hot.wire import CONNECT, FAIL, INFO, OK, PING, PONG, PUB, SUB, UNSUB, Op, Parser
from penstock.protocol import subjects, times

if TYPE_CHECKING:
    from penstock.core.broker import Broker, Timer

log = logging.getLogger("penstock")

AUTHORIZATION_VIOLATION = "Authorization Violation"
PROTOCOLS = (0, 1)
WEBSOCKET = "websocket"
CONNECTION_TYPES = {"nats": "STANDARD", WEBSOCKET: "WEBSOCKET"}
"""What the ways to connect are called where a user is told to use them."""
ONLY_PONG = [(PONG,)]
PORTION, DISPATCHES = 1024, 4
"""Publishes, and other operations, that are done before the clock is looked at."""


class Session(hot.Outlet):
    """The protocol state of one connection."""

    __slots__ = (
        "_expiry",
        "_held",
        "_is_announced",
        "_is_counted",
        "_owes_connect_info",
        "_turn_end_ns",
        "account",
        "broker",
        "check",
        "client_id",
        "closing",
        "connect_options",
        "echo",
        "forwarded_for",
        "headers",
        "heard_ns",
        "identity",
        "in_bytes",
        "in_messages",
        "ip",
        "is_connected",
        "kind",
        "last_activity_ns",
        "needs_care",
        "no_responders",
        "nonce",
        "parser",
        "pedantic",
        "permissions",
        "ping_sent_ns",
        "pings_unanswered",
        "port",
        "publishes_plainly",
        "put_off",
        "round_trip_ns",
        "start_ns",
        "subscriptions",
        "subscriptions_max",
        "tls",
        "transport",
        "verbose",
    )

    def __init__(
        self, broker: Broker, client_id: int, *, ip: str, port: int, kind: str = "nats"
    ) -> None:
        limits = broker.config.limits
        super().__init__(limits.congested_bytes, broker.dirty, broker.congested)
        self.broker = broker
        self.client_id = client_id
        self.ip = ip
        """The address that everything is decided by: the socket's, or the PROXY header's."""
        self.port = port
        self.kind = kind
        self.forwarded_for = ""
        """Whom an HTTP proxy says it speaks for. Anybody can say so: it is shown in the log."""
        self.nonce = ""
        """What the peer was asked to sign, if anything."""
        self.tls: TlsState | None = None
        """What the TLS handshake agreed on, and the client's certificate, if there is TLS."""
        self.transport: Any = None
        """Whoever writes the outbox; the server finds a session's connection through it."""
        self.account: Account = broker.default_account
        self._is_announced = False
        """Whether the system account knows of it."""
        self._is_counted = False
        """Whether it is one of the connections of its account."""
        self._expiry: Timer | None = None
        """Ends the session when its user ceases to be who it is."""
        self.parser = Parser(
            hot.parse_commands, limits.payload_bytes_max, limits.control_line_bytes_max
        )
        self.subscriptions: dict[bytes, Subscription] = {}
        self.subscriptions_max: float = inf
        self.identity: Identity | None = None
        self.permissions: Permissions | None = None
        self.is_connected = False
        """Whether the peer has said CONNECT."""
        self.connect_options: dict[str, Any] = {}
        """What it said there; a later CONNECT adds to the former."""
        self.check: Pending | None = None
        self.closing: str | None = None
        """Why the connection is to be closed once the outbox is written."""

        self._set_flags()
        self._set_ways()
        stranger = broker.authenticator_of(kind).stranger
        if stranger is not None:
            self.permit(stranger)

        self.in_messages = self.in_bytes = 0
        self.start_ns = self.last_activity_ns = broker.clock_ns()
        self.heard_ns = 0
        """When the peer last sent something of its own accord."""
        self.pings_unanswered = self.ping_sent_ns = self.round_trip_ns = 0
        self._turn_end_ns = 0
        self.put_off: list[Callable[[], None]] = []
        """What waits until others have had their turn, or it is known who asks for it."""
        self._held = b""
        """What came behind the first CONNECT, while it is found out who the peer is."""
        self._owes_connect_info = False

    @property
    def figures(self) -> Figures:
        """What came from the peer, and what went to it."""
        return self.in_messages, self.in_bytes, self.out_messages, self.out_bytes

    def __str__(self) -> str:
        before = f"{self.forwarded_for}/" if self.forwarded_for else ""
        return f"{before}{self.ip}:{self.port} - cid:{self.client_id}"

    def receive(self, data: bytes | memoryview) -> None:
        """Do what the peer asks for in `data`."""
        self._begin_turn()
        if self.identity is None or self.check is not None:
            data = self._introduction(data)
        operations = self.parser.feed(data)
        if operations != ONLY_PONG:
            self.heard_ns = self.last_activity_ns
        if self.broker.traces:
            trace.received(self, operations)
        self._process(operations)
        if self._held and self._may_go_on:
            self.go_on()

    def _introduction(self, data: bytes | memoryview) -> bytes:
        """
        Return the line by which a stranger says who it is, and hold what comes behind it.

        Nothing else is looked at, however long it is: nats-server too refuses a stranger
        that does not begin with CONNECT at its first letter.
        """
        data = self._held + bytes(data)
        self._held = b""
        if self.check is not None:
            self._held = data
            return b""
        if data and not self.parser.pending_bytes and data[:1] not in (b"C", b"c"):
            self._refuse()
            return b""
        end = data.find(b"\n") + 1 or len(data)
        self._held = data[end:]
        return data[:end]

    def _begin_turn(self) -> None:
        now_ns = self.last_activity_ns = self.broker.clock_ns()
        self._turn_end_ns = now_ns + self.broker.turn_ns

    @property
    def is_turn_over(self) -> bool:
        """Whether what the peer asked for has taken so long that it is the turn of others."""
        return self.broker.clock_ns() >= self._turn_end_ns

    def do_later(self, action: Callable[[], None]) -> None:
        """Put something off until others have had their turn."""
        if not self.put_off:
            self.broker.behind.append(self)
        self.put_off.append(action)

    def go_on(self) -> None:
        """Do what was put off and what was held back, as far as there is time."""
        self._begin_turn()
        waiting, self.put_off = self.put_off, []
        while waiting and self._may_go_on:
            waiting.pop(0)()
        if self._held and self._may_go_on:
            held, self._held = self._held, b""
            self.receive(held)
        elif waiting and self.closing is None:
            self.do_later(waiting.pop(0))
            self.put_off += waiting

    @property
    def _may_go_on(self) -> bool:
        return not self.put_off and self.closing is None and self.check is None

    def enqueue_all(
        self, entries: Sequence[Any], size: int, messages: int, payload_bytes: int
    ) -> None:
        """Owe the peer several buffers, `size` bytes in all."""
        self.outbox += entries[:-1]
        self.enqueue(entries[-1], size, messages, payload_bytes)

    def write(self, data: bytes) -> None:
        """Owe the peer a protocol line."""
        self.enqueue(data, len(data))

    def report(self, text: str) -> None:
        """Tell the peer of an error that leaves the connection open."""
        self.write(b"-ERR '%b'\r\n" % text.encode())

    def fail(self, text: str, reason: str) -> None:
        """Tell the peer of an error and close; say nothing if the text is empty."""
        if text:
            self.report(text)
        self.closing = reason
        self.mark_dirty()

    def ping(self) -> None:
        """Ask a silent peer whether it is still there; too many unanswered pings end it."""
        limits = self.broker.config.limits
        if self.broker.clock_ns() - self.heard_ns < limits.ping_interval_s * times.SECOND_NS:
            return
        if self.pings_unanswered >= limits.ping_max:
            self.broker.stale_connections += 1
            self.fail("Stale Connection", "Stale Connection")
            return
        self.pings_unanswered += 1
        self.ping_sent_ns = self.broker.clock_ns()
        self.write(b"PING\r\n")

    def may_receive(self, subject: bytes, queue: bytes, publisher: Session | None) -> bool:
        """Tell whether a message may go to this session: echo, and what it is denied."""
        if publisher is self and not self.echo:
            return False
        return self.permissions is None or self.permissions.may_receive(subject, queue)

    def remove_subscription(self, subscription: Subscription) -> None:
        """End a subscription."""
        del self.subscriptions[subscription.sid]
        self.account.routes.remove(subscription)

    def settle(self, identity: Identity | None) -> None:
        """Take a verdict that came late: after a slow check, or with new rules."""
        self.check = None
        if self.identity is None:
            self._identified(identity)
        elif identity is None:
            self.fail(AUTHORIZATION_VIOLATION, "Credentials Revoked")
        else:
            self.permit(identity)
        self.go_on()

    def _process(self, operations: list[Op]) -> None:
        """Do operations in order, those there is no time for after others had their turn."""
        if len(operations) == 1 and operations[0][0] == PUB:
            self._publish(operations)
            return
        if len(operations) <= PORTION:
            self._do(operations)
            return
        self._do(operations[:PORTION])
        rest = operations[PORTION:]
        if self._may_go_on and not self.is_turn_over:
            self._process(rest)
        elif self.closing is None:
            self.do_later(partial(self._process, rest))

    def _do(self, operations: list[Op]) -> None:
        publishes: list[Op] = []
        for index, operation in enumerate(operations):
            if operation[0] == PUB:
                publishes.append(operation)
                continue
            # How long publishes take depends on who listens, and not on how many they are.
            looks = publishes or index % DISPATCHES == DISPATCHES - 1
            if publishes:
                self._publish(publishes)
                publishes = []
            if self.put_off or (looks and self.is_turn_over):
                self.do_later(partial(self._process, operations[index:]))
                return
            if self.closing is None:
                HANDLERS[operation[0]](self, operation)
            if self.closing is not None:
                return
            if self.check is not None:
                self.do_later(partial(self._process, operations[index + 1 :]))
                return
        if publishes:
            self._publish(publishes)

    def _refuse(self) -> None:
        self.broker.refused(self)
        self.fail(AUTHORIZATION_VIOLATION, "Authentication Failure")

    def _publish(self, publishes: list[Op]) -> None:
        messages, payload_bytes, has_reserved = hot.publish_totals(publishes, RESERVED_REPLIES)
        self.in_messages += messages
        self.in_bytes += payload_bytes
        if not self.publishes_plainly or has_reserved:
            self._publish_carefully(publishes)
        elif len(publishes) == 1:
            self.account.publish(publishes, self)
        else:
            self.account.publish_in_turn(publishes, self)

    def _publish_carefully(self, publishes: list[Op]) -> None:
        """Publish what there is nothing to say about together, the rest message by message."""
        if self.account.mappings is not None:
            publishes = self.account.mappings.apply(publishes)
        plain: list[Op] = []
        for publish in publishes:
            is_understood = self.headers or not publish[3]
            if is_understood and not self._calls_for_answer(publish):
                plain.append(publish)
                continue
            self.account.publish(plain, self)
            plain = []
            if not is_understood:
                self.fail("", "Protocol Violation")
                return
            for message in single_messages(publish):
                self._publish_one(message)
        self.account.publish_in_turn(plain, self)

    def _calls_for_answer(self, publish: Op) -> bool:
        """Tell whether the publisher is owed a word about each message of a run."""
        _, subject, reply, *_ = publish
        return (
            self.verbose
            or (self.pedantic and not subjects.is_valid_literal(subject))
            or (self.permissions is not None and not self.permissions.allows(subject))
            or reply.startswith(RESERVED_REPLIES)
        )

    def _publish_one(self, message: Op) -> None:
        _, subject, reply, *_ = message
        if self.pedantic and not subjects.is_valid_literal(subject):
            # Said, and sent on all the same.
            self.report("Invalid Publish Subject")
        if self.permissions is not None and not self.permissions.may_publish(subject):
            self._violation(f"Publish to {subjects.quoted(subject)}")
        elif reply.startswith(RESERVED_REPLIES):
            self._violation(f"Publish with Reply of {subjects.quoted(reply)}")
        else:
            if self.verbose:
                self.write(b"+OK\r\n")
            self.account.publish([message], self)

    def _violation(self, what: str) -> None:
        self.broker.violation(self, what)
        self.report(f"Permissions Violation for {what}")

    def _on_connect(self, operation: Op) -> None:
        options = read_options(operation[1])
        if options is None:
            self.fail("", "Protocol Violation")
            return
        if self.is_connected:
            # As nats-server does, since another user may live in another account.
            for subscription in tuple(self.subscriptions.values()):
                self.remove_subscription(subscription)
        else:
            # An estimate to begin with: this answers our INFO.
            self.round_trip_ns = self.broker.clock_ns() - self.start_ns
        self.is_connected = True
        self.connect_options |= options
        self._set_flags()
        verdict = self.identify()
        if isinstance(verdict, Pending):
            self.check = verdict
        else:
            self._identified(verdict)

    def identify(self) -> Identity | Pending | None:
        """Return who the peer is by the rules now in force."""
        config = self.broker.config
        websocket = config.websocket if self.kind == WEBSOCKET else None
        tls = config.tls if websocket is None else websocket.tls
        caller = Caller(
            nonce=self.nonce,
            connection_type=CONNECTION_TYPES[self.kind],
            no_auth_user=websocket.no_auth_user if websocket is not None else None,
            ip=self.ip,
            now_s=self.broker.clock_ns() / times.SECOND_NS,
            is_mapped=tls is not None and tls.verify_and_map,
            needs_password=config.maps_certificates,
            certificate=self.tls.certificate if self.tls is not None else None,
        )
        try:
            return self.broker.authenticator_of(self.kind).identify(self.connect_options, caller)
        except Exception as error:
            # A stranger may say anything, so a mistake of ours costs it no more than a line.
            log.error("! %s cannot be identified: %.200r", self, error)
            return None

    def _identified(self, identity: Identity | None) -> None:
        options = self.connect_options
        if identity is None or options.get("account") or options.get("new_account"):
            self._refuse()
        elif self.broker.accounts[identity.account].is_full and not self._is_counted:
            self.fail(
                "maximum account active connections exceeded",
                "Maximum Account Connections Exceeded",
            )
        elif options.get("protocol", 0) not in PROTOCOLS:
            self.fail("invalid client protocol", "Protocol Violation")
        elif self.no_responders and not self.headers:
            self.fail("no responders requires headers support", "No Responders Requires Headers")
        else:
            self.permit(identity)
            if not self._is_announced:
                self._is_announced = True
                self.broker.system.connected(self)
            self._owes_connect_info |= options.get("protocol") == 1
            if self.verbose:
                self.write(b"+OK\r\n")

    def _set_flags(self) -> None:
        """Note how the peer wants to be spoken to; the defaults are those of nats-server."""
        options = self.connect_options
        self.verbose = options.get("verbose", True)
        self.pedantic = options.get("pedantic", True)
        self.echo = options.get("echo", True)
        self.headers = options.get("headers", False)
        self.no_responders = options.get("no_responders", False)

    def permit(self, identity: Identity) -> None:
        """Take on what a user may do, and end the subscriptions it may not have."""
        self.identity = identity
        self._enter_account(self.broker.accounts[identity.account])
        self.set_limits()
        self._start_expiry(identity)
        rules = identity.permissions
        self.permissions = Permissions(rules, self.broker.clock_ns) if rules is not None else None
        self._set_ways()
        for subscription in tuple(self.subscriptions.values()):
            # Routes were worked out for what the session was before.
            self.account.routes.forget(subscription.subject)
            if not self._may_subscribe(subscription.subject, subscription.queue):
                self.remove_subscription(subscription)

    def _enter_account(self, account: Account) -> None:
        """Live in an account from now on, within its limits."""
        if account is not self.account or not self._is_counted:
            self.leave_account()
            self.account = account
            self._is_counted = True
            account.connections += 1

    def set_limits(self) -> None:
        """Take payloads and subscriptions as the server, the account and the user allow."""
        limits = self.broker.config.limits
        payloads, subscriptions = [limits.payload_bytes_max], [limits.subscriptions_max or -1]
        if self.identity is not None:
            for each in (self.account.config.limits, self.identity):
                payloads.append(each.payload_bytes_max)
                subscriptions.append(each.subscriptions_max)
        self.parser.payload_bytes_max = min(limit for limit in payloads if limit >= 0)
        self.subscriptions_max = min((limit for limit in subscriptions if limit >= 0), default=inf)

    def _start_expiry(self, identity: Identity) -> None:
        self.stop_expiry()
        if identity.expires_s:
            delay_s = max(identity.expires_s - self.broker.clock_ns() / times.SECOND_NS, 0)
            self._expiry = self.broker.call_later(delay_s, lambda: self._expire(identity))

    def stop_expiry(self) -> None:
        """Forget when the user expires: it is another now, or the session is over."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self, identity: Identity) -> None:
        """End the session: its time is over."""
        if self.closing is None:
            self.fail(identity.expiry_text, "Authentication Expired")

    def leave_account(self) -> None:
        """Count no longer among the connections of an account."""
        self.account.connections -= self._is_counted
        self._is_counted = False

    def _set_ways(self) -> None:
        """Work out once which messages can take the fast way in and out."""
        permissions = self.permissions
        self.publishes_plainly = (
            self.identity is not None
            and self.headers
            and self.account.mappings is None
            and not (self.verbose or self.pedantic or permissions)
        )
        watched = permissions is not None and permissions.watches_delivery
        self.needs_care = watched or not self.echo or not self.headers

    def _on_subscribe(self, operation: Op) -> None:
        _, subject, queue, sid = operation
        if not subjects.is_valid(subject):
            self.report("Invalid Subject")
        elif not self._may_subscribe(subject, queue):
            return
        elif len(self.subscriptions) >= self.subscriptions_max:
            self.report("maximum subscriptions exceeded")
        else:
            self._subscribe(subject, queue, sid)

    def _may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether a subscription is permitted, and the peer if it is not."""
        if self.permissions is None or self.permissions.may_subscribe(subject, queue):
            return True
        using = f" using queue {subjects.quoted(queue)}" if queue else ""
        self._violation(f"Subscription to {subjects.quoted(subject)}{using}")
        return False

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        # nats-server ignores a sid that is already in use.
        if sid not in self.subscriptions:
            subscription = Subscription(subject, self, sid=sid, queue=queue)
            self.subscriptions[sid] = subscription
            self.account.routes.insert(subscription)
        if self.verbose:
            self.write(b"+OK\r\n")

    def _on_unsubscribe(self, operation: Op) -> None:
        _, sid, messages_max = operation
        subscription = self.subscriptions.get(sid)
        if subscription is not None:
            if messages_max > subscription.delivered:
                subscription.messages_max = messages_max
                self.account.routes.forget(subscription.subject)
            else:
                self.remove_subscription(subscription)
        if self.verbose:
            self.write(b"+OK\r\n")

    def _on_ping(self, operation: Op) -> None:
        self.write(b"PONG\r\n")
        if self._owes_connect_info:
            self._owes_connect_info = False
            self.write(
                self.broker.info_line(self, connect_info=True, remote_account=self.account.name)
            )

    def _on_pong(self, operation: Op) -> None:
        if self.pings_unanswered:
            self.pings_unanswered = 0
            self.round_trip_ns = self.broker.clock_ns() - self.ping_sent_ns

    def _on_info(self, operation: Op) -> None:
        """Take an INFO as nats-server does: without a word, if it is one."""
        if read_options(operation[1]) is None:
            self.fail("", "Parse Error")

    def _on_ok(self, operation: Op) -> None:
        """Take a `+OK` as nats-server does: without a word."""

    def _on_fail(self, operation: Op) -> None:
        text = operation[1]
        self.fail(text.decode(), wire.CLOSE_REASONS[text])


HANDLERS = {
    CONNECT: Session._on_connect,
    SUB: Session._on_subscribe,
    UNSUB: Session._on_unsubscribe,
    PING: Session._on_ping,
    PONG: Session._on_pong,
    INFO: Session._on_info,
    OK: Session._on_ok,
    FAIL: Session._on_fail,
}
