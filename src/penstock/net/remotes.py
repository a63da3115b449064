"""
Connections to other servers, for the streams that copy from them.

A remote is connected while at least one stream needs it. A lost connection is retried:
after a second at first, then after longer waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client.client import Client
from penstock.client.inbox import unique_token
from penstock.client.options import ClientOptions, tls_context
from penstock.config.remotes import RemoteConfig
from penstock.errors import ConfigError, PenstockError, PermissionDenied
from penstock.hot.wire import Op
from penstock.jetstream.copies.remote import Receive, RemoteWatcher
from penstock.protocol import wellknown

log = logging.getLogger("penstock")

RETRY_S = 1.0
RETRY_S_MAX = 30.0
CONNECT_TIMEOUT_S = 5.0
PING_INTERVAL_S = 10.0
"""A server that vanishes silently is noticed after two of these."""
CLOSE_TIMEOUT_S = 3.0


class Remotes:
    """The other servers of a configuration."""

    def __init__(
        self, configs: tuple[RemoteConfig, ...], *, name: str, flush: Callable[[], None]
    ) -> None:
        """Prepare to connect as `name`; call `flush` after each action."""
        self._remotes = [(each, ClientRemote(each, name=name, flush=flush)) for each in configs]

    def of_account(self, account: str) -> dict[str, ClientRemote]:
        """Return the remotes that an account may use, by their API prefix."""
        return {each.api: remote for each, remote in self._remotes if each.account == account}

    async def close(self) -> None:
        """Send everything left, and disconnect."""
        await asyncio.gather(*(remote.close() for _, remote in self._remotes))


class ClientRemote:
    """One remote server."""

    def __init__(self, config: RemoteConfig, *, name: str, flush: Callable[[], None]) -> None:
        self.api = config.api_there
        self._name = config.name
        self._options = _options(config, name)
        self._flush = flush
        self._watchers: list[RemoteWatcher] = []
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_idle = asyncio.Event()

    # For the streams that copy from it.

    def attach(self, watcher: RemoteWatcher) -> None:
        """Connect for the first watcher, and report changes to it."""
        self._watchers.append(watcher)
        self._is_idle.clear()
        loop = asyncio.get_running_loop()
        if self._client is not None:
            loop.call_soon(self._tell_connected, watcher)
        elif self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    def detach(self, watcher: RemoteWatcher) -> None:
        """Disconnect soon, if this was the last watcher."""
        self._watchers.remove(watcher)
        if not self._watchers:
            self._is_idle.set()

    def new_inbox(self) -> str:
        """Return a unique prefix of subjects."""
        return f"{self._options['inbox_prefix']}.{unique_token()}"

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        """Pass messages on a subject to `receive`, in batches as they were read."""

        def take(operations: list[Op]) -> None:
            receive(
                [
                    (subject, reply, data[:header_bytes], data[header_bytes:])
                    for _, subject, _, reply, header_bytes, data in operations
                ]
            )
            self._flush()

        client = self._client
        if client is None:
            return lambda: None
        interest = client.listen(subject, take)
        return lambda: client.unlisten(interest)

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Send a message, if there is a connection."""
        if self._client is not None:
            self._client.send_nowait(subject, payload, reply, header)

    # The connection.

    async def close(self) -> None:
        """Close the connection and wait for that; all watchers must be gone."""
        if self._task is None:
            return
        self._is_idle.set()
        _, late = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        wait_s = RETRY_S
        while self._watchers:
            try:
                await self._stay_connected()
                wait_s = RETRY_S
            except (PenstockError, OSError, ValueError) as error:
                self._tell_lost(f"remote `{self._name}`: {error}")
            await self._pause(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _stay_connected(self) -> None:
        """Connect, and return when the connection is lost or no longer needed."""
        closed = asyncio.Event()
        reasons: list[Exception] = []
        options = ClientOptions(
            **self._options,
            on_error=self._on_error,
            on_disconnected=reasons.append,
            on_closed=closed.set,
        )
        client = Client(options)
        await client.connection.open()
        self._client = client
        log.info("Remote '%s': connected to %s", self._name, client.server)
        for watcher in tuple(self._watchers):
            self._tell_connected(watcher)
        waiting = [asyncio.ensure_future(each.wait()) for each in (closed, self._is_idle)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            self._client = None
        if closed.is_set():
            self._tell_lost(f"remote `{self._name}`: {reasons[0] if reasons else 'closed'}")
            return
        try:
            # The last messages must arrive, such as deletes of consumers that are no longer
            # needed.
            await client.flush(timeout_s=CLOSE_TIMEOUT_S / 2)
        except PenstockError as error:
            log.warning("Remote '%s': %s", self._name, error)
        await client.close()
        for watcher in tuple(self._watchers):
            watcher.on_lost("disconnected")

    async def _pause(self, wait_s: float) -> None:
        try:
            await asyncio.wait_for(self._is_idle.wait(), wait_s)
        except TimeoutError:
            return

    def _tell_connected(self, watcher: RemoteWatcher) -> None:
        if watcher in self._watchers and self._client is not None:
            watcher.on_connected()
            self._flush()

    def _tell_lost(self, reason: str) -> None:
        log.warning("%s", reason)
        for watcher in tuple(self._watchers):
            watcher.on_lost(reason)
        self._flush()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, PermissionDenied):
            for watcher in tuple(self._watchers):
                watcher.on_refused(f"remote `{self._name}`: {error}")
            self._flush()


def _options(config: RemoteConfig, name: str) -> dict[str, Any]:
    """Return the settings of the client; raise ConfigError if they are invalid."""
    settings: dict[str, Any] = {
        "servers": config.urls,
        "name": name,
        "inbox_prefix": wellknown.INBOX,
        "user": config.user,
        "password": config.password,
        "token": config.token,
        "credentials": config.credentials,
        "connect_timeout_s": CONNECT_TIMEOUT_S,
        "ping_interval_s": PING_INTERVAL_S,
        "reconnect": False,
    }
    try:
        if config.nkey is not None:
            settings["nkey_seed"] = Path(config.nkey).read_text().strip()
        if config.tls is not None:
            tls = config.tls
            settings["tls"] = tls_context(tls.ca_file, tls.cert_file, tls.key_file)
            settings["tls_handshake_first"] = tls.handshake_first
        ClientOptions(**settings)
    except (OSError, ConfigError) as error:
        raise ConfigError(f'`jetstream.remotes`: "{config.name}": {error}') from error
    return settings
