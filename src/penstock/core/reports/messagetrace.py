"""
The trace of one message, sent to the subject in its `Nats-Trace-Dest` header.

The trace tells who sent the message, how its subject was mapped, which accounts and streams
it went to, and which clients got it or why not. All of that is one event. With
`Nats-Trace-Only` the message is only traced, and neither delivered nor stored.

An account may also trace messages that belong to an external trace, by their `traceparent`
(https://www.w3.org/TR/trace-context).

Traced messages leave the fast path; other messages cost a look at their headers at most.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.core.account import Account
from penstock.core.publishing import publish_carefully, publish_one
from penstock.core.runs import new_message, single_messages
from penstock.hot.wire import DATA, HEADER_BYTES, SIZE, SUBJECT, Op
from penstock.protocol import headers, subjects, times

if TYPE_CHECKING:
    from penstock.core.routing.route import Handler, Subscription, Traced
    from penstock.core.session import Session

log = logging.getLogger("penstock")

Json = dict[str, Any]
Fields = dict[bytes, list[bytes]]

DEST, ONLY = b"Nats-Trace-Dest", b"Nats-Trace-Only"
DISABLED = b"trace disabled"
"""Not a subject: tells the next receivers not to trace the message."""
ORIGIN_ACCOUNT = b"Nats-Trace-Origin-Account"
"""The header of an older tracing protocol; such messages are not traced."""
TRACEPARENT = b"traceparent"
FIRST_LINE = headers.VERSION + b"\r\n"
YES = (b"1", b"true", b"on")
ALWAYS = 100
FLAGS_MAX = 0x7F
"""nats-server reads the flags of a `traceparent` as a signed byte."""
CLIENT = 0
"""The kind of a client connection; the other kinds connect servers."""

WILDCARDS = {b">": 0, b"*": 1}
LITERAL, STAR_AT_END = 2, 3
"""The places of tokens among the receivers of one subject."""

NO_ECHO = "Not delivered because of no echo"
DENIED = "Not delivered because subscription denies this subject"
EXCEEDED = "Not delivered because auto-unsubscribe exceeded"
TOO_LARGE = "maximum payload exceeded"


class MessageTrace:
    """The trace of one message so far."""

    def __init__(
        self, publisher: Session, message: Op, *, dest: bytes, found: Fields, is_only: bool
    ) -> None:
        self.is_only = is_only
        """Whether the message must be neither delivered nor stored."""
        self._broker = publisher.broker
        self._account = publisher.account
        self._dest = dest
        self._encoding = found.get(b"Accept-Encoding", [b""])[0].lower()
        header = {_text(name): [*map(_text, found[name])] for name in sorted(found)}
        self._request = {"header": header, "msgsize": message[SIZE]}
        self._events: list[Json] = []
        self._holders = 0
        self._is_over = False
        came_from = _connection(publisher)
        subject = _text(message[SUBJECT])
        self._ingress = self._note("in", **came_from, acc=self._account.name, subj=subject)

    def fail(self, text: str) -> None:
        """Note why the message was refused."""
        self._ingress["error"] = text

    def mapped(self, subject: bytes) -> None:
        """Note that the publisher's account maps the subject to another."""
        self._note("sm", to=_text(subject))

    def imported(self, account: str, subject: bytes, to: bytes) -> None:
        """Note a request to a service of another account."""
        self._note("si", acc=account, **{"from": _text(subject)}, to=_text(to))

    def exported(self, account: str, to: bytes) -> None:
        """Note that another account imports the message."""
        self._note("se", acc=account, to=_text(to))

    def stored(self, stream: str) -> Json:
        """Note that a stream receives the message. The stream adds the outcome to the note."""
        return self._note("js", stream=stream)

    def left(self, subscription: Subscription, receiver: Session, error: str = "") -> None:
        """Note that a connection gets the message, or why not."""
        account = receiver.account.name
        note = self._note("eg", **_connection(receiver))
        if account != self._account.name:
            note["acc"] = account
        note["sub"] = _text(subscription.subject)
        if subscription.queue:
            note["queue"] = _text(subscription.queue)
        if error:
            note["error"] = error

    def hold(self) -> None:
        """Wait for a receiver that cannot tell yet what becomes of the message."""
        self._holders += 1

    def release(self) -> None:
        """Wait no more for such a receiver."""
        self._holders -= 1
        if self._is_over:
            self.send()

    def send(self) -> None:
        """Publish the trace, as soon as nobody holds it."""
        self._is_over = True
        if self._holders:
            return
        event = {
            "server": self._broker.describe(),
            "request": self._request,
            "events": self._events,
        }
        payload = json.dumps(event, separators=(",", ":")).encode()
        name, payload = _encoded(payload, self._encoding)
        header = headers.encode([("Content-Encoding", name)]) if name else b""
        self._account.respond([new_message(self._dest, payload, header=header)], None)

    def _note(self, kind: str, /, **fields: Any) -> Json:
        note = {"type": kind, "ts": times.timestamp(self._broker.clock_ns()), **fields}
        self._events.append(note)
        return note


