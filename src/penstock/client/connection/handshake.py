"""Turn a server's address into a ready link: TCP, INFO, TLS, CONNECT, PONG."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

from penstock.client.connection.auth import identity
from penstock.client.connection.info import read_info
from penstock.client.connection.link import Link
from penstock.client.connection.servers import Server
from penstock.client.options import ClientOptions
from penstock.errors import ConnectFailed, PermissionDenied, ProtocolError
from penstock.hot.wire import ERR, FAIL, INFO, MSG, PONG, Op
from penstock.protocol.version import VERSION

REFUSALS = ("authorization", "authentication", "account authentication")


async def dial(server: Server, options: ClientOptions) -> tuple[Link, dict[str, Any]]:
    """Return a link on which the server has accepted us, and the server's INFO."""
    link: Link | None = None
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            link = await _open(server, options)
            return link, await greet(link, server, options)
    except BaseException as error:
        if link is not None:
            link.abort()
            await link.closed.wait()
        if isinstance(error, TimeoutError):
            raise ConnectFailed("no answer within `connect_timeout_s`") from None
        raise


async def _open(server: Server, options: ClientOptions) -> Link:
    first = options.tls_handshake_first
    _, link = await asyncio.get_running_loop().create_connection(
        Link,
        server.host,
        server.port,
        ssl=_context(options) if first else None,
        server_hostname=_hostname(server, options) if first else None,
    )
    return link


async def greet(link: Link, server: Server, options: ClientOptions) -> dict[str, Any]:
    """Introduce ourselves on a new link; return the server's INFO once it has accepted us."""
    info = await _read_info(link)
    if not options.tls_handshake_first:
        await _secure(link, info, server, options)
    fields = connect_fields(info, server, options)
    link.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(fields).encode())
    while True:
        operation = await link.expect()
        if operation[0] == PONG:
            return info
        if operation[0] == INFO:
            # Each INFO is complete, and one received through TLS is more trustworthy.
            info = read_info(operation[1])
        _check(operation)


def connect_fields(
    info: dict[str, Any], server: Server, options: ClientOptions
) -> dict[str, object]:
    """Return the fields of CONNECT."""
    return {
        "verbose": False,
        "pedantic": options.pedantic,
        "tls_required": options.tls is not None or server.tls,
        "echo": options.echo,
        "headers": True,
        "no_responders": True,
        "name": options.name,
        "lang": "python-penstock",
        "version": VERSION,
        "protocol": 1,
        **identity(options, server, info.get("nonce", "")),
    }


async def _read_info(link: Link) -> dict[str, Any]:
    operation = await link.expect()
    if operation[0] != INFO:
        _check(operation)
        raise ProtocolError("the server did not start with INFO")
    return read_info(operation[1])


async def _secure(link: Link, info: dict[str, Any], server: Server, options: ClientOptions) -> None:
    wanted = options.tls is not None or server.tls
    offered = info.get("tls_required", False) or info.get("tls_available", False)
    if wanted and not offered:
        # Going on in the clear would send our credentials to anybody who answers.
        raise ConnectFailed("TLS is required, but the server does not offer it")
    if wanted or info.get("tls_required", False):
        await link.start_tls(_context(options), _hostname(server, options))


def _check(operation: Op) -> None:
    if operation[0] == ERR:
        text = operation[1].decode(errors="replace")
        if is_refusal(text):
            raise PermissionDenied(text)
        raise ConnectFailed(text)
    if operation[0] in (FAIL, MSG):
        raise ProtocolError("the server does not speak NATS")


def is_refusal(text: str) -> bool:
    """Tell whether this error text means that every server would refuse us."""
    return text.lower().startswith(REFUSALS)


def _context(options: ClientOptions) -> ssl.SSLContext:
    return options.tls or ssl.create_default_context()


def _hostname(server: Server, options: ClientOptions) -> str:
    return options.tls_hostname or server.tls_hostname or server.host
