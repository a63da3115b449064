"""
The server: a broker, a reactor, and the ports they answer on.

`start`, `stop` and `lame_duck` are its whole life cycle. Everything runs on the event loop
of `start`, so several servers fit in one process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from penstock import hot
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, ServerConfig, ServerSettings
from penstock.core import reload
from penstock.core.broker import OF_LISTENER, Broker
from penstock.errors import ConfigError, PenstockError
from penstock.keys import nkeys
from penstock.net.clock import SteadyClock
from penstock.net.connection import Connection
from penstock.net.listeners.acceptor import Door, tls_info, websocket_info
from penstock.net.listeners.addresses import EVERY_ADDRESS, address_of
from penstock.net.listeners.listener import listening_socket, loopback_sockets
from penstock.net.monitor.usage import CpuShare
from penstock.net.reactor import Reactor
from penstock.net.system.sysrequests import SystemRequests
from penstock.protocol.addresses import split_address
from penstock.protocol.version import NATS_VERSION, VERSION

# Imported where they are switched on, so that a server does not wait for unused features.
if TYPE_CHECKING:
    import ssl
    import tempfile

    from penstock.config.file.loading import ServerOptions
    from penstock.config.transport import TlsConfig
    from penstock.net.committer import Journal
    from penstock.net.listeners.handshake import Tls
    from penstock.net.listeners.websocketacceptor import WebSocketDoor
    from penstock.net.monitor.monitor import Monitor
    from penstock.net.system.accountfiles import AccountFiles
    from penstock.net.system.accountserver import AccountServer
    from penstock.net.system.claimsrequests import ClaimsRequests

log = logging.getLogger("penstock")

STATSZ_INTERVAL_S = 10.0
"""The interval of STATSZ events to the system account."""
LAST_WORDS_S = 1.0
"""How long a stopping server waits for slow clients to read their last messages."""
LAME_DUCK_PAUSE_S_MAX = 1.0
"""The longest pause: a few clients need not stretch over a long lame duck duration."""


class Server:
    """
    A NATS server.

    Without a configuration, it listens on a free port of the loopback address. Settings
    override the configuration. With `jetstream=True` it keeps streams in a temporary
    directory, which is removed with the server.
    """

    def __init__(
        self, config: ServerConfig | None = None, **settings: Unpack[ServerSettings]
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        """The temporary directory of streams, removed with the server."""
        if config is None:
            config = ServerConfig(host="127.0.0.1", port=0)
        given = self._given(settings)
        self.config = dataclasses.replace(config, **given) if given else config
        self.port = 0
        self.http_port: int | None = None
        self.websocket_port = 0
        self.is_ready = False
        """Whether clients can connect: from `start` until `stop` or `lame_duck`."""
        self.door: Door
        """Accepts new clients."""
        self.websocket_door: WebSocketDoor | None = None
        self.journal: Journal | None = None
        """JetStream, if it is on."""
        self.account_files: AccountFiles | None = None
        """The directory of account tokens, if one is configured."""
        self._account_server: AccountServer | None = None
        """The HTTP source of account tokens, if one is configured."""
        self.usage = CpuShare()
        self.http_requests: Counter[str] = Counter()
        """The number of requests for each path of the monitoring."""
        self.load_again: Callable[[], str] | None = None
        """Reloads the configuration file, if there is one; returns an error text, or ""."""
        self.options: ServerOptions | None = None
        """The options of the process, with the place of each; None for a server in a program."""
        self._monitor: Monitor | None = None
        self._https_context: ssl.SSLContext | None = None
        """The TLS context of the monitoring, if any; a reload reads its files again."""
        self._is_stopping = False
        self._closing_journal: asyncio.Future[None] | None = None
        self._stopped: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        host = self.config.host
        if host in EVERY_ADDRESS:
            host = "127.0.0.1"
        return f"nats://{address_of(host, self.port)}"

    async def start(self) -> None:
        """Start listening; return when clients can connect."""
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
            clock_ns=SteadyClock(time.time_ns, time.monotonic_ns).now_ns,
            random=random.random,
            random_bytes=os.urandom,
            call_later=self._call_later,
        )
        self.broker.elsewhere = self._account_server
        self.config_load_ns = self.broker.start_ns
        self._log_start()
        self.door = Door(self.broker, _tls(self.config.tls))
        listener = listening_socket(self.config.host, self.config.port)
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
        log.info("Listening for client connections on %s", address_of(self.config.host, self.port))
        if websocket is not None:
            self._listen_for_websocket(websocket)
        claims = self._open_claims() if self.config.authorization.trusts_operators else None
        SystemRequests(
            self,
            hears_claims=claims.hears if claims is not None else lambda kind: False,
            load_again=lambda: self.load_again,
        ).open()
        self._sweep_account_files()
        self._call_later(STATSZ_INTERVAL_S, self._tell_figures)
        self._stopped = asyncio.Event()
        self.is_ready = True
        log.info("Server is ready")

    def _open_claims(self) -> ClaimsRequests:
        """Begin to answer requests about the tokens of accounts."""
        from penstock.net.system.claimsrequests import ClaimsRequests

        claims = ClaimsRequests(self)
        claims.open()
        return claims

    def _given(self, settings: ServerSettings) -> dict[str, Any]:
        """Return settings in the form of `ServerConfig`, which takes no boolean for `jetstream`."""
        given: dict[str, Any] = {**settings}
        if given.get("jetstream") is True:
            import tempfile

            self._temporary = tempfile.TemporaryDirectory(prefix="penstock-")
            given["jetstream"] = JetStreamConfig(store_dir=self._temporary.name)
        elif given.get("jetstream") is False:
            given["jetstream"] = None
        return given

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        if self._stopped is None:
            return
        if self._is_stopping:
            await self._stopped.wait()
            return
        self._is_stopping = True
        self.is_ready = False
        log.info("Initiating Shutdown...")
        self.broker.system.said("SHUTDOWN")
        self.reactor.flush()
        if self.journal is not None:
            # One of the remotes may be this very server, so it must still answer.
            await self.journal.leave_remotes()
        # A client whose last messages are not read sees the connection close, and tries again.
        self.reactor.stop_reading()
        await self._close_journal()
        await self.reactor.drain(LAST_WORDS_S)
        self.reactor.close()
        if self._monitor is not None:
            await self._monitor.close()
        if self._temporary is not None:
            self._temporary.cleanup()
        self._stopped.set()
        log.info("Server Exiting..")

    async def _close_journal(self) -> None:
        """Close JetStream while its last messages still reach waiting clients. Idempotent."""
        if self.journal is None:
            return
        if self._closing_journal is None:
            log.info("Initiating JetStream Shutdown...")
            self._closing_journal = asyncio.ensure_future(self.journal.close())
        await self._closing_journal
        self.reactor.flush()

    def reload(self, config: ServerConfig) -> list[str]:
        """Apply users, permissions, limits and TLS; return the settings that need a restart."""
        config = self._with_kept_accounts(config)
        waiting = reload.restart_settings(self.config, config)
        for name in waiting:
            log.warning("`%s` has changed: restart the server to apply it", name)
        tls = _tls(config.tls)
        if self.websocket_door is not None and config.websocket is not None:
            self.websocket_door.change(config.websocket)
        if self._https_context is not None and config.tls is not None:
            from penstock.net.listeners.tls import load_files

            load_files(self._https_context, config.tls)
        self.broker.elsewhere = self._account_server
        self._apply(config)
        self.door.tls = tls
        self.config_load_ns = self.broker.clock_ns()
        self._advertise()
        self.reactor.flush()
        return waiting

    def change_accounts(self, tokens: Mapping[str, str]) -> None:
        """Replace the accounts by those in these tokens."""
        if self._account_server is not None:
            self._account_server.known = dict(tokens)
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
        """Return the configuration with the accounts of its resolver, if it has one."""
        authorization = config.authorization
        resolver = authorization.resolver
        self.account_files = None
        if resolver is None or not resolver.url:
            self._account_server = None
        if resolver is None or not resolver.is_elsewhere:
            return config
        if resolver.url:
            kept = self._ask_for_accounts(authorization, resolver.url)
        else:
            from penstock.net.system.accountfiles import AccountFiles

            self.account_files = AccountFiles(resolver)
            kept = self.account_files.merged(
                authorization.resolver_preload, authorization.operator_keys
            )
        changed = dataclasses.replace(authorization, resolver_preload=kept)
        return dataclasses.replace(config, authorization=changed)

    def _ask_for_accounts(self, authorization: Authorization, url: str) -> Mapping[str, str]:
        """Return the tokens fetched so far; at first, that of the system account."""
        from penstock.net.system.accountserver import AccountServer

        if authorization.resolver_preload:
            raise ConfigError("`resolver_preload` does not go with a `resolver` that is a URL")
        known = self._account_server.known if self._account_server is not None else {}
        self._account_server = AccountServer(
            url, authorization.operator_keys, self.change_accounts, known
        )
        if not known:
            self._account_server.begin(authorization.system_account_name)
        return self._account_server.known

    def _sweep_account_files(self) -> None:
        """Let a cache of account tokens drop expired files."""
        files = self.account_files
        if files is not None and files.ttl_s:
            files.sweep()
            self._call_later(files.ttl_s, self._sweep_account_files)

    def _tell_figures(self) -> None:
        self._call_later(STATSZ_INTERVAL_S, self._tell_figures)
        self.broker.system.said("STATSZ", self._figures)

    def _figures(self) -> dict[str, Any]:
        from penstock.net.monitor import views

        return {"statsz": views.statsz(self)}

    def _call_later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function later, and then write the dirty sessions."""

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
        """Send the clients to other servers, one after another, then stop."""
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
            await asyncio.sleep(limits.lame_duck_grace_period)
        if self.journal is not None:
            await self.journal.leave_remotes()
        await self._close_journal()
        duration_s = limits.lame_duck_duration - limits.lame_duck_grace_period
        await self._close_slowly(self.reactor.connections, duration_s)
        await self.stop()

    async def _close_slowly(self, connections: list[Connection], duration_s: float) -> None:
        """Close connections one by one, so that reconnects spread over the duration."""
        pause_s = min(duration_s / max(len(connections), 1), LAME_DUCK_PAUSE_S_MAX)
        for index, connection in enumerate(connections):
            if index:
                await asyncio.sleep(pause_s)
            connection.close("Server Shutdown")

    def _advertise(self) -> None:
        """Put the addresses of this server into INFO."""
        info, config = self.broker.info, self.config
        info["host"], info["port"] = config.host, self.port
        for name in OF_LISTENER:
            info.pop(name, None)
        info.update(tls_info(config))
        if self.websocket_door is not None:
            websocket = self.websocket_door.config
            self.broker.websocket_info = websocket_info(websocket, self.websocket_port)
            if websocket.advertise and not config.no_advertise:
                self.broker.websocket_info["connect_urls"] = [websocket.advertise]
        if config.client_advertise:
            host, port = split_address(config.client_advertise)
            info["host"], info["port"] = host, port or self.port

    def _open_journal(self) -> None:
        if self.config.jetstream is None:
            return
        from penstock.net.committer import Journal

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
        from penstock.net.monitor.monitor import Monitor

        if config.https_port is not None and config.tls is not None:
            from penstock.net.listeners.tls import server_context

            self._https_context = server_context(config.tls)
        host = config.monitor_host
        is_local = config.http_host is None and host != config.host
        listeners = loopback_sockets(port) if is_local else [listening_socket(host, port)]
        self.http_port = listeners[0].getsockname()[1]
        self._monitor = Monitor(self)
        await self._monitor.start(listeners, self._https_context)
        scheme = "http" if self._https_context is None else "https"
        log.info("Starting %s monitor on %s", scheme, address_of(host, self.http_port))
        if is_local:
            log.info("The monitor listens on this machine only; `http_host` names another address")

    def _open_websocket(self) -> socket.socket | None:
        config = self.config.websocket
        if config is None:
            return None
        from penstock.net.listeners.websocketacceptor import WebSocketDoor

        self.websocket_door = WebSocketDoor(self.door, self.broker, config)
        listener = listening_socket(config.host, config.port)
        self.websocket_port = listener.getsockname()[1]
        return listener

    def _listen_for_websocket(self, listener: socket.socket) -> None:
        assert self.websocket_door is not None
        config = self.websocket_door.config
        self.reactor.listen(listener, self.websocket_door.accept)
        scheme = "ws" if config.tls is None else "wss"
        address = address_of(config.host, self.websocket_port)
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


def _tls(config: TlsConfig | None) -> Tls | None:
    """Return the TLS settings for clients, if any."""
    if config is None:
        return None
    from penstock.net.listeners.handshake import Tls

    return Tls.of(config)