# From the publisher.


def publish(session: Session, publishes: list[Op]) -> None:
    """Publish messages that need care, and trace those that ask for it."""
    with_header = [each for each in publishes if each[HEADER_BYTES]] if session.headers else ()
    if any(_may_be_traced(each, session.account) for each in with_header):
        _publish_each(session, list(chain.from_iterable(map(single_messages, publishes))))
    else:
        publish_carefully(session, publishes)


def _may_be_traced(publish: Op, account: Account) -> bool:
    data = publish[DATA]
    has_parent = account.config.msg_trace is not None and TRACEPARENT in data.lower()
    return has_parent or DEST in data


def _publish_each(session: Session, messages: list[Op]) -> None:
    """Publish messages one by one, as long as the turn lasts."""
    for index, message in enumerate(messages):
        if session.put_off or (index and session.is_turn_over):
            session.do_later(partial(_publish_each, session, messages[index:]))
            return
        trace, told = begin(session, message)
        if told is None:
            continue
        if trace is not None:
            _publish_traced(session, told, trace)
        else:
            publish_carefully(session, [told])


def _publish_traced(session: Session, message: Op, trace: MessageTrace) -> None:
    for each in session.account.mapped([message]):
        if each is not message:
            trace.mapped(each[SUBJECT])
        problem = publish_one(
            session, each, lambda told: deliver(session.account, told, session, trace)
        )
        if problem:
            trace.fail(problem)
    trace.send()


def tell_too_large(session: Session, rest: bytes) -> None:
    """Trace a message that is refused for its size, as far as its header has arrived."""
    line, _, content = rest.partition(b"\r\n")
    verb, *fields = line.split()
    if verb.upper() != b"HPUB":
        return
    header_bytes = int(fields[-2])
    message: Op = (0, fields[0], b"", header_bytes, int(fields[-1]), content)
    trace, _ = begin(session, message)
    if trace is not None:
        trace.fail(TOO_LARGE)
        trace.send()


def begin(session: Session, message: Op) -> tuple[MessageTrace | None, Op | None]:
    """
    Return the trace that a message asks for, and the message to publish.

    There may be no trace. There may also be no message: a dry run that cannot be traced is
    pointless.
    """
    found = _fields(message[DATA][: message[HEADER_BYTES]])
    if found.get(DEST, [b""])[0] == DISABLED:
        return None, message
    if DEST not in found:
        return _begin_external(session, message, found)
    dest, is_only = found[DEST][0], found.get(ONLY, [b""])[0].lower() in YES
    untraced = None if is_only else message
    if ORIGIN_ACCOUNT in found:
        log.error("! %s sent `%s`: its message is not traced", session, _text(ORIGIN_ACCOUNT))
        return None, untraced and disabled(untraced)
    return _begin(session, message, dest, found, is_only=is_only)


def _begin_external(
    session: Session, message: Op, found: Fields
) -> tuple[MessageTrace | None, Op | None]:
    """Trace a message that belongs to an external trace, if the account wants that."""
    wanted = session.account.config.msg_trace
    parents = chain.from_iterable(
        values for name, values in found.items() if name.lower() == TRACEPARENT
    )
    if wanted is None or not any(map(_is_sampled, parents)):
        return None, message
    if session.account.random() * ALWAYS >= wanted.sampling:
        return None, disabled(message)
    return _begin(session, message, wanted.dest.encode(), found, is_only=False)


def _begin(
    session: Session, message: Op, dest: bytes, found: Fields, *, is_only: bool
) -> tuple[MessageTrace | None, Op | None]:
    if not subjects.is_valid_literal(dest):
        wanted = subjects.quoted(dest)
        log.error("! %s wants a trace sent to %s, which is no subject", session, wanted)
        return None, None if is_only else message
    if session.permissions is not None and not session.permissions.allows(dest):
        session.violation(f"Publish to {subjects.quoted(dest)}")
        return None, None
    return MessageTrace(session, message, dest=dest, found=found, is_only=is_only), message


def disabled(message: Op) -> Op:
    """Return a copy of a message that is no longer traced."""
    return with_dest(message, DISABLED)


def with_dest(message: Op, dest: bytes) -> Op:
    """Return a copy of a message with another trace destination."""
    kind, subject, reply, header_bytes, _, data = message
    without = headers.remove(data[:header_bytes], DEST)
    header = headers.add(without, DEST, dest)
    content = header + data[header_bytes:]
    return (kind, subject, reply, len(header), len(content) - 2, content)


