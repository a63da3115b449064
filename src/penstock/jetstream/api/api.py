"""
`$JS.API.>`: from a request to its call, and back to an answer.

A call is a row of a table: the type of its answers, the number of names in its subject, and a
function that takes the request and returns the answer's fields. A JetStreamError it raises becomes
the answer. An answer that promises durability is returned as `Deferred` and leaves with the commit.
A call that may read a lot is a generator: it yields between portions, so that others have their
turn, and returns the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.core.reports.messagetrace import of_system
from penstock.core.runs import new_message, payloads
from penstock.errors import JetStreamError, StoreError, cause
from penstock.hot.wire import CRLF, DATA, HEADER_BYTES, REPLY, SUBJECT, Op
from penstock.jetstream.api import audit, directget, domain
from penstock.jetstream.api.domain import PREFIX
from penstock.jetstream.config.stream import is_api_level_known
from penstock.jetstream.promise import NO_END, Promise
from penstock.protocol import errorcodes, jsontext, strictjson, subjects

if TYPE_CHECKING:
    from penstock.core.reports.messagetrace import MessageTrace
    from penstock.core.session import Session
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

GET = PREFIX + b"DIRECT.GET."
NEXT = PREFIX + b"CONSUMER.MSG.NEXT."
GETS = 8
"""The number of single-key gets to answer before checking the clock again."""
TYPE = "io.nats.jetstream.api.v1.{}_response"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """One API request."""

    api: Api
    engine: JetStreamEngine
    call: Call
    subject: str
    names: tuple[str, ...]
    """The names in the subject: mostly the stream, and the consumer."""
    body: bytes
    header: bytes
    reply: bytes
    publisher: Session | None

    @property
    def is_empty(self) -> bool:
        """Whether the request has an empty body."""
        return self.body.strip() in (b"", b"{}")

    def answer(self, answer: Mapping[str, Any] | Deferred, *, header: bytes = b"") -> None:
        """Answer immediately, or once the answer is true."""
        self.api.answer(self, answer, header=header)

    def refuse(self, error: JetStreamError | None) -> None:
        """Answer with an error."""
        assert error is not None
        self.api.refuse(self, error)

    def stream(self) -> Stream:
        """Return the stream named in the subject."""
        return self.engine.find(self.names[0])

    def decode(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the fields of the body."""
        try:
            return strictjson.decode(self.body, fields, type_name)
        except strictjson.InvalidJson as error:
            raise JetStreamError(errorcodes.INVALID_JSON, err=error) from None

    def decode_loosely(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the known fields of the body, as Go's `json.Unmarshal` reads them."""
        try:
            return strictjson.decode(self.body, fields, type_name, strict=False)
        except strictjson.InvalidJson as error:
            raise JetStreamError(errorcodes.INVALID_JSON, err=error.text) from None

    def decode_options(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the fields of a body that may also be empty, or not JSON at all."""
        if strictjson.is_object_or_array(self.body):
            return self.decode(fields, type_name)
        return {}


@dataclass(frozen=True, slots=True)
class Deferred:
    """An answer that leaves once everything a stream has stored and removed so far is safe."""

    stream: Stream
    document: Mapping[str, Any]
    is_kept: Callable[[], bool]
    """Tells whether the change took effect although the disk has failed."""
    is_undone: Callable[[], bool] = lambda: True
    """Tells then whether nothing took effect: otherwise it cannot be refused either."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer that shows messages of a stream, up to a sequence."""

    document: Mapping[str, Any]
    sequence: int


Answer = Mapping[str, Any] | Deferred | Shown | None
Portions = Generator[None, None, Answer]
"""A call that gives others their turn each time it yields."""


@dataclass(frozen=True, slots=True)
class Call:
    """One row of the API."""

    kind: str
    """The type of its answers: `io.nats.jetstream.api.v1.<kind>_response`."""
    names: int
    """The number of names in its subject; -1 for one or more."""
    run: Callable[[ApiRequest], Answer | Portions]
    """None means no answer yet: the call has arranged for one."""
    on_error: Mapping[str, Any] | None = None
    """Fields that an error answer carries besides the error."""
    is_audited: bool = True
    """Whether an advisory reports each request and its answer."""
    is_view: bool = False
    """Whether its answers show stored messages: only safe ones may be shown."""


class _Reading:
    """A direct get that takes more than one turn."""

    def __init__(
        self,
        stream: Stream,
        publish: Op,
        portions: Generator[None, None, list[Op]],
        again: Callable[[], None],
    ) -> None:
        self.stream = stream
        self.publish = publish
        self.portions = portions
        self.again = again
        self.retreats = stream.store.retreats


class Api:
    """Answers the API requests of one account."""

    def __init__(self, engine: JetStreamEngine, calls: Mapping[tuple[str, ...], Call]) -> None:
        self._engine = engine
        self._calls = calls

    def open(self) -> None:
        """Start listening."""
        engine = self._engine
        name = engine.context.domain
        domain.listen(engine.listen, name, b">", self._on_batch, self._on_traced)
        engine.account.spellings = domain.spellings(name, engine.account.random)

    def _on_traced(self, message: Op, publisher: Session, trace: MessageTrace) -> None:
        if message[SUBJECT].startswith((GET, NEXT)):
            # Streams and consumers answer these themselves, and traces leave them out.
            self._on_batch([message], publisher)
        else:
            of_system(self._engine.account, self._on_batch)(message, publisher, trace)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        found: list[Op] = []
        # A client that reads many keys of a bucket names the same stream each time.
        known, stream, safe_sequence = b"", None, 0
        is_quick = False
        for index, publish in enumerate(batch):
            looks_at_clock = not is_quick or not index % GETS
            if looks_at_clock and publisher is not None and publisher.is_turn_over:
                publisher.do_later(partial(self._on_batch, batch[index:], publisher))
                break
            is_quick = False
            subject, reply = publish[SUBJECT], publish[REPLY]
            if subject.startswith(GET):
                name, _, key = subject[len(GET) :].partition(b".")
                if name != known:
                    known, stream = name, self._readable(subjects.text(name))
                    safe_sequence = stream.safe_sequence if stream is not None else 0
                # The message of a single key is found immediately.
                is_quick = publish[DATA] == CRLF and b"*" not in key and b">" not in key
                message = None
                if stream is None:
                    self._engine.account.answer_no_responders([publish], publisher)
                    continue
                if is_quick and reply and safe_sequence == NO_END:
                    message = stream.store.get(stream.store.last(key)[0])
                if message is not None:
                    found.append(hot.stored_answer(reply, stream.name_bytes, message))
                elif reply:
                    found += self._read(stream, publish, key, publisher)
            elif subject.startswith(NEXT):
                self._next(publish, subject[len(NEXT) :], publisher)
            elif subject.startswith(PREFIX):
                known = b""
                tokens = subjects.text(subject[len(PREFIX) :]).split(".")
                self._on_request(publish, tokens, publisher)
        if found:
            self._engine.account.answer(found)

    def _read(
        self, stream: Stream, publish: Op, subject: bytes, publisher: Session | None
    ) -> list[Op]:
        """Return the answers to a direct get that may leave immediately; the others come later."""
        again = partial(self._read_again, stream, publish, subject, publisher)
        if stream.is_deciding:
            stream.wait(again)
            return []
        try:
            quick = directget.quick_answer(stream, publish, subject)
        except StoreError as error:
            return self._unread(publish, error)
        if quick is not None and (quick[1] <= stream.safe_sequence or not stream.is_in_doubt):
            return self._shown(stream, [quick[0]], quick[1], again)
        if stream.is_in_doubt:
            return directget.failure(publish)
        reading = directget.answers(stream, publish, subject)
        return self._read_on(_Reading(stream, publish, reading, again), publisher)

    def _read_on(self, reading: _Reading, publisher: Session | None) -> list[Op]:
        """Read within the publisher's turn, and continue in its next turns."""
        stream = reading.stream
        try:
            while not stream.is_closed:
                next(reading.portions)
                if publisher is not None and publisher.is_turn_over:
                    publisher.do_later(lambda: self._send(self._read_on(reading, publisher)))
                    return []
        except StoreError as error:
            return self._unread(reading.publish, error)
        except StopIteration as end:
            if stream.is_in_doubt or stream.store.retreats != reading.retreats:
                # What was read may never have been there. Only now is it known how safe it is.
                reading.again()
                return []
            return self._shown(stream, end.value, NO_END, reading.again)
        return []

    def _unread(self, publish: Op, error: StoreError) -> list[Op]:
        log.error("A request to %s failed: %s", publish[SUBJECT].decode(), cause(error))
        return directget.failure(publish)

    def _shown(
        self, stream: Stream, found: list[Op], sequence: int, again: Callable[[], None]
    ) -> list[Op]:
        """Return answers that show messages up to a sequence, unless they have to wait for it."""
        if sequence <= stream.safe_sequence:
            return found
        stream.answers.show(found, lambda error: again())
        return []

    def _read_again(
        self, stream: Stream, publish: Op, subject: bytes, publisher: Session | None
    ) -> None:
        if not stream.is_closed:
            self._send(self._read(stream, publish, subject, publisher))

    def _send(self, answers: list[Op]) -> None:
        if answers:
            self._engine.account.answer(answers)

    def _readable(self, name: str) -> Stream | None:
        """Return the stream that answers direct gets for a name: itself, or a mirror of it."""
        stream = self._engine.streams.get(name)
        if stream is not None and stream.config.allow_direct:
            return stream
        for each in self._engine.streams.values():
            if each.config.mirror_direct and (each.config.mirror or {}).get("name") == name:
                return each
        return None

    def _next(self, publish: Op, name: bytes, publisher: Session | None) -> None:
        stream, _, consumer_name = subjects.text(name).partition(".")
        consumer = self._engine.consumer(stream, consumer_name)
        if consumer is None:
            self._engine.account.answer_no_responders([publish], publisher)
        else:
            consumer.on_next(publish, publisher)

    def _on_request(self, publish: Op, tokens: list[str], publisher: Session | None) -> None:
        """Find the call for a subject. An unknown call gets no answer, as in nats-server."""
        for length in (3, 2, 1):
            call = self._calls.get(tuple(tokens[:length]))
            names = tokens[length:]
            if call is not None and (call.names == len(names) or (call.names < 0 and names)):
                self._run_all(call, publish, tokens, tuple(names), publisher)
                return

    def _run_all(
        self,
        call: Call,
        publish: Op,
        tokens: list[str],
        names: tuple[str, ...],
        publisher: Session | None,
    ) -> None:
        header_bytes = publish[HEADER_BYTES]
        requests = payloads(publish)
        for index, payload in enumerate(requests):
            if index and publisher is not None and publisher.is_turn_over:
                rest = (*publish[:DATA], b"".join(requests[index:]))
                publisher.do_later(partial(self._run_all, call, rest, tokens, names, publisher))
                return
            request = ApiRequest(
                api=self,
                engine=self._engine,
                call=call,
                # Without the domain: that is how advisories name it.
                subject=subjects.shown(PREFIX.decode() + ".".join(tokens)),
                names=names,
                body=payload[header_bytes:-2],
                header=payload[:header_bytes],
                reply=publish[REPLY],
                publisher=publisher,
            )
            self._run(request)

    def _run(self, request: ApiRequest) -> None:
        creation = self._engine.creating.get(request.names[0]) if request.names else None
        if creation is not None:
            creation.wait(lambda: self._run(request))
            return
        stream = self._engine.streams.get(request.names[0]) if request.names else None
        if stream is not None and stream.is_deciding:
            stream.wait(lambda: self._run(request))
            return
        self._engine.context.api_requests += 1
        self._go_on(request, stream, _portions(request, stream))

    def _go_on(self, request: ApiRequest, stream: Stream | None, portions: Portions) -> None:
        """Work within the publisher's turn, and continue in its next turns."""
        call, publisher = request.call, request.publisher
        try:
            while True:
                next(portions)
                if publisher is not None and publisher.is_turn_over:
                    publisher.do_later(partial(self._go_on, request, stream, portions))
                    return
        except StopIteration as end:
            answer: Answer = end.value
        except JetStreamError as error:
            answer = self._refusal(call, error)
        except (ValueError, RecursionError, OverflowError) as error:
            # A request that breaks no known rule may still make no sense.
            log.warning("A request to %s makes no sense: %s", request.subject, cause(error))
            answer = self._refusal(call, JetStreamError(errorcodes.BAD_REQUEST))
        except StoreError as error:
            log.error("A request to %s failed: %s", request.subject, cause(error))
            refused = JetStreamError(errorcodes.STREAM_STORE_FAILED, err=str(error))
            answer = self._refusal(call, refused)
        except Exception as error:
            log.error("A request to %s failed: %s", request.subject, cause(error))
            refused = JetStreamError(errorcodes.STREAM_GENERAL, err="the request failed")
            answer = self._refusal(call, refused)
        if answer is None:
            return
        sequence = NO_END
        if isinstance(answer, Shown):
            sequence, answer = answer.sequence, answer.document
        is_shown = call.is_view and stream is not None and not stream.is_closed
        if stream is None or not is_shown or isinstance(answer, Deferred):
            self.answer(request, answer)
        else:
            self._show(request, stream, answer, sequence)

    def _show(
        self, request: ApiRequest, stream: Stream, document: Mapping[str, Any], sequence: int
    ) -> None:
        """Answer with messages of a stream up to a sequence, once those are safe."""
        if sequence <= stream.safe_sequence:
            self.answer(request, document)
        elif stream.is_in_doubt:
            self.refuse(request, _in_doubt(stream))
        else:
            messages = self._messages(request, document)
            stream.answers.show(messages, lambda error: self._run(request))

    def refuse(self, request: ApiRequest, error: JetStreamError) -> None:
        """Answer with an error."""
        self.answer(request, self._refusal(request.call, error))

    def _refuse_undone(self, request: ApiRequest, answer: Deferred, error: JetStreamError) -> None:
        if answer.is_undone():
            self.refuse(request, error)

    def _refusal(self, call: Call, error: JetStreamError) -> Mapping[str, Any]:
        self._engine.context.api_errors += 1
        return {"error": error.document} | dict(call.on_error or {})

    def answer(
        self, request: ApiRequest, answer: Mapping[str, Any] | Deferred, *, header: bytes = b""
    ) -> None:
        """Send an answer, immediately or once it is true, and publish the audit advisory."""
        fields = answer.document if isinstance(answer, Deferred) else answer
        messages = self._messages(request, fields, header=header)
        if not messages:
            return
        if isinstance(answer, Deferred):
            refuse = partial(self._refuse_undone, request, answer)
            answer.stream.answers.owe(Promise(messages, answer.is_kept, refuse))
            self._engine.context.touch(answer.stream)
        else:
            self._engine.account.respond(messages, None)

    def _messages(
        self, request: ApiRequest, fields: Mapping[str, Any], *, header: bytes = b""
    ) -> list[Op]:
        """Return the answer as messages, with the audit advisory."""
        document = encode_answer(request.call.kind, fields)
        reply = request.reply
        messages = [new_message(reply, document, header=header)] if reply else []
        if request.call.is_audited:
            messages += audit.messages(
                self._engine.context, request.publisher, request.subject, request.body, document
            )
        return messages


def _portions(request: ApiRequest, stream: Stream | None) -> Portions:
    if stream is not None and stream.is_in_doubt and not request.call.is_view:
        raise _in_doubt(stream)
    if not is_api_level_known(request.header):
        raise JetStreamError(errorcodes.REQUIRED_API_LEVEL)
    answer = request.call.run(request)
    if isinstance(answer, Generator):
        answer = yield from answer
    return answer


def _in_doubt(stream: Stream) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_STORE_FAILED, err=stream.store.failure)


def encode_answer(kind: str, document: Mapping[str, Any]) -> bytes:
    """Return the JSON that answers a request."""
    typed = {"type": TYPE.format(kind)} | dict(document)
    return jsontext.encode(typed).encode(errors="replace")
