"""
Listening sockets.

Like nats-server, `0.0.0.0` and `::` mean both families: a client that resolves `localhost`
to `::1` first still finds a server that listens on `0.0.0.0`. A machine without IPv6 uses
IPv4 alone.
"""

from __future__ import annotations

import errno
import socket

from penstock.errors import ConfigError
from penstock.net.listeners.addresses import EVERY_ADDRESS, address_of

BACKLOG = 4096
WITHOUT_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""The errors of a system without IPv6: unknown family, or no address."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen on `host`; a port of 0 or -1 picks a free one."""
    try:
        if host in EVERY_ADDRESS and socket.has_dualstack_ipv6():
            return _of_both_families(host, max(port, 0))
        return _of_one_family(host, max(port, 0))
    except OSError as error:
        raise ConfigError(f"Error listening on port: {address_of(host, port)}, {error}") from error


def loopback_sockets(port: int) -> list[socket.socket]:
    """Listen on this machine alone, in both families; a port of 0 or -1 picks a free one."""
    first = listening_socket("127.0.0.1", port)
    try:
        return [first, _of_one_family("::1", first.getsockname()[1])]
    except OSError as error:
        if error.errno in WITHOUT_IPV6:
            return [first]
        first.close()
        if port <= 0 and error.errno == errno.EADDRINUSE:
            return loopback_sockets(port)  # Free in one family only.
        raise ConfigError(f"Error listening on port: {address_of('::1', port)}, {error}") from error


def _of_both_families(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    except OSError as error:
        if error.errno not in WITHOUT_IPV6:
            raise
        return _of_one_family(host, port)


def _of_one_family(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
