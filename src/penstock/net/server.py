"""
The server: a broker, a reactor, and the ports they answer on.

`start`, `stop` and `lame_duck` are the whole life of it. Everything lives on the
event loop that `start` was called on, so several servers fit in one process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from penstock import hot
from penstock.config.server import ServerConfig
from penstock.core import reload
from penstock.core.broker import OF_LISTENER, Broker
from penstock.errors import ConfigError, PenstockError
from penstock.keys import nkeys
from penstock.net.clock import SteadyClock
from penstock.net.committer import Journal
from penstock.net.connection import Connection
from penstock.net.listeners.acceptor import Door, WebSocketDoor, tls_info, websocket_info
from penstock.net.listeners.handshake import Tls
from penstock.net.listeners.tls import load_files, server_context
from penstock.net.monitor import views
from penstock.net.monitor.monitor import Monitor
from penstock.net.monitor.usage import Usage
from penstock.net.reactor import Reactor
from penstock.net.system.accountfiles import AccountFiles
from penstock.net.system.claims import ClaimsRequests
from penstock.net.system.sysrequests import SystemRequests
from penstock.version import NATS_VERSION, VERSION

log = logging.getLogger("penstock")

BACKLOG = 4096
STATSZ_INTERVAL_S = 10.0
"""How often the system account is told the figures of the server."""
LAME_DUCK_PAUSE_S_MAX = 1.0
"""A few clients need not wait for all of a long lame duck duration."""


class Server:
    """
    A NATS server.

    Embedded, it listens on a free port of the loopback address unless told
    otherwise; given a whole configuration it does as that says.
    """

    def __init__(self, config: ServerConfig | None = None, **settings: Any) -> None:
        if config is None:
            embedded: dict[str, Any] = {"host": "127.0.0.1", "port": 0}
            config = ServerConfig(**(embedded | settings))
        elif settings:
            config = dataclasses.replace(config, **settings)
        self.config = config
        self.port = 0
        self.http_port: int | None = None
        self.websocket_port = 0
        self.is_ready = False
        """Whether clients can connect: from `start` until `stop` or `lame_duck`."""
        self.door: Door
        """Where new clients come in."""
        self.websocket_door: WebSocketDoor | None = None
        self.journal: Journal | None = None
        """JetStream, if it is switched on."""
        self.account_files: AccountFiles | None = None
        """Where the tokens of accounts are kept, if they are."""
        self.claims: ClaimsRequests
        self.usage = Usage()
        self.http_requests: Counter[str] = Counter()
        """How often each path of the monitoring was asked for."""
        self.load_again: Callable[[], str] | None = None
        """Reads the configuration again, where there is a file; returns what is wrong with it."""
        self._monitor: Monitor | None = None
        self._https_context: ssl.SSLContext | None = None
        """The TLS of the monitoring, if it has any; a reload reads its files again."""
        self._is_stopping = False
        self._stopped: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Where clients on this machine reach the server."""
        host = self.config.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"nats://[{host}]:{self.port}" if ":" in host else f"nats://{host}:{self.port}"

    async def start(self) -> None:
        """Listen; return when clients can connect."""
        loop = asyncio.get_running_loop()
        self.config = self._with_kept_accounts(self.config)
        key = None
        server_id = nkeys.encode(nkeys.SERVER_PREFIX, os.urandom(32))
        if self.config.authorization.may_ask:
            key = nkeys.KeyPair(nkeys.SERVER_PREFIX, os.urandom(32))
            server_id = key.public
        self.broker = Broker(
            self.config,
            server_id=server_id,
            key=key,
            clock_ns=SteadyClock(time.time_ns, time.monotonic),
            random=random.random,
            random_bytes=os.urandom,
            call_later=self._call_later,
        )
        self.config_load_ns = self.broker.start_ns
        self.claims = ClaimsRequests(self)
        self._log_start()
        self.door = Door(self.broker, Tls.of(self.config.tls) if self.config.tls else None)
        listener = _listening_socket(self.config.host, self.config.port)
        websocket = None
        try:
            self._open_journal()
            await self._start_monitor()
            websocket = self._open_websocket()
        except PenstockError:
            listener.close()
            if self._monitor is not None:
                await self._monitor.close()
            if self.journal is not None:
                self.journal.release()
            raise
        self.port = listener.getsockname()[1]
        self._advertise()
        self.reactor = self.door.reactor = Reactor(loop, self.broker)
        if self.journal is not None:
            self.journal.attach(self.reactor)
        self.reactor.listen(listener, self.door.accept)
        log.info("Listening for client connections on %s", _address(self.config.host, self.port))
        if websocket is not None:
            self._listen_for_websocket(websocket)
        SystemRequests(self).open()
        self.claims.open()
        self._call_later(STATSZ_INTERVAL_S, self._tell_figures)
        self._stopped = asyncio.Event()
        self.is_ready = True
        log.info("Server is ready")

    async def stop(self) -> None:
        """Close everything; twice is once."""
        if self._stopped is None:
            return
        if self._is_stopping:
            await self._stopped.wait()
            return
        self._is_stopping = True
        self.is_ready = False
        self.broker.system.said("SHUTDOWN")
        self.reactor.flush()
        if self.journal is not None:
            await self.journal.leave_remotes()
            await self.journal.settle()
        self.reactor.close()
        if self.journal is not None:
            await self.journal.close()
        if self._monitor is not None:
            await self._monitor.close()
        self._stopped.set()
        log.info("Server Exiting..")

    def reload(self, config: ServerConfig) -> list[str]:
        """Take over users, permissions, limits and TLS; return what needs a restart."""
        config = self._with_kept_accounts(config)
        waiting = reload.restart_settings(self.config, config)
        for name in waiting:
            log.warning("`%s` has changed: restart the server to apply it", name)
        tls = Tls.of(config.tls) if config.tls else None
        if self.websocket_door is not None and config.websocket is not None:
            self.websocket_door.change(config.websocket)
        if self._https_context is not None and config.tls is not None:
            load_files(self._https_context, config.tls)
        self._apply(config)
        self.door.tls = tls
        self.config_load_ns = self.broker.clock_ns()
        self._advertise()
        self.reactor.flush()
        return waiting

    def change_accounts(self, tokens: Mapping[str, str]) -> None:
        """Have the accounts that these tokens describe, from now on."""
        authorization = dataclasses.replace(self.config.authorization, resolver_preload=tokens)
        self._apply(dataclasses.replace(self.config, authorization=authorization))

    def _apply(self, config: ServerConfig) -> None:
        self.config = config
        waiting = reload.apply(self.broker, config)
        if self.journal is not None:
            self.journal.follow_accounts()
        for session in waiting:
            self.reactor.checks.start(session)

    def _with_kept_accounts(self, config: ServerConfig) -> ServerConfig:
        """Return the configuration with the accounts that a directory has, if it names one."""
        authorization = config.authorization
        if authorization.resolver is None or not authorization.resolver.directory:
            self.account_files = None
            return config
        self.account_files = AccountFiles(authorization.resolver)
        kept = self.account_files.merged(
            authorization.resolver_preload, authorization.operator_keys
        )
        changed = dataclasses.replace(authorization, resolver_preload=kept)
        return dataclasses.replace(config, authorization=changed)

    def _tell_figures(self) -> None:
        self._call_later(STATSZ_INTERVAL_S, self._tell_figures)
        self.broker.system.said("STATSZ", lambda: {"statsz": views.statsz(self)})

    def _call_later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Do something later on behalf of the broker, and write what that gives."""

        def run() -> None:
            if not self._is_stopping:
                action()
                self.reactor.flush()

        return asyncio.get_running_loop().call_later(delay_s, run)

    async def wait_stopped(self) -> None:
        """Return once the server has stopped, for whatever reason."""
        assert self._stopped is not None, "start() comes first"
        await self._stopped.wait()

    async def lame_duck(self) -> None:
        """Send the clients elsewhere, one after another, then stop."""
        limits = self.config.limits
        log.info("Entering lame duck mode, stop accepting new clients")
        self.is_ready = False
        self.broker.system.said("LAMEDUCK")
        self.reactor.stop_listening()
        for connection in self.reactor.connections:
            session = connection.session
            if session.connect_options.get("protocol") == 1:
                session.write(self.broker.info_line(session, ldm=True))
        self.reactor.flush()
        if self.reactor.connections:
            await asyncio.sleep(limits.lame_duck_grace_period_s)
        duration_s = limits.lame_duck_duration_s - limits.lame_duck_grace_period_s
        await self._close_slowly(self.reactor.connections, duration_s)
        await self.stop()

    async def _close_slowly(self, connections: list[Connection], duration_s: float) -> None:
        """Spread the reconnects of the clients over the duration."""
        pause_s = min(duration_s / max(len(connections), 1), LAME_DUCK_PAUSE_S_MAX)
        for index, connection in enumerate(connections):
            if index:
                await asyncio.sleep(pause_s)
            connection.close("Server Shutdown")

    def _advertise(self) -> None:
        """Put into INFO where clients reach this server."""
        info, config = self.broker.info, self.config
        info["port"] = self.port
        for name in OF_LISTENER:
            info.pop(name, None)
        info.update(tls_info(config))
        if self.websocket_door is not None:
            self.broker.websocket_info = websocket_info(
                self.websocket_door.config, self.websocket_port
            )
        if config.client_advertise and not config.no_advertise:
            has_port = config.client_advertise.rpartition(":")[2].isdigit()
            suffix = "" if has_port else f":{self.port}"
            info["connect_urls"] = [config.client_advertise + suffix]

    def _open_journal(self) -> None:
        if self.config.jetstream is None:
            return
        self.journal = Journal(self.broker, self.config.jetstream)
        self.journal.open()
        self.broker.info["jetstream"] = True
        if self.config.jetstream.domain:
            self.broker.info["domain"] = self.config.jetstream.domain

    async def _start_monitor(self) -> None:
        config = self.config
        port = config.http_port if config.http_port is not None else config.https_port
        if port is None:
            return
        if config.https_port is not None and config.tls is not None:
            self._https_context = server_context(config.tls)
        host = config.http_host or config.host
        listener = _listening_socket(host, port)
        self.http_port = listener.getsockname()[1]
        self._monitor = Monitor(self)
        await self._monitor.start(listener, self._https_context)
        scheme = "http" if self._https_context is None else "https"
        log.info("Starting %s monitor on %s", scheme, _address(host, self.http_port))

    def _open_websocket(self) -> socket.socket | None:
        config = self.config.websocket
        if config is None:
            return None
        self.websocket_door = WebSocketDoor(self.door, self.broker, config)
        listener = _listening_socket(config.host, config.port)
        self.websocket_port = listener.getsockname()[1]
        return listener

    def _listen_for_websocket(self, listener: socket.socket) -> None:
        assert self.websocket_door is not None
        config = self.websocket_door.config
        self.reactor.listen(listener, self.websocket_door.accept)
        scheme = "ws" if config.tls is None else "wss"
        address = _address(config.host, self.websocket_port)
        log.info("Listening for websocket clients on %s://%s", scheme, address)
        if config.tls is None:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def _log_start(self) -> None:
        log.info("Starting penstock")
        log.info("  Version:  %s (speaks NATS %s)", VERSION, NATS_VERSION)
        log.info("  Hot path: %s", "compiled" if hot.COMPILED else "pure Python")
        log.info("  Name:     %s", self.broker.server_name)
        log.info("  ID:       %s", self.broker.server_id)

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _listening_socket(host: str, port: int) -> socket.socket:
    """Listen on `host`; a port of 0 or -1 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Every address of IPv6 means every address of IPv4 too, as it does to nats-server.
    is_both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, max(port, 0)), family=family, backlog=BACKLOG, dualstack_ipv6=is_both
        )
    except OSError as error:
        raise ConfigError(f"Error listening on port: {_address(host, port)}, {error}") from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
