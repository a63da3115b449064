"""
Messages as a subscription delivers them.

A message wraps the parsed operation as it came off the wire. Subject, headers and metadata
are decoded on access, because most are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from penstock.errors import ClientError, NoResponders
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block
from penstock.protocol import wellknown

Headers: TypeAlias = Mapping[str, str | list[str]] | Iterable[tuple[str, str]]

ACK, NAK, IN_PROGRESS, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"
ACK_SUBJECT = wellknown.ACK.encode()
NO_RESPONDERS = b"NATS/1.0 503"
NUMBER_DIGITS_MAX = 20
"""The number of digits of 2^64."""


class Sender(Protocol):
    """A client, as far as a message needs it for its answers."""

    async def send(
        self, subject: bytes, payload: bytes, *, reply: bytes = b"", block: bytes = b""
    ) -> None:
        """Publish to a subject known to be valid; wait for room if necessary."""

    def send_nowait(self, subject: bytes, payload: bytes, reply: bytes, block: bytes) -> bool:
        """Publish with this turn of the loop. True: the caller should make room now."""

    async def request_at(
        self, subject: bytes, payload: bytes, *, block: bytes = b"", timeout_s: float | None = None
    ) -> Message:
        """Publish, and return the first reply."""


class Metadata(NamedTuple):
    """JetStream's metadata of a delivered message, read from its reply subject."""

    stream: str
    consumer: str
    deliveries: int
    stream_sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    domain: str = ""


class Message:
    """One delivered message."""

    __slots__ = ("_client", "operation")

    def __init__(self, client: Sender, operation: Op) -> None:
        self._client = client
        self.operation = operation
        """`(MSG, subject, sid, reply, header_bytes, header block + payload)`"""

    @property
    def subject(self) -> str:
        """The subject it was published to."""
        return self.operation[1].decode(errors="replace")  # type: ignore[no-any-return]

    @property
    def reply(self) -> str:
        """The subject for an answer; empty if no answer is expected."""
        return self.operation[3].decode(errors="replace")  # type: ignore[no-any-return]

    @property
    def payload(self) -> bytes:
        """The payload, without headers."""
        operation = self.operation
        header_bytes = operation[4]
        return operation[5][header_bytes:] if header_bytes else operation[5]  # type: ignore[no-any-return]

    @property
    def header_pairs(self) -> list[tuple[str, str]]:
        """Every header in order, including repeated ones."""
        operation = self.operation
        return header_block.decode(operation[5][: operation[4]]) if operation[4] else []

    @property
    def headers(self) -> dict[str, str]:
        """Headers by name; for a repeated header, the first value."""
        return dict(reversed(self.header_pairs))

    def header(self, name: str) -> str | None:
        """Return one header without decoding the others."""
        operation = self.operation
        value = header_block.get(operation[5][: operation[4]], name.encode())
        return None if value is None else value.decode(errors="replace")

    @property
    def status(self) -> tuple[int, str]:
        """Status code and description of a control message; `(0, "")` for any other."""
        return status_of(self.operation)

    @property
    def metadata(self) -> Metadata:
        """Stream, sequences, time and delivery count of a JetStream message."""
        return parse_metadata(self.operation[3])

    async def respond(self, payload: bytes = b"", *, headers: Headers | None = None) -> None:
        """Publish an answer to the reply subject."""
        block = encode_headers(headers) if headers is not None else b""
        await self._client.send(self._reply_subject(), payload, block=block)

    def respond_nowait(self, payload: bytes = b"") -> None:
        """Answer from a plain function."""
        self._client.send_nowait(self._reply_subject(), payload, b"", b"")

    def ack_nowait(self) -> None:
        """Ack from a plain function."""
        self._client.send_nowait(self._reply_subject(), ACK, b"", b"")

    async def ack(self) -> None:
        """Tell JetStream that the message is handled."""
        await self._client.send(self._reply_subject(), ACK)

    async def ack_sync(self, *, timeout_s: float | None = None) -> None:
        """Ack, and wait until the server has recorded it."""
        await self._client.request_at(self._reply_subject(), ACK, timeout_s=timeout_s)

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """Ask for redelivery, immediately or after `delay_s`."""
        body = b'-NAK {"delay": %d}' % round(delay_s * 1e9) if delay_s else NAK
        await self._client.send(self._reply_subject(), body)

    async def term(self, reason: str = "") -> None:
        """Tell JetStream never to redeliver the message."""
        body = TERM + b" " + reason.encode() if reason else TERM
        await self._client.send(self._reply_subject(), body)

    async def in_progress(self) -> None:
        """Restart the ack wait of a message that takes longer to handle."""
        await self._client.send(self._reply_subject(), IN_PROGRESS)

    def _reply_subject(self) -> bytes:
        reply: bytes = self.operation[3]
        if not reply:
            raise ClientError(f"message on `{self.subject}` has no reply subject to answer to")
        return reply

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {len(self.payload)} bytes, reply={self.reply!r})"


def status_of(operation: Op) -> tuple[int, str]:
    """Return the status of an operation without payload, otherwise `(0, "")`."""
    header_bytes = operation[4]
    if not header_bytes or len(operation[5]) != header_bytes:
        return 0, ""
    return header_block.status(operation[5])


def check_responders(operation: Op, subject: bytes) -> None:
    """Raise if the server says that nobody listens on the subject."""
    if operation[4] and operation[5].startswith(NO_RESPONDERS) and status_of(operation)[0] == 503:
        raise NoResponders(f"nobody listens on `{subject.decode()}`")


def parse_metadata(reply: bytes) -> Metadata:
    """Parse an ack subject in its form with 9 tokens, or with 11 and more."""
    text = reply.decode(errors="replace")
    tokens = text.split(".")
    if not reply.startswith(ACK_SUBJECT) or len(tokens) < 9 or len(tokens) == 10:
        raise ClientError(f"not a JetStream message: its reply subject is `{text}`")
    domain = ""
    if len(tokens) > 9:
        domain = "" if tokens[2] == "_" else tokens[2]
        tokens[2:4] = []
    deliveries, stream_sequence, consumer_sequence, timestamp_ns, pending = map(
        read_number, tokens[4:9]
    )
    return Metadata(
        tokens[2],
        tokens[3],
        deliveries,
        stream_sequence,
        consumer_sequence,
        timestamp_ns,
        pending,
        domain,
    )


def read_number(text: str) -> int:
    """Parse a sequence, a time or a count from a server: digits only, and a bounded number."""
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise ClientError(f"the server sent an invalid number: {text[:40]!r}")
    return int(text)


def encode_headers(headers: Headers) -> bytes:
    """Return the header block; refuse characters that would break out of their line."""
    pairs = list(header_pairs(headers))
    for name, value in pairs:
        if not name or ":" in name or name != name.strip() or _breaks(name) or _breaks(value):
            raise ClientError(f"header {name!r}: {value!r} cannot be sent")
    return header_block.encode(pairs)


def header_pairs(headers: Headers) -> Iterable[tuple[str, str]]:
    """Iterate over headers given in any accepted form."""
    if not isinstance(headers, Mapping):
        yield from headers
        return
    for name, value in headers.items():
        if isinstance(value, str):
            yield name, value
        else:
            for one in value:
                yield name, one


def _breaks(text: str) -> bool:
    return "\r" in text or "\n" in text
