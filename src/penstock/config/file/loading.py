"""
From configuration file, environment and command line to the configuration of a server.

Each source becomes directives, a flat mapping of names such as `port` or
`jetstream.store_dir` to values that know where they were written. Later sources win: file,
then environment, then flags. The result is read into the dataclasses of `config`, and all
its errors are reported together.

A directive's environment variable is `PENSTOCK__` and its name, with `__` for the dot:
`PENSTOCK__JETSTREAM__STORE_DIR`. Two underscores, because container platforms set names
like `PENSTOCK_PORT` for their own purposes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeVar

from penstock.config.accounts import User
from penstock.config.file.directives import (
    ALIASES,
    BLOCK_ALIASES,
    BLOCKS,
    CLUSTER,
    DIRECTIVES,
    IGNORED,
    IGNORED_FLAGS,
    JOINING,
    UNSUPPORTED,
    WEBSOCKET,
    field_directives,
)
from penstock.config.file.flags import Given
from penstock.config.file.nodes import Block, Node
from penstock.config.file.readers import READERS, fail, read_address, read_jetstream_switch
from penstock.config.frozen import dataclass
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ProcessConfig, ServerConfig
from penstock.config.transport import TlsConfig, WebSocketConfig
from penstock.errors import ConfigError
from penstock.protocol import times
from penstock.protocol.suggestions import nearest

ENVIRONMENT_PREFIX = "PENSTOCK__"
ADDRESSES = {
    "listen": ("host", "port"),
    "http": ("http_host", "http_port"),
    "https": ("http_host", "https_port"),
    "websocket.listen": ("websocket.host", "websocket.port"),
}

MEANINGS: dict[tuple[str, Any], Any] = {
    ("port", 0): 4222,
    ("max_payload", 0): Limits().max_payload,
    ("http_port", 0): None,
    ("https_port", 0): None,
    ("max_connections", -1): 0,
    ("max_subscriptions", -1): 0,
    ("jetstream.max_mem", -1): None,
    ("jetstream.max_file", -1): None,
}
"""Numbers with a special meaning in nats-server, and Penstock's value for each."""

LAME_DUCK_DURATION_S_MIN = 30
"""Clients disconnected faster than this all reconnect elsewhere at once."""

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of a server process, from all sources together."""

    server: ServerConfig
    process: ProcessConfig
    sources: Mapping[str, str] = field(default_factory=dict)
    """The place of each directive that was given."""
    warnings: tuple[str, ...] = ()
    """Warnings about directives without effect."""


class _Findings:
    """The errors and warnings of a configuration."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []


def load(path: str | None, environ: Mapping[str, str], given: Iterable[Given]) -> ServerOptions:
    """Return the options from a configuration file, the environment and the flags."""
    findings = _Findings()
    directives: Block = {}
    for source in (_file_block(path, environ), _environment_block(environ)):
        _override(directives, dict(_flatten(source, "", findings)))
    _override(directives, _flag_directives(given, findings))
    options = _Builder(directives, findings.errors, environ).options()
    if findings.errors or options is None:
        raise ConfigError("\n".join(findings.errors))
    return replace(options, warnings=tuple(findings.warnings))


def _flatten(block: Block, prefix: str, findings: _Findings) -> Iterator[tuple[str, Node]]:
    """Yield the directives of a block under their canonical names."""
    for key, node in block.items():
        written = prefix + key.lower()
        name = ALIASES.get(written) or BLOCK_ALIASES.get(written, written)
        try:
            if name in BLOCKS:
                yield from _flatten_block(name, node, findings)
            elif name in ADDRESSES:
                yield from _split_address(name, node)
            elif name in DIRECTIVES:
                yield name, node
            elif name in IGNORED:
                _ignore(name, key, node, findings)
            elif not node.used and not (name in UNSUPPORTED and node.value is False):
                fail(node, _unknown(written, key))
        except ConfigError as error:
            findings.errors.append(str(error))


def _ignore(name: str, key: str, node: Node, findings: _Findings) -> None:
    """Warn about a directive that Penstock ignores; refuse it if it names other servers."""
    from penstock.config.file import ignoredreaders

    if name in ignoredreaders.BLOCKS and node.value is not False:
        ignoredreaders.check_ignored(node, name)
    others = node.value.get(JOINING.get(name, "")) if isinstance(node.value, dict) else None
    if others is not None and others.value:
        fail(others, f"`{name}.{JOINING[name]}` is not supported: {CLUSTER}")
    if node.value is not False:
        findings.warnings.append(f"{node.at}: `{key}` has no effect: {IGNORED[name]}")


