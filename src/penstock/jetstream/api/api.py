"""
`$JS.API.>`: from a request to the call it asks for, and back to an answer.

A call is a row of a table: what its answers are called, how many names follow
in the subject, and a function that takes the request and returns the answer's
fields. It raises JetStreamError, which becomes the answer too. An answer that
promises durability is returned as `Deferred` and leaves with the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.account import new_message, payloads
from penstock.errors import JetStreamError, cause
from penstock.hot.wire import Op
from penstock.jetstream.api import directget
from penstock.jetstream.config.stream import is_api_level_known
from penstock.protocol import errorcodes, jsontext, strictjson

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.engine import Engine
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

PREFIX = b"$JS.API."
DIRECT_GET = b"DIRECT.GET."
MESSAGE_NEXT = b"CONSUMER.MSG.NEXT."
TYPE = "io.nats.jetstream.api.v1.{}_response"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One API request."""

    engine: Engine
    call: Call
    subject: str
    names: tuple[str, ...]
    """What follows in the subject: mostly the stream, and the consumer."""
    body: bytes
    header: bytes
    reply: bytes
    publisher: Session | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for in particular."""
        return self.body.strip() in (b"", b"{}")

    def answer(self, answer: Mapping[str, Any] | Deferred, *, header: bytes = b"") -> None:
        """Answer, at once or when it is true."""
        self.engine.api.answer(self, answer, header=header)

    def refuse(self, error: JetStreamError | None) -> None:
        """Answer that it could not be done."""
        assert error is not None
        self.engine.api.refuse(self, error)

    def stream(self) -> Stream:
        """Return the stream that the subject names."""
        return self.engine.find(self.names[0])

    def decode(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the fields of the body."""
        try:
            return strictjson.decode(self.body, fields, type_name)
        except strictjson.InvalidJson as error:
            raise JetStreamError(errorcodes.INVALID_JSON, err=error) from None

    def decode_loosely(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the fields of the body that are known, as Go's `json.Unmarshal` reads them."""
        try:
            return strictjson.decode(self.body, fields, type_name, strict=False)
        except strictjson.InvalidJson as error:
            raise JetStreamError(errorcodes.INVALID_JSON, err=error.text) from None

    def decode_options(self, fields: strictjson.Fields, type_name: str) -> dict[str, Any]:
        """Return the fields of a body that may as well be empty, or anything that is no JSON."""
        if strictjson.is_object_or_array(self.body):
            return self.decode(fields, type_name)
        return {}


@dataclass(frozen=True, slots=True)
class Deferred:
    """An answer that leaves once what a stream has stored and removed so far is safe."""

    stream: Stream
    document: Mapping[str, Any]


Answer = Mapping[str, Any] | Deferred | None


@dataclass(frozen=True, slots=True)
class Call:
    """One row of the API."""

    kind: str
    """What its answers are called: `io.nats.jetstream.api.v1.<kind>_response`."""
    names: int
    """How many names follow in the subject; -1 for one or more."""
    run: Callable[[Request], Answer]
    """None is no answer, for now: the call has arranged for one."""
    on_error: Mapping[str, Any] | None = None
    """Fields that an error has beside itself."""
    is_audited: bool = True
    """Whether an advisory tells of each request and its answer."""


class Api:
    """Answers the API requests of one account."""

    def __init__(self, engine: Engine, calls: Mapping[tuple[str, ...], Call]) -> None:
        self._engine = engine
        self._calls = calls
        self.total = 0
        self.errors = 0

    def open(self) -> None:
        """Start to listen."""
        account, domain = self._engine.account, self._engine.domain
        account.listen(PREFIX + b">", lambda batch, who: self._on_batch(batch, who, PREFIX))
        if domain:
            prefix = f"$JS.{domain}.API.".encode()
            account.listen(prefix + b">", lambda batch, who: self._on_batch(batch, who, prefix))

    def _on_batch(self, batch: list[Op], publisher: Session | None, prefix: bytes) -> None:
        found: list[Op] = []
        # A client that reads many keys of a bucket asks for the same stream each time.
        readable: dict[bytes, Stream | None] = {}
        for index, publish in enumerate(batch):
            if publisher is not None and publisher.is_turn_over:
                publisher.do_later(partial(self._on_batch, batch[index:], publisher, prefix))
                break
            if not publish[1].startswith(prefix):
                continue
            name = publish[1][len(prefix) :]
            if name.startswith(DIRECT_GET):
                stream_name, _, subject = name[len(DIRECT_GET) :].partition(b".")
                if stream_name not in readable:
                    readable[stream_name] = self._readable(stream_name.decode(errors="replace"))
                stream = readable[stream_name]
                if stream is None:
                    self._engine.account.answer_no_responders([publish], publisher)
                elif publish[2]:
                    found += directget.answers(stream, publish, subject)
            elif name.startswith(MESSAGE_NEXT):
                self._next(publish, name[len(MESSAGE_NEXT) :], publisher)
            else:
                readable.clear()
                self._on_request(publish, name.decode(errors="replace").split("."), publisher)
        if found:
            self._engine.account.answer(found)

    def _readable(self, name: str) -> Stream | None:
        """Return the stream that answers direct gets of a name: itself, or a mirror of it."""
        stream = self._engine.streams.get(name)
        if stream is not None and stream.config.allow_direct:
            return stream
        for each in self._engine.streams.values():
            if each.config.mirror_direct and (each.config.mirror or {}).get("name") == name:
                return each
        return None

    def _next(self, publish: Op, name: bytes, publisher: Session | None) -> None:
        stream, _, consumer_name = name.decode(errors="replace").partition(".")
        consumer = self._engine.consumer(stream, consumer_name)
        if consumer is None:
            self._engine.account.answer_no_responders([publish], publisher)
        else:
            consumer.on_next(publish, publisher)

    def _on_request(self, publish: Op, tokens: list[str], publisher: Session | None) -> None:
        """Find the call that a subject stands for; nats-server says nothing if there is none."""
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
        header_bytes = publish[3]
        requests = payloads(publish)
        for index, payload in enumerate(requests):
            if index and publisher is not None and publisher.is_turn_over:
                rest = (*publish[:5], b"".join(requests[index:]))
                publisher.do_later(partial(self._run_all, call, rest, tokens, names, publisher))
                return
            request = Request(
                engine=self._engine,
                call=call,
                # As without a domain: that is how it is told to others.
                subject=PREFIX.decode() + ".".join(tokens),
                names=names,
                body=payload[header_bytes:-2],
                header=payload[:header_bytes],
                reply=publish[2],
                publisher=publisher,
            )
            self._run(request)

    def _run(self, request: Request) -> None:
        creation = self._engine.creating.get(request.names[0]) if request.names else None
        if creation is not None:
            creation.wait(lambda: self._run(request))
            return
        call = request.call
        self.total += 1
        try:
            if not is_api_level_known(request.header):
                raise JetStreamError(errorcodes.REQUIRED_API_LEVEL)
            answer = call.run(request)
        except JetStreamError as error:
            answer = self._refusal(call, error)
        except (ValueError, RecursionError, OverflowError) as error:
            # What no rule was made for is still a request that makes no sense.
            log.warning("A request to %s makes no sense: %s", request.subject, cause(error))
            answer = self._refusal(call, JetStreamError(errorcodes.BAD_REQUEST))
        except Exception as error:
            log.error("A request to %s failed: %s", request.subject, cause(error))
            refused = JetStreamError(errorcodes.STREAM_GENERAL, err="the request failed")
            answer = self._refusal(call, refused)
        if answer is not None:
            self.answer(request, answer)

    def refuse(self, request: Request, error: JetStreamError) -> None:
        """Answer with an error."""
        self.answer(request, self._refusal(request.call, error))

    def _refusal(self, call: Call, error: JetStreamError) -> Mapping[str, Any]:
        self.errors += 1
        return {"error": error.document} | dict(call.on_error or {})

    def answer(
        self, request: Request, answer: Mapping[str, Any] | Deferred, *, header: bytes = b""
    ) -> None:
        """Send an answer, at once or when it is true, and tell whoever audits the calls."""
        fields = answer.document if isinstance(answer, Deferred) else answer
        document = encode_answer(request.call.kind, fields)
        reply = request.reply
        messages = [new_message(reply, document, header=header)] if reply else []
        if request.call.is_audited:
            messages += self._engine.advisories.api_audit(request, document)
        if not messages:
            return
        if isinstance(answer, Deferred):
            answer.stream.owe(messages)
            self._engine.touch(answer.stream)
        else:
            self._engine.account.respond(messages, None)


def encode_answer(kind: str, document: Mapping[str, Any]) -> bytes:
    """Return the JSON that answers a request."""
    typed = {"type": TYPE.format(kind)} | dict(document)
    return jsontext.encode(typed).encode(errors="replace")
