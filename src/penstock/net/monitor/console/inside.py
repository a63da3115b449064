"""
A client inside the server: a user who has signed in to the console.

It is a connection like any other, over a pair of sockets. Its password is checked like any
password, its permissions hold, it has the limits of clients, and it can be seen and kicked.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from penstock.client import Client
from penstock.client.connection.connection import Connection
from penstock.client.connection.handshake import greet
from penstock.client.connection.link import Link
from penstock.client.connection.servers import Server as Address
from penstock.client.options import ClientOptions
from penstock.core.session import CONSOLE, Session

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

NAME = "console"
INSIDE = "nats://inside"
REQUEST_S = 10.0


async def connect(
    server: Watched, credentials: dict[str, str], peer: tuple[str, int]
) -> tuple[Client, Session]:
    """Connect as a user; raise ConnectFailed if the server refuses."""
    options = ClientOptions(
        servers=(INSIDE,),
        name=NAME,
        user=credentials.get("user"),
        password=credentials.get("password"),
        token=credentials.get("token"),
        reconnect=False,
        request_timeout_s=REQUEST_S,
    )
    sessions: list[Session] = []

    async def dial(address: Address, options: ClientOptions) -> tuple[Link, dict[str, Any]]:
        link, session = await _link(server, peer)
        sessions.append(session)
        try:
            async with asyncio.timeout(REQUEST_S):
                return link, await greet(link, address, options)
        except BaseException:
            link.abort()
            raise

    client = Client(options, Connection(options, dial))
    await client.connection.open()
    return client, sessions[-1]


async def _link(server: Watched, peer: tuple[str, int]) -> tuple[Link, Session]:
    near, far = socket.socketpair()
    for each in (near, far):
        each.setblocking(False)
    session = server.broker.open(*peer, kind=CONSOLE)
    server.door.serve(far, session).flush()
    _, link = await asyncio.get_running_loop().create_connection(Link, sock=near)
    return link, session
