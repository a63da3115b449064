"""What stands before a connection: whichever way it ends, nothing of it is left."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.net.streams import run, until

from penstock.net.listeners.arrival import Arrival
from penstock.net.server import Server


class Stumbling(Arrival):
    """Makes a mistake of our own, in its own words or in those of what comes next."""

    what = "test"
    failure = "Test Failure"

    def __init__(self, *args: Any, mistake: Callable[[Arrival], None]) -> None:
        super().__init__(*args)
        self._mistake = mistake

    def advance(self) -> None:
        """Stumble."""
        self._mistake(self)


def stumble(*_: object) -> None:
    raise LookupError("x" * 10_000)


def stumble_over_next(arrival: Arrival) -> None:
    arrival.go_on(stumble)


def wait_too_long(arrival: Arrival) -> None:
    arrival.sock.recv_into(bytearray(1))
    arrival.limit_time(0)


def end(arrival: Arrival) -> None:
    arrival.close("for a test")
    arrival.close("again")


@pytest.mark.parametrize("mistake", [stumble, stumble_over_next, wait_too_long, end])
@pytest.mark.parametrize("is_greeted", [True, False], ids=["greeted", "not greeted"])
def test_every_way_out_ends_socket_and_session(
    mistake: Callable[[Arrival], None], is_greeted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(server: Server) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        arrival = Stumbling(server.reactor, ours, "somebody", mistake=mistake)
        if is_greeted:
            arrival.greet(server.broker.open("127.0.0.1", 1))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(theirs, b"x")
        await until(lambda: ours.fileno() < 0)

        assert arrival.is_closed
        assert server.broker.sessions == {}
        theirs.close()

    run(scenario)
    assert "Traceback" not in caplog.text
    assert max(map(len, caplog.text.splitlines()), default=0) < 400
