"""
The process around a server: its signals, its pid file and its ports file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.cli.main import executable
from penstock.cli.serve import log
from penstock.config.file.loading import ServerOptions
from penstock.errors import ConfigError, PenstockError, reason
from penstock.net.collector import Collector
from penstock.net.listeners.addresses import EVERY_ADDRESS, address_of
from penstock.net.server import Server

if TYPE_CHECKING:
    from penstock.net.allocator import Allocator

logger = logging.getLogger("penstock")

SETTLED_S = 0.2
"""How long after the start to do what its first clients need not wait for."""
QUIET_S = 2.0
"""After this long without traffic, a server returns memory to the system."""
OF_PROCESS = ("pid_file", "ports_file_dir")
"""Settings of files that are written once, when the server has started."""
FAMILIES = {
    socket.AF_INET: ("127.0.0.1", "192.0.2.1"),
    socket.AF_INET6: ("::1", "2001:db8::1"),
}
"""
For each family, the loopback address and an unassigned one. Asking the kernel for a route
to the unassigned address sends nothing, and reveals our own address.
"""


class Process:
    """Runs one server from start to stop, and handles signals in between."""

    def __init__(
        self, options: ServerOptions, load_again: Callable[[], ServerOptions], collector: Collector
    ) -> None:
        self._options = options
        self._load_again = load_again
        self._server = Server(options.server)
        self._server.load_again = self._reload_now
        self._server.options = options
        self._collector = collector
        self._stop_asked = asyncio.Event()
        self._lame_duck_asked = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._files: list[str] = []

    async def run(self) -> int:
        """Serve until stopped. Return the exit code."""
        self._handle_signals()
        try:
            self._write_pid_file()
            await self._server.start()
            self._collector.begin()
            asyncio.get_running_loop().call_later(SETTLED_S, self._keep_memory)
            await self._serve()
        except (OSError, PenstockError) as error:
            logger.critical("%s", error)
            return 1
        finally:
            for path in self._files:
                with suppress(FileNotFoundError):
                    os.unlink(path)
        return 0

    async def _serve(self) -> None:
        """Return once the server has stopped, by itself or on a signal."""
        stopped = asyncio.ensure_future(self._server.wait_stopped())
        asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            self._write_ports_file()
            await asyncio.wait({stopped, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            await self._server.stop()

    def _keep_memory(self) -> None:
        """Keep freed memory from now on: loading `ctypes` for it would delay the start."""
        from penstock.net.allocator import Allocator

        allocator = Allocator()
        allocator.keep_freed()
        self._look_after(allocator)

    def _look_after(self, allocator: Allocator) -> None:
        traffic = sum(self._server.broker.totals())
        allocator.give_back_if_quiet(traffic)
        self._collector.look_at_all_if_quiet(traffic)
        asyncio.get_running_loop().call_later(QUIET_S, self._look_after, allocator)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop, "interrupt")
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._reopen_log)
        loop.add_signal_handler(signal.SIGUSR2, self._lame_duck)

    def _stop(self, name: str) -> None:
        logger.info('Trapped "%s" signal', name)
        self._stop_asked.set()

    def _terminate(self) -> None:
        # In lame duck mode the clients leave in their own time.
        if not self._lame_duck_asked:
            self._stop("terminated")

    def _lame_duck(self) -> None:
        if not self._lame_duck_asked:
            self._lame_duck_asked = True
            self._spawn(self._server.lame_duck())

    def _reopen_log(self) -> None:
        if log.reopen():
            logger.info("File log re-opened")
        else:
            logger.warning("No log file to reopen: the log goes to standard error")

    def _reload(self) -> None:
        logger.info('Trapped "hangup" signal')
        self._reload_now()

    def _reload_now(self) -> str:
        """Reload and apply the configuration; return the error, if any."""
        try:
            options = self._load_again()
            log.configure(options.process)
            for warning in options.warnings:
                logger.warning("%s", warning)
            self._tell_changes(options, self._server.reload(options.server))
        except (ConfigError, OSError) as error:
            logger.error("Failed to reload server configuration: %s", error)
            return str(error)
        logger.info("Reloaded server configuration")
        return ""

    def _tell_changes(self, options: ServerOptions, waiting: list[str]) -> None:
        """Log every changed setting. Those that wait for a restart are already logged."""
        from penstock.config.file.explaining import settings

        before = {row.directive: row.value for row in settings(self._options)}
        for row in settings(options):
            name, value = row.directive, row.value
            if value == before.get(name) or {name, name.partition(".")[0]} & set(waiting):
                continue
            if name in OF_PROCESS:
                logger.warning("`%s` has changed: restart the server to apply it", name)
            else:
                logger.info("Reloaded: %s = %s", name, value)
        self._options = self._server.options = options

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _write_pid_file(self) -> None:
        """Write the pid file; like nats-server, do not start without it."""
        path = self._options.process.pid_file
        if path:
            try:
                self._write(path, str(os.getpid()))
            except OSError as error:
                raise ConfigError(f"`pid_file`: cannot write {path}: {reason(error)}") from error

    def _write_ports_file(self) -> None:
        """Write the ports file, once the server can be reached; serve on if that fails."""
        directory = self._options.process.ports_file_dir
        if directory:
            path = os.path.join(directory, f"{executable()}_{os.getpid()}.ports")
            try:
                self._write(path, json.dumps(ports(self._server)))
            except OSError as error:
                logger.error("`ports_file_dir`: cannot write %s: %s", path, reason(error))

    def _write(self, path: str, text: str) -> None:
        """Write a file that is removed at the end. Readers never see half of it."""
        from pathlib import Path

        from penstock.files import replace_file

        replace_file(Path(path), text)
        self._files.append(path)


def ports(server: Server) -> dict[str, list[str]]:
    """Return the URLs of a server, as the ports file lists them."""
    settings = server.config
    urls = {"nats": _urls("nats", settings.host, server.port)}
    if server.http_port:
        scheme = "http" if settings.http_port is not None else "https"
        urls["monitoring"] = _urls(scheme, settings.monitor_host, server.http_port)
    if settings.websocket is not None:
        scheme = "ws" if settings.websocket.tls is None else "wss"
        urls["websocket"] = _urls(scheme, settings.websocket.host, server.websocket_port)
    return urls


def _urls(scheme: str, host: str, port: int) -> list[str]:
    hosts = _own_addresses() if host in EVERY_ADDRESS else [host]
    return [f"{scheme}://{address_of(each, port)}" for each in hosts]


def _own_addresses() -> list[str]:
    """Return this machine's addresses, as seen from itself and from other machines."""
    found = []
    for family, (loopback, elsewhere) in FAMILIES.items():
        for address in (loopback, elsewhere):
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect((address, 9))
                    found.append(probe.getsockname()[0])
            except OSError:
                continue
    return list(dict.fromkeys(found))
