"""
One connection's state machine: bytes in, operations done, bytes out.

A session knows nothing of sockets. `receive` takes the peer's bytes; bytes for the peer
wait in `outbox` until the connection writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.core.account import Account, Figures
from penstock.core.identity.auth import Caller, Identity, Pending
from penstock.core.identity.connect import read_options
from penstock.core.identity.permissions import RESERVED_REPLIES, Permissions
from penstock.core.identity.tls import TlsState
from penstock.core.reports import messagetrace, trace
from penstock.core.routing.route import Subscription
from penstock.hot import wire
from penstock.hot.wire import CONNECT, FAIL, INFO, KIND, OK, PING, PONG, PUB, SUB, UNSUB, Op, Parser
from penstock.protocol import subjects, times

if TYPE_CHECKING:
    from penstock.core.host import Host, ScheduledCall

log = logging.getLogger("penstock")

AUTHORIZATION_VIOLATION = "Authorization Violation"
PROTOCOLS = (0, 1)
WEBSOCKET = "websocket"
CONSOLE = "console"
"""A user who has signed in to the console: a client inside the server."""
CONNECTION_TYPES = {"nats": "STANDARD", WEBSOCKET: "WEBSOCKET", CONSOLE: "STANDARD"}
"""Listener → its name in `allowed_connection_types`."""
ONLY_PONG = [(PONG,)]
PORTION, DISPATCHES = 1024, 4
"""The numbers of publishes, and of other operations, between two looks at the clock."""

_kind = itemgetter(KIND)


class Session(hot.Outlet):
    """The protocol state of one connection."""

    __slots__ = (
        "_expiry",
        "_held",
        "_is_announced",
        "_is_counted",
        "_owes_connect_info",
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
        self, broker: Host, client_id: int, *, ip: str, port: int, kind: str = "nats"
    ) -> None:
        limits = broker.config.limits
        super().__init__(limits.congested_bytes, broker.dirty, broker.congested)
        self.broker = broker
        self.client_id = client_id
        self.ip = ip
        """The address that all decisions use: from the socket, or from the PROXY header."""
        self.port = port
        self.kind = kind
        self.forwarded_for = ""
        """The client's address as an HTTP proxy gives it. It can be forged: only for the log."""
        self.nonce = ""
        """The nonce that the peer has to sign, if any."""
        self.tls: TlsState | None = None
        """The TLS parameters and the client's certificate, if the connection uses TLS."""
        self.transport: Any = None
        """The writer of the outbox; the server finds the session's connection through it."""
        self.account: Account = broker.default_account
        self._is_announced = False
        """Whether the system account knows of this session."""
        self._is_counted = False
        """Whether the account counts this session among its connections."""
        self._expiry: ScheduledCall | None = None
        """Ends the session when its authentication expires."""
        self.parser = Parser(hot.parse_commands, limits.max_payload, limits.max_control_line)
        self.subscriptions: dict[bytes, Subscription] = {}
        self.subscriptions_max: float = inf
        self.identity: Identity | None = None
        self.permissions: Permissions | None = None
        self.is_connected = False
        """Whether the peer has sent CONNECT."""
        self.connect_options: dict[str, Any] = {}
        """The options of all CONNECTs so far; a later one adds to the former."""
        self.check: Pending | None = None
        self.closing: str | None = None
        """Why the connection is to be closed once the outbox is written; None: keep it open."""

        self._set_flags()
        self._set_ways()
        stranger = broker.authenticator_of(kind).stranger
        if stranger is not None:
            self.permit(stranger)

        self.in_messages = self.in_bytes = 0
        self.start_ns = self.last_activity_ns = broker.clock_ns()
        self.heard_ns = 0
        """When the peer last sent anything other than a lone PONG."""
        self.pings_unanswered = self.ping_sent_ns = self.round_trip_ns = 0
        self.put_off: list[Callable[[], None]] = []
        """Postponed operations: they wait for the turns of others, or for authentication."""
        self._held = b""
        """The bytes after the first CONNECT, held until the peer is authenticated."""
        self._owes_connect_info = False

    @property
    def figures(self) -> Figures:
        """Messages and bytes in, messages and bytes out."""
        return self.in_messages, self.in_bytes, self.out_messages, self.out_bytes

    def __str__(self) -> str:
        before = f"{self.forwarded_for}/" if self.forwarded_for else ""
        return f"{before}{self.ip}:{self.port} - cid:{self.client_id}"

    def receive(self, data: bytes | memoryview) -> None:
        """Do the operations in `data`."""
        self.last_activity_ns = self.broker.clock_ns()
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
        Return the CONNECT line of an unknown peer, and hold the bytes after it.

        Nothing else is parsed, however long it is. Like nats-server, refuse an unknown peer
        at the first letter if that does not begin CONNECT.
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

    @property
    def is_turn_over(self) -> bool:
        """Whether the peer's operations have used up their time, so that others get their turn."""
        broker = self.broker
        return broker.clock_ns() >= self.last_activity_ns + broker.turn_ns

    def do_later(self, action: Callable[[], None]) -> None:
        """Postpone an action until others have had their turn."""
        if not self.put_off:
            self.broker.behind.append(self)
        self.put_off.append(action)

    def go_on(self) -> None:
        """Do postponed actions, and parse held bytes, as long as the turn lasts."""
        self.last_activity_ns = self.broker.clock_ns()
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
        """Queue several buffers for the peer, `size` bytes in all."""
        self.outbox += entries[:-1]
        self.enqueue(entries[-1], size, messages, payload_bytes)

    def write(self, data: bytes) -> None:
        """Queue a protocol line for the peer."""
        self.enqueue(data, len(data))

    def report(self, text: str) -> None:
        """Send the peer an error that leaves the connection open."""
        self.write(b"-ERR '%b'\r\n" % text.encode())

    def fail(self, text: str, reason: str) -> None:
        """Send the peer an error and close; send nothing if the text is empty."""
        if text:
            self.report(text)
        self.closing = reason
        self.mark_dirty()

    def ping(self) -> None:
        """Ping a silent peer; close after too many unanswered pings."""
        limits = self.broker.config.limits
        if self.broker.clock_ns() - self.heard_ns < limits.ping_interval * times.SECOND_NS:
            return
        if self.pings_unanswered >= limits.ping_max:
            self.broker.stale_connections += 1
            self.fail("Stale Connection", "Stale Connection")
            return
        self.pings_unanswered += 1
        self.ping_sent_ns = self.broker.clock_ns()
        self.write(b"PING\r\n")

    def may_receive(self, subject: bytes, queue: bytes, publisher: Session | None) -> bool:
        """Tell whether a message may go to this session, by echo and by deny rules."""
        if publisher is self and not self.echo:
            return False
        return self.permissions is None or self.permissions.may_receive(subject, queue)

    def remove_subscription(self, subscription: Subscription) -> None:
        """End a subscription."""
        del self.subscriptions[subscription.sid]
        self.account.routes.remove(subscription)

    def settle(self, identity: Identity | None) -> None:
        """Apply a late verdict: after a slow check, or under new rules."""
        self.check = None
        if self.identity is None:
            self._identified(identity)
        elif identity is None:
            self.fail(AUTHORIZATION_VIOLATION, "Credentials Revoked")
        else:
            self.permit(identity)
        self.go_on()

    def _process(self, operations: list[Op]) -> None:
        """Do operations in order; postpone the rest when the turn is over."""
        if len(operations) == 1 and operations[0][KIND] == PUB:
            return self._publish(operations)
        if len(operations) <= PORTION:
            return self._do(operations)
        self._do(operations[:PORTION])
        rest = operations[PORTION:]
        if self._may_go_on and not self.is_turn_over:
            self._process(rest)
        elif self.closing is None:
            self.do_later(partial(self._process, rest))

    def _do(self, operations: list[Op]) -> None:
        if list(map(_kind, operations)).count(PUB) == len(operations):
            # Acks come by the hundred, so check for them in the cheapest way.
            return self._publish(operations)
        publishes: list[Op] = []
        for index, operation in enumerate(operations):
            if operation[KIND] == PUB:
                publishes.append(operation)
                continue
            # The time of a publish depends on its receivers, so look at the clock after
            # publishes.
            looks = publishes or index % DISPATCHES == DISPATCHES - 1
            if publishes:
                self._publish(publishes)
                publishes = []
            if self.put_off or (looks and self.is_turn_over):
                self.do_later(partial(self._process, operations[index:]))
                return
            if self.closing is None:
                HANDLERS[operation[KIND]](self, operation)
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
        messages, payload_bytes, need_care = hot.publish_totals(publishes, RESERVED_REPLIES)
        self.in_messages += messages
        self.in_bytes += payload_bytes
        if not self.publishes_plainly or need_care:
            messagetrace.publish(self, publishes)
        elif len(publishes) == 1:
            self.account.publish(publishes, self)
        else:
            self.account.publish_in_turn(publishes, self)

    def violation(self, what: str) -> str:
        """Report a forbidden operation to the peer; return the error text."""
        self.broker.violation(self, what)
        text = f"Permissions Violation for {what}"
        self.report(text)
        return text

    def _on_connect(self, operation: Op) -> None:
        _, argument = operation
        options = read_options(argument)
        if options is None:
            self.fail("", "Protocol Violation")
            return
        if self.is_connected:
            # As nats-server does, since another user may belong to another account.
            for subscription in tuple(self.subscriptions.values()):
                self.remove_subscription(subscription)
        else:
            # A first estimate: CONNECT answers our INFO.
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
        """Return the user of the peer by the current rules."""
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
            # An unknown peer may send anything. A bug here costs one log line, not the server.
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
                self.broker.connected(self)
            self._owes_connect_info |= options.get("protocol") == 1
            if self.verbose:
                self.write(b"+OK\r\n")

    def _set_flags(self) -> None:
        """Set the protocol flags; the defaults are those of nats-server."""
        options = self.connect_options
        self.verbose = options.get("verbose", True)
        self.pedantic = options.get("pedantic", True)
        self.echo = options.get("echo", True)
        self.headers = options.get("headers", False)
        self.no_responders = options.get("no_responders", False)

    def permit(self, identity: Identity) -> None:
        """Take on the permissions of a user, and end forbidden subscriptions."""
        self.identity = identity
        self._enter_account(self.broker.accounts[identity.account])
        self.set_limits()
        self._start_expiry(identity)
        rules = identity.permissions
        self.permissions = Permissions(rules, self.broker.clock_ns) if rules is not None else None
        self._set_ways()
        for subscription in tuple(self.subscriptions.values()):
            # Routes were computed for the former state of the session.
            self.account.routes.forget(subscription.subject)
            if not self._may_subscribe(subscription.subject, subscription.queue):
                self.remove_subscription(subscription)

    def _enter_account(self, account: Account) -> None:
        """Move into an account, and count as one of its connections."""
        if account is not self.account or not self._is_counted:
            self.leave_account()
            self.account = account
            self._is_counted = True
            account.connections += 1

    def set_limits(self) -> None:
        """Set the limits of payload and subscriptions: the lowest of server, account and user."""
        limits = self.broker.config.limits
        payloads, subscriptions = [limits.max_payload], [limits.max_subscriptions or -1]
        if self.identity is not None:
            for each in (self.account.config.limits, self.identity):
                payloads.append(each.max_payload)
                subscriptions.append(each.max_subscriptions)
        self.parser.payload_bytes_max = min(limit for limit in payloads if limit >= 0)
        self.subscriptions_max = min((limit for limit in subscriptions if limit >= 0), default=inf)

    def _start_expiry(self, identity: Identity) -> None:
        self.stop_expiry()
        if identity.expires_s:
            delay_s = max(identity.expires_s - self.broker.clock_ns() / times.SECOND_NS, 0)
            self._expiry = self.broker.call_later(delay_s, lambda: self._expire(identity))

    def stop_expiry(self) -> None:
        """Cancel the expiry: the user has changed, or the session is over."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self, identity: Identity) -> None:
        """End the session, because its authentication has expired."""
        if self.closing is None:
            self.fail(identity.expiry_text, "Authentication Expired")

    def leave_account(self) -> None:
        """Stop counting as a connection of the account."""
        self.account.connections -= self._is_counted
        self._is_counted = False

    def _set_ways(self) -> None:
        """Decide which messages may take the fast path in and out."""
        permissions = self.permissions
        self.publishes_plainly = (
            self.identity is not None
            and self.headers
            and self.account.mappings is None
            and self.account.config.msg_trace is None
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
        """Tell whether a subscription is permitted; if not, send the peer an error."""
        if self.permissions is None or self.permissions.may_subscribe(subject, queue):
            return True
        using = f" using queue {subjects.quoted(queue)}" if queue else ""
        self.violation(f"Subscription to {subjects.quoted(subject)}{using}")
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
        """Accept a valid INFO silently, as nats-server does."""
        _, argument = operation
        if read_options(argument) is None:
            self.fail("", "Parse Error")

    def _on_ok(self, operation: Op) -> None:
        """Accept a `+OK` silently, as nats-server does."""

    def _on_fail(self, operation: Op) -> None:
        _, text = operation
        if text == wire.PAYLOAD_VIOLATION and self.identity is not None:
            messagetrace.tell_too_large(self, self.parser.tail)
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