def _fields(header: bytes) -> Fields:
    """Return the headers that have a value, with their names as written."""
    found: Fields = {}
    if header.startswith(FIRST_LINE):
        # The part after the last line break is not a complete line.
        for line in header[len(FIRST_LINE) :].split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            if name and (value := value.strip(b" \t")):
                found.setdefault(name, []).append(value)
    return found


def _is_sampled(parent: bytes) -> bool:
    """Tell whether a `traceparent` is marked as sampled."""
    parts = parent.split(b"-")
    if len(parts) != 4 or len(parts[3]) != 2:
        return False
    try:
        flags = int(parts[3], 16)
    except ValueError:
        return False
    return 0 <= flags <= FLAGS_MAX and flags & 1 == 1


# To the receivers.


def deliver(account: Account, message: Op, publisher: Session, trace: MessageTrace) -> None:
    """Deliver a message to each of its receivers; in a dry run, only note them."""
    routes, subject = account.routes, message[SUBJECT]
    route = routes.cache.get(subject) or routes.find(subject)
    give = partial(_give, account, message, publisher, trace)
    receivers = sorted(routes.receivers(subject), key=_place)
    taken = [give(each) for each in receivers if not each.queue]
    for members in chain(route.queues, route.careful_queues):
        taken.append(any(map(give, _in_turn(members, account.random))))
    if not any(taken):
        account.answer_no_responders([message], publisher)


def _place(subscription: Subscription) -> list[int]:
    """
    Return a key that sorts receivers as nats-server finds them.

    At each token it takes `>` first, then `*`, then the token itself. The last token is an
    exception: there `*` comes last.
    """
    *tokens, last = subscription.subject.split(b".")
    ranks = [WILDCARDS.get(token, LITERAL) for token in tokens]
    return [*ranks, STAR_AT_END if last == b"*" else WILDCARDS.get(last, LITERAL)]


def _in_turn(
    members: tuple[Subscription, ...], random: Callable[[], float]
) -> Iterator[Subscription]:
    start = int(random() * len(members))
    return chain(members[start:], members[:start])


def _give(
    account: Account,
    message: Op,
    publisher: Session,
    trace: MessageTrace,
    subscription: Subscription,
) -> bool:
    """Give a message to one subscription; tell whether it took the message."""
    target, local = subscription, message
    while target.origin is not None and target.stream_import is not None:
        if message is account.asked:
            # A request from another account must not reach a third one.
            return False
        taken_by = target.stream_import
        local, target = target.localized(local), target.origin
        trace.exported(taken_by.importer_name, local[SUBJECT])
        if not taken_by.allow_trace:
            return trace.is_only or bool(account.offer(subscription, message, publisher))
    receiver = target.session
    if receiver is None:
        return _hand(account, local, publisher, trace, target)
    error = _refusal(target, receiver, local, publisher)
    trace.left(subscription, receiver, error)
    if error or trace.is_only:
        return not error
    return bool(account.offer(subscription, message, publisher))


def _refusal(subscription: Subscription, receiver: Session, message: Op, publisher: Session) -> str:
    if receiver is publisher and not receiver.echo:
        return NO_ECHO
    if not receiver.may_receive(message[SUBJECT], subscription.queue, publisher):
        return DENIED
    return EXCEEDED if subscription.is_spent else ""


def _hand(
    account: Account,
    message: Op,
    publisher: Session,
    trace: MessageTrace,
    subscription: Subscription,
) -> bool:
    """Give a message to a server handler. A handler without `traced` gets it in a dry run too."""
    if subscription.traced is not None:
        subscription.traced(message, publisher, trace)
    else:
        account.handle(subscription, [message], publisher)
    return True


def of_system(account: Account, handler: Handler, to: bytes = b"") -> Traced:
    """
    Return the `traced` handler for a service that nats-server has in its system account.

    Every account imports such services, as `to`. A trace ends at them.
    """

    def ask(message: Op, publisher: Session, trace: MessageTrace) -> None:
        system = publisher.broker.system_account
        if account is not system:
            trace.imported(system.name, message[SUBJECT], to or message[SUBJECT])
        if trace.is_only and account is not system:
            account.answer_no_responders([message], publisher)
        else:
            handler([message], publisher)

    return ask


def _encoded(payload: bytes, accepted: bytes) -> tuple[str, bytes]:
    """Return the name of the accepted encoding ("" if none), and the encoded payload."""
    if b"snappy" in accepted or b"s2" in accepted:
        from penstock.core import snappy

        return "snappy", snappy.IDENTIFIER + snappy.frames(payload, snappy.compressor())
    if b"gzip" in accepted:
        import gzip

        return "gzip", gzip.compress(payload)
    return ("identity" if accepted else ""), payload


def _connection(session: Session) -> Json:
    name = session.connect_options.get("name")
    known = {"kind": CLIENT, "cid": session.client_id}
    return known | {"name": name} if name else known


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
