"""A well-behaved client, which must notice nothing of what others do to the server."""

from __future__ import annotations

import threading
import time
from typing import Self

from tests.servers import DEADLINE_S, RawClient

ROUND_TRIP_S_MAX = 1.0
"""Far above what an undisturbed round trip takes, and far below what a client calls a failure."""


class Heartbeat:
    """Sends itself one message after another inside a `with` block, and takes the time."""

    def __init__(self, port: int, *, patience_s: float = DEADLINE_S, **credentials: str) -> None:
        self.round_trips_s: list[float] = []
        self._client = RawClient(port).connect(**credentials)
        self._client.sock.settimeout(patience_s)
        self._client.send(b"SUB heartbeat 1\r\n")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def check(self) -> None:
        """Fail if any message was late."""
        assert self.round_trips_s
        assert max(self.round_trips_s) < ROUND_TRIP_S_MAX

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            start_s = time.monotonic()
            self._client.send(b"PUB heartbeat 4\r\nbeat\r\n")
            while self._client.line() != b"beat":
                """The control line, or a PING."""
            self.round_trips_s.append(time.monotonic() - start_s)
