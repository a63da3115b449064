"""Server URLs, and the pool of servers that a client tries when it reconnects."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.protocol.redaction import redact

logger = logging.getLogger("penstock.client")

HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
"""A name or an address that a resolver accepts."""
PORT = 4222
DISCOVERED_MAX = 64
"""Servers accepted from a cluster's `connect_urls`: a round over all of them must end."""
SCHEMES = ("nats", "tls")


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server: its address, and the identity in its URL."""

    host: str
    port: int = PORT
    tls: bool = False
    tls_hostname: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """`host:port`, as servers write it in `connect_urls`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> Server:
    """Parse `nats://[user[:password]@]host[:port]`; a user without a password is a token."""
    text = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        # The reason may quote the port, which may be part of a password.
        raise ConfigError(f"`{redact(url)}` is not a server URL: {redact(str(error))}") from None
    if parts.scheme not in SCHEMES or not host:
        raise ConfigError(
            f"`{redact(url)}` is not a server URL; hint: nats://host:4222 or tls://host:4222"
        )
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    return Server(
        host=host,
        port=PORT if port is None else port,
        tls=parts.scheme == "tls",
        user=user if password is not None else None,
        password=password,
        token=user if password is None else None,
    )


def split_urls(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Split a string of URLs separated by commas; accept a list of URLs as well."""
    if isinstance(servers, str):
        servers = servers.split(",")
    return tuple(url.strip() for url in servers if url.strip())


class ServerPool:
    """
    The servers in the order they are tried.

    Configured servers stay. Servers discovered through a cluster's `connect_urls` come and
    go with them. A server that fails too often in a row, or refuses us twice, is removed;
    without servers the client closes.
    """

    def __init__(
        self, servers: Sequence[Server], *, attempts_max: int = -1, randomize: bool = True
    ) -> None:
        self._servers = list(servers)
        self._told = {server.address for server in servers}
        self._attempts: dict[str, int] = {}
        self._refused: set[str] = set()
        self._attempts_max = attempts_max
        self._randomize = randomize
        if randomize:
            random.shuffle(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers, the next one to try first."""
        return tuple(self._servers)

    def rotate(self, server: Server) -> None:
        """Move `server` to the end: the others are tried before it."""
        if server in self._servers:
            self._servers.remove(server)
            self._servers.append(server)

    def connected(self, server: Server, *, encrypted: bool = False) -> Server:
        """
        Clear the failures of a server that works, and try it last when it is lost.

        Return the server as it is known from now on. Once it has spoken TLS, TLS is
        required for good, so that nobody can downgrade us when we reconnect.
        """
        if encrypted:
            self._servers = [replace(other, tls=True) for other in self._servers]
            server = replace(server, tls=True)
        self._attempts.pop(server.address, None)
        self._refused.discard(server.address)
        self.rotate(server)
        return server

    def failed(self, server: Server, *, refused: bool = False) -> None:
        """Count a failure; remove the server after one too many."""
        attempts = self._attempts[server.address] = self._attempts.get(server.address, 0) + 1
        # ADR-40: the same server refusing our credentials twice will not change its mind.
        refused_again = refused and server.address in self._refused
        if refused:
            self._refused.add(server.address)
        self.rotate(server)
        if refused_again or 0 <= self._attempts_max <= attempts:
            self._servers = [other for other in self._servers if other.address != server.address]

    def discovered(self, urls: Iterable[object], *, via: Server) -> bool:
        """Replace the discovered servers by `connect_urls`; tell whether one of them is new."""
        addresses = _addresses(urls)
        self._servers = [
            server
            for server in self._servers
            if server.address in addresses
            or server.address in self._told
            or server.address == via.address
        ]
        known = {server.address for server in self._servers}
        found = [self._like(via, server) for key, server in addresses.items() if key not in known]
        if self._randomize:
            random.shuffle(found)
        # The server in use stays last, so that a lost connection moves to another one
        # first.
        self._servers[:-1] = [*self._servers[:-1], *found]
        if via not in self._servers:
            self._servers.append(via)
        return bool(found)

    @staticmethod
    def _like(via: Server, found: Server) -> Server:
        """Reach a discovered server with the TLS and identity of the one that named it."""
        # A cluster names its members by address, but their certificates are for a name.
        return replace(
            found,
            tls=via.tls,
            tls_hostname=via.tls_hostname or via.host,
            user=via.user,
            password=via.password,
            token=via.token,
        )


def _addresses(urls: Iterable[object]) -> dict[str, Server]:
    """Return the servers that can be dialled, by address."""
    addresses: dict[str, Server] = {}
    for url in islice(urls, DISCOVERED_MAX):
        try:
            server = parse_url(url) if isinstance(url, str) else None
        except ConfigError:
            server = None
        if server is not None and HOST.fullmatch(server.host):
            addresses[server.address] = server
        else:
            logger.warning("! a server announced an invalid address: %.80r", url)
    return addresses
