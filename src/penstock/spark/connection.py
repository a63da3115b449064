"""
A blocking connection to a NATS server: what a Spark task needs, and no more.

A task reads or writes in bulk, in a process of its own where nothing else has to
go on meanwhile. So there is no event loop here: one socket, one buffer that the
kernel fills in place, and the parsers run over that buffer.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any

from penstock import hot
from penstock.client.connection.handshake import connect_fields, is_refusal
from penstock.client.connection.info import read_info
from penstock.client.connection.servers import Server, parse_url, split_urls
from penstock.client.inbox import unique_token
from penstock.client.jetstream.api import decode, encode
from penstock.client.messages import status_of
from penstock.client.options import ClientOptions
from penstock.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    JetStreamError,
    NoResponders,
    PenstockError,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    ServerError,
)
from penstock.hot.wire import ERR, FAIL, INFO, MSG, PING, PONG, Op
from penstock.spark.options import ConnectionOptions

BUFFER_BYTES = 1 << 20
PAYLOAD_BYTES_MAX = ClientOptions.message_bytes_max
"""The largest `max_payload` a server may announce: what the client accepts."""
CONTROL_LINE_BYTES_MAX = 1 << 20
SILENCE_S = 0.02
HARMLESS = ("permissions violation", "invalid")
"""Errors after which a server keeps the connection open."""


class Inbound:
    """Received bytes that are not parsed yet: `view[start:end]`."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self.start = 0
        self.end = 0

    @property
    def unread(self) -> memoryview:
        """The bytes that wait to be parsed."""
        return self._view[self.start : self.end]

    @property
    def size(self) -> int:
        """How many bytes wait to be parsed."""
        return self.end - self.start

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes in one piece."""
        if size <= len(self._view) - self.start:
            return
        unread = bytes(self.unread)
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        self._view[: len(unread)] = unread
        self.start, self.end = 0, len(unread)

    def fill(self, sock: socket.socket) -> int:
        """Receive once behind what is there, in a larger buffer if it has to be."""
        if self.end == len(self._view):
            self.reserve(max(2 * self.size, BUFFER_BYTES))
        received = sock.recv_into(self._view[self.end :])
        self.end += received
        return received

    def take(self) -> Op | None:
        """Return the next operation, if all of it is here."""
        unread = self.unread
        # Only this one: behind it may lie thousands of deliveries that are not for this parser.
        end = _operation_end(unread)
        operations, consumed, _ = hot.parse_messages(
            unread[:end], PAYLOAD_BYTES_MAX, CONTROL_LINE_BYTES_MAX
        )
        self.start += consumed
        return operations[0] if operations else None

    def take_all(self) -> list[Op]:
        """Return every operation that is here."""
        operations, consumed, _ = hot.parse_messages(
            self.unread, PAYLOAD_BYTES_MAX, CONTROL_LINE_BYTES_MAX
        )
        self.start += consumed
        return operations


def _operation_end(unread: memoryview) -> int:
    """Return where the first operation ends, or all there is where that is not known."""
    head = bytes(unread[:4096])
    line_end = head.find(b"\n") + 1
    if not line_end:
        return len(unread)
    if not head[:4].upper().startswith((b"MSG", b"HMSG")):
        return line_end
    size = head[:line_end].split()[-1]
    return line_end + int(size) + 2 if size.isdigit() else line_end


class Connection:
    """One connection, open inside a `with` block. Every wait has a bound."""

    def __init__(self, options: ConnectionOptions, name: str) -> None:
        self.options = options
        self.info: dict[str, Any] = {}
        self.inbox = f"{options.inbox_prefix}.{unique_token()}"
        """Where answers come to, each under a token of its own."""
        self.name = name
        self._sid = 1
        self._requests = 0
        self._sock: socket.socket | None = None

    def __enter__(self) -> Connection:
        servers = [parse_url(url) for url in split_urls(self.options.servers)]
        random.shuffle(servers)
        failures = []
        for server in servers:
            try:
                self._open(server)
                return self
            except (OSError, PenstockError) as error:
                self.close()
                failures.append(f"{server.address}: {error}")
                if isinstance(error, PermissionDenied):
                    raise PermissionDenied(f"{failures[-1]}; hint: {self._who()}") from error
                if isinstance(error, ssl.SSLCertVerificationError):
                    # No other attempt will be trusted more.
                    raise ClientError(f"{failures[-1]}; hint: `tlsCa`, `tlsHostname`") from error
        raise ConnectFailed("; ".join(failures))

    def _who(self) -> str:
        if self.options.identity:
            return f"that is the server's answer to {self.options.identity}"
        return "none of `user`, `token`, `nkeySeedSecret` and `credentials` is given"

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed."""
        return self._sock is not None

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def renew(self) -> None:
        """Begin anew on a connection that was used: nothing that was asked before will come."""
        self.send(b"UNSUB %d\r\n" % self._sid)
        self._sid += 1
        self.inbox = f"{self.options.inbox_prefix}.{unique_token()}"
        self._listen(monotonic() + self.options.timeout_seconds)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._sock is not None
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise RequestTimeout("the server takes no more data") from None
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}") from error

    def receive(self) -> None:
        """Wait until more has arrived."""
        assert self._sock is not None
        try:
            received = self.inbound.fill(self._sock)
        except TimeoutError:
            seconds = self.options.timeout_seconds
            raise RequestTimeout(f"the server was silent for {seconds:g} s") from None
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}") from error
        if not received:
            raise ConnectionLost("the server closed the connection")

    def receive_up_to(self, size: int) -> None:
        """Wait until `size` bytes are unread, or the server is silent for a moment."""
        self.inbound.reserve(size)
        assert self._sock is not None
        self._sock.settimeout(SILENCE_S)
        try:
            while self.inbound.size < size:
                self.receive()
        except RequestTimeout:
            pass  # what is there may be all that comes for now
        finally:
            self._sock.settimeout(self.options.timeout_seconds)

    def next_operation(self, deadline_s: float = inf) -> Op:
        """Return the next operation that is not about the connection itself."""
        while True:
            if monotonic() > deadline_s:
                # A server that says something all the time is never silent.
                raise RequestTimeout(f"no answer within {self.options.timeout_seconds:g} s")
            operation = self.inbound.take()
            if operation is None:
                self.receive()
            elif operation[0] in (MSG, PONG):
                return operation
            else:
                self.attend(operation)

    def attend(self, operation: Op) -> None:
        """Do what keeps a connection up; raise what the server complains of."""
        if operation[0] == PING:
            self.send(b"PONG\r\n")
        elif operation[0] == INFO:
            self.info = read_info(operation[1])
        elif operation[0] == ERR:
            raise _complaint(operation[1].decode(errors="replace"))
        elif operation[0] == FAIL:
            raise ProtocolError("the server does not speak NATS")

    def call(self, operation: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of a JetStream API call."""
        subject = f"{self.options.api_prefix}.{operation}"
        return self._decode(operation, self.request(subject, encode(request) if request else b""))

    def call_all(
        self, requests: Sequence[tuple[str, dict[str, Any] | None]]
    ) -> list[dict[str, Any] | JetStreamError]:
        """Return the answers of several calls, which are under way together."""
        replies = {self.new_reply(): index for index in range(len(requests))}
        for reply, (operation, request) in zip(replies, requests, strict=True):
            subject = f"{self.options.api_prefix}.{operation}"
            self.publish(subject, encode(request) if request else b"", reply)
        answers: list[Any] = [None] * len(requests)
        deadline_s = monotonic() + self.options.timeout_seconds
        denied: ServerError | None = None
        while replies:
            try:
                answer = self.next_operation(deadline_s)
            except ServerError as error:
                # Each that is refused is waited for, so that none meets who asks next.
                denied = error
                replies.pop(_denied(error, replies, requests))
                continue
            if answer[0] == MSG and answer[1] in replies:
                index = replies.pop(answer[1])
                answers[index] = self._read_answer(requests[index][0], answer)
        if denied is not None:
            raise denied
        return answers

    def _read_answer(self, operation: str, answer: Op) -> dict[str, Any] | JetStreamError:
        try:
            return self._decode(operation, answer)
        except JetStreamError as error:
            return error

    def _decode(self, operation: str, answer: Op) -> dict[str, Any]:
        if status_of(answer)[0] == 503:
            subject = f"{self.options.api_prefix}.{operation}"
            raise NoResponders(f"nobody answers `{subject}`; hint: is JetStream enabled?")
        return decode(answer[5][answer[4] :])

    def request(self, subject: str, payload: bytes) -> Op:
        """Publish, and return the answer; whatever else arrives meanwhile is dropped."""
        reply = self.new_reply()
        self.publish(subject, payload, reply)
        deadline_s = monotonic() + self.options.timeout_seconds
        while True:
            operation = self.next_operation(deadline_s)
            if operation[0] == MSG and operation[1] == reply:
                return operation

    def new_reply(self) -> bytes:
        """Return a subject for answers that no other request has."""
        self._requests += 1
        return f"{self.inbox}.{self._requests}".encode()

    def publish(self, subject: str, payload: bytes, reply: bytes) -> None:
        """Publish with a reply subject."""
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(payload), payload))

    def _open(self, server: Server) -> None:
        timeout_s = self.options.timeout_seconds
        self._sock = socket.create_connection((server.host, server.port), timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Of a connection that broke, there may be something left.
        self.inbound = Inbound()
        self.info = {}
        deadline_s = monotonic() + timeout_s
        if self.options.tls_handshake_first:
            self._secure(server)
        self._expect_info()
        wants_tls = server.tls or self.options.tls_ca is not None
        if self.info.get("tls_required") or wants_tls:
            self._secure(server)
        client = self.options.client()
        fields = connect_fields(self.info, server, client) | {"name": self.name}
        self.send(b"CONNECT %b\r\n" % json.dumps(fields).encode())
        self._listen(deadline_s)

    def _listen(self, deadline_s: float) -> None:
        """Subscribe to the inbox; drop what comes before the server has done so."""
        self.send(b"SUB %b.* %d\r\nPING\r\n" % (self.inbox.encode(), self._sid))
        while self.next_operation(deadline_s)[0] != PONG:
            pass

    def _expect_info(self) -> None:
        while (operation := self.inbound.take()) is None:
            self.receive()
        if operation[0] != INFO:
            raise ProtocolError("the server did not start with INFO")
        self.attend(operation)

    def _secure(self, server: Server) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            return
        offered = self.info.get("tls_required") or self.info.get("tls_available")
        if self.info and not offered:
            raise ConnectFailed("TLS is asked for, but the server does not offer it")
        if self.inbound.size:
            # Taken over, it would count as if it had come through TLS.
            raise ProtocolError("there was more than INFO before TLS: somebody meddles with it")
        assert self._sock is not None
        hostname = self.options.tls_hostname or server.host
        self._sock = self.options.tls().wrap_socket(self._sock, server_hostname=hostname)


def _complaint(text: str) -> PenstockError:
    if is_refusal(text):
        return PermissionDenied(text)
    if text.lower().startswith(HARMLESS):
        return ServerError(text)
    # Whoever waits for Spark answers no pings meanwhile, and may not take what comes.
    return ConnectionLost(f"the server closed the connection: {text}")


def _denied(
    error: ServerError,
    replies: Mapping[bytes, int],
    requests: Sequence[tuple[str, dict[str, Any] | None]],
) -> bytes:
    """Return which of the calls that are under way was refused; raise if it was none of them."""
    for reply, index in replies.items():
        if f'.{requests[index][0]}"' in str(error):
            return reply
    raise error
