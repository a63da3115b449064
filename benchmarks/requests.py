"""One raw client that keeps many requests to JetStream in flight, and the requests it makes."""

import json
import socket
from collections.abc import Sequence
from typing import Self

from benchmarks.loads import LoadFailed
from penstock.net.process import HOST

WINDOW = 500
"""The number of requests in flight."""
READ_BYTES = 1 << 20
WAIT_S = 60


def create_stream(number: int) -> bytes:
    """Return the request for a stream in files."""
    config = {"name": f"S{number}", "subjects": [f"s.{number}.>"], "storage": "file"}
    return request(f"STREAM.CREATE.S{number}", config)


def create_consumer(stream: int, number: int) -> bytes:
    """Return the request for a durable consumer."""
    config = {"durable_name": f"C{number}", "name": f"C{number}", "ack_policy": "explicit"}
    document = {"stream_name": f"S{stream}", "config": config, "action": "create"}
    return request(f"CONSUMER.CREATE.S{stream}.C{number}", document)


def request(call: str, document: object) -> bytes:
    """Return a request to the API."""
    body = json.dumps(document).encode()
    return b"PUB $JS.API.%s r %d\r\n%s\r\n" % (call.encode(), len(body), body)


class Client:
    """One connection that takes as little of the processor as Python can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=WAIT_S)
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB r 1\r\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, requests: Sequence[bytes]) -> None:
        """Send requests, `WINDOW` in flight, and wait for an answer to each."""
        sent = answered = 0
        rest = b""
        while answered < len(requests):
            if room := min(WINDOW - (sent - answered), len(requests) - sent):
                self._socket.sendall(b"".join(requests[sent : sent + room]))
                sent += room
            read = self._socket.recv(READ_BYTES)
            if not read or b'"error":' in rest + read:
                raise LoadFailed(f"refused: {(rest + read)[-500:].decode(errors='replace')}")
            answered += (rest + read).count(b"MSG r 1 ") - rest.count(b"MSG r 1 ")
            rest = (rest + read)[-8:]
