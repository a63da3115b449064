"""
Readers of the remotes in a configuration file, in the words of nats-server's leaf nodes.

`jetstream { remotes [ { name: hub, urls: [nats://hub:4222], credentials: hub.creds } ] }`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.config.file.nodes import Node
from penstock.config.file.readers import entries_of, fail, read_boolean, read_text, read_texts
from penstock.config.remotes import RemoteConfig, RemoteTls
from penstock.errors import ConfigError

REMOTE_TEXTS = ("name", "account", "domain", "user", "password", "token", "nkey", "credentials")
REMOTE_KEYS = {
    **{name: name for name in REMOTE_TEXTS},
    **dict.fromkeys(("urls", "url"), "urls"),
    "username": "user",
    "pass": "password",
    "creds": "credentials",
    "tls": "tls",
}
TLS_TEXTS = ("ca_file", "cert_file", "key_file")
TLS_KEYS = {
    **{name: name for name in TLS_TEXTS},
    **dict.fromkeys(("handshake_first", "first", "immediate"), "handshake_first"),
}
TLS_KEYS_UNSUPPORTED = {
    "insecure": "a remote is always verified; name its authority with `ca_file`",
}


def read_remotes(node: Node, name: str) -> tuple[RemoteConfig, ...]:
    """Return a list of remotes."""
    if not isinstance(node.value, list):
        fail(node, f"`{name}` expects a list of remotes, each a block with `name` and `urls`")
    return tuple(_read_remote(item, name) for item in node.value)


def _read_remote(node: Node, name: str) -> RemoteConfig:
    entries = entries_of(node, name, REMOTE_KEYS, {})
    values: dict[str, Any] = {
        key: read_text(entries[key], f"{name}.{key}") for key in REMOTE_TEXTS if key in entries
    }
    if "urls" in entries:
        values["urls"] = read_texts(entries["urls"], f"{name}.urls")
    if "tls" in entries:
        values["tls"] = _read_tls(entries["tls"], f"{name}.tls")
    try:
        return RemoteConfig(**values)
    except ConfigError as error:
        fail(node, str(error))


def _read_tls(node: Node, name: str) -> RemoteTls:
    entries = entries_of(node, name, TLS_KEYS, TLS_KEYS_UNSUPPORTED)
    values: dict[str, Any] = {
        key: read_text(entries[key], f"{name}.{key}") for key in TLS_TEXTS if key in entries
    }
    if "handshake_first" in entries:
        values["handshake_first"] = read_boolean(
            entries["handshake_first"], f"{name}.handshake_first"
        )
    try:
        return RemoteTls(**values)
    except ConfigError as error:
        fail(node, str(error))


READERS: dict[str, Callable[[Node, str], Any]] = {"tuple[RemoteConfig, ...]": read_remotes}