def _flatten_block(name: str, node: Node, findings: _Findings) -> Iterator[tuple[str, Node]]:
    """Yield the directives inside a block. The JetStream block is also a switch."""
    if name == "jetstream":
        switch = read_jetstream_switch(node, name)
        yield "jetstream.enabled", Node(switch, node.at, str(switch).lower())
    elif name == "tls":
        yield "tls.enabled", Node(True, node.at, "true")
    if name != "jetstream" and not isinstance(node.value, dict):
        fail(node, f"`{name}` expects a block")
    if isinstance(node.value, dict):
        yield from _flatten(node.value, f"{name}.", findings)


def _split_address(name: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the host, if any, and the port of an address."""
    host, port = read_address(node, name)
    host_name, port_name = ADDRESSES[name]
    if host:
        yield host_name, Node(host, node.at, host)
    yield port_name, Node(port, node.at, str(port))


def _unknown(written: str, key: str) -> str:
    """Return the error about an unknown directive."""
    if written in UNSUPPORTED:
        return f"`{key}` is not supported: {UNSUPPORTED[written]}"
    # Suggest an alias only as a last resort: there are many, and most are obscure.
    meant = nearest(written, [*DIRECTIVES, *BLOCKS]) or nearest(written, [*ALIASES])
    return f"unknown directive `{written}`" + (f"; did you mean `{meant}`?" if meant else "")


def _file_block(path: str | None, environ: Mapping[str, str]) -> Block:
    if path is None:
        return {}
    from penstock.config.file import language

    return language.parse_file(path, environ)


def _environment_block(environ: Mapping[str, str]) -> Block:
    """Return the environment's directives as a block, as a file would have it."""
    block: Block = {}
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        *outer, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        source = f"environment variable {name}"
        inner = block
        for part in outer:
            holder = inner.setdefault(part, Node({}, source))
            if not isinstance(holder.value, dict):
                fail(holder, f"`{part}` is set both as a whole and in part")
            inner = holder.value
        inner[key] = _environment_value(environ, name, source)
    return block


def _environment_value(environ: Mapping[str, str], name: str, source: str) -> Node:
    from penstock.config.file import language

    return language.parse_value(environ[name], source=source, environ=environ)


def _flag_directives(given: Iterable[Given], findings: _Findings) -> Block:
    directives = {}
    for flag, value, spelling in given:
        if flag in IGNORED_FLAGS:
            findings.warnings.append(f"{spelling} has no effect: {flag.doc}")
        for name in flag.directives:
            directives[name] = Node(value, spelling, str(value))
    return directives


def _override(directives: Block, later: Block) -> None:
    """Let a later source win. Credentials of one kind replace those of another."""
    if "authorization.token" in later:
        directives.pop("authorization.user", None)
        directives.pop("authorization.password", None)
    elif "authorization.user" in later or "authorization.password" in later:
        directives.pop("authorization.token", None)
    directives.update(later)


class _Builder:
    """Reads directives into the dataclasses, and collects their errors."""

    def __init__(self, directives: Block, errors: list[str], environ: Mapping[str, str]) -> None:
        self.directives = directives
        self.errors = errors
        self.environ = environ

    def options(self) -> ServerOptions | None:
        """Return the options, or `None` if there were errors."""
        server = self._make(
            ServerConfig,
            authorization=self._make(Authorization, **self._single_user()),
            limits=self._make(Limits),
            jetstream=self._jetstream(),
            tls=self._tls(),
            websocket=self._websocket(),
        )
        process = self._make(ProcessConfig)
        if server is None or process is None or self.errors:
            return None
        self._check(lambda: _check_limits(server.limits))
        sources = {name: _source(node) for name, node in self.directives.items()}
        return ServerOptions(server=server, process=process, sources=sources)

    def _make(self, config: type[Made], prefix: str = "", **extra: Any) -> Made | None:
        """Return an instance of `config` from its directives; `None` if there are errors."""
        values = {
            directive.field_name: self._read(directive.name)
            for directive in field_directives(config, prefix)
            if directive.name in self.directives
        }
        return None if self.errors else self._check(lambda: config(**{**values, **extra}))

    def _read(self, name: str) -> Any:
        """Return the value of a given directive."""
        reader = reader_of(DIRECTIVES[name].kind)
        value = self._check(lambda: reader(self.directives[name], name))
        return MEANINGS.get((name, value), value) if isinstance(value, int) else value

    def _single_user(self) -> dict[str, Any]:
        """Return the user of `authorization.user`, if there is one."""
        names = [n for n in ("user", "password") if f"authorization.{n}" in self.directives]
        if not names:
            return {}
        node = self.directives[f"authorization.{names[0]}"]
        has_users = "authorization.users" in self.directives
        if "user" not in names:
            if not has_users:
                self._check(lambda: fail(node, "`password` needs a `user`"))
            # Beside a list it is a variable: `PASS: x, users: [{user: a, password:
            # $PASS}]`.
            return {}
        if has_users:
            self._check(lambda: fail(node, "there is both a single user and a list of `users`"))
        user, password = (
            self._read(f"authorization.{name}") if name in names else ""
            for name in ("user", "password")
        )
        return {"users": (User(name=user, password=password),)}

    def _jetstream(self) -> JetStreamConfig | None:
        """Return the configuration of JetStream if it is enabled."""
        if "jetstream.enabled" not in self.directives or not self._read("jetstream.enabled"):
            return None
        default = {} if "jetstream.store_dir" in self.directives else self._default_store()
        return self._make(JetStreamConfig, **default)

    def _websocket(self) -> WebSocketConfig | None:
        """Return the WebSocket listener, if it has a port."""
        if "websocket.port" not in self.directives or not self._read("websocket.port"):
            return None
        return self._make(WebSocketConfig, tls=self._tls(WEBSOCKET))

    def _tls(self, prefix: str = "") -> TlsConfig | None:
        """Return the TLS settings of a listener, if it has any and TLS is not off."""
        if "tls.enabled" in self.directives and not prefix and not self._read("tls.enabled"):
            return None
        if not any(name.startswith(f"{prefix}tls.") for name in self.directives):
            return None
        for name in (f"{prefix}tls.cipher_suites", f"{prefix}tls.curve_preferences"):
            node = self.directives.get(name)
            if node is not None and node.value == []:
                self._check(partial(fail, node, f"`{name}` is empty: set it, or leave it out"))
        return self._make(TlsConfig, prefix)

    def _default_store(self) -> dict[str, str]:
        data = self.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
        return {"store_dir": os.path.join(data, "penstock", "jetstream")}

    def _check(self, make: Callable[[], Made]) -> Made | None:
        """Return the result of `make`. Note an error, with the place of the directive it names."""
        try:
            return make()
        except ConfigError as error:
            self.errors.append(self._placed(str(error)))
            return None

    def _placed(self, message: str) -> str:
        for name in re.findall(r"`([a-z_.]+)`", message):
            name = "tls.enabled" if name == "tls" else name
            if name in self.directives and not message.startswith("Parse error"):
                return f"Parse error in {self.directives[name].at}: {message}"
        return message


def reader_of(kind: str) -> Callable[[Node, str], Any]:
    """Return the reader of a kind of directive; those of blocks and lists are rarely needed."""
    if kind in READERS:
        return READERS[kind]
    from penstock.config.file import accountreaders, remotereaders

    return (accountreaders.READERS | remotereaders.READERS)[kind]


def _source(node: Node) -> str:
    """Return the place of a directive; a variable has only one place."""
    return node.at.removesuffix(":1:1") if node.at.startswith("environment") else node.at


def _check_limits(limits: Limits) -> None:
    """Refuse limits that contradict each other."""
    if limits.max_payload > limits.max_pending:
        raise ConfigError("`max_payload` must not be higher than `max_pending`")
    if limits.lame_duck_duration < LAME_DUCK_DURATION_S_MIN:
        given = times.duration(round(limits.lame_duck_duration * 1e9))
        raise ConfigError(
            f"invalid `lame_duck_duration` of {given}, "
            f"minimum is {LAME_DUCK_DURATION_S_MIN} seconds"
        )
    if limits.lame_duck_grace_period >= limits.lame_duck_duration:
        raise ConfigError("`lame_duck_duration` must be longer than `lame_duck_grace_period`")
