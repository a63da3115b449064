"""
Readers of setting values: one for each annotation in `config`.

A reader takes a node of the configuration tree and returns the value, or fails with the
node's place. Text is read as it was written, so that `password: 0123` is not a number and
`ping_interval: 2m` is two minutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from penstock.config.accounts import Permissions, ResponseRules, SubjectRules, User
from penstock.config.file.nodes import Block, Node
from penstock.config.transport import FALLBACK_DELAY_S, CertificateFiles, HandshakeFirst, TlsVersion
from penstock.errors import ConfigError
from penstock.protocol import units
from penstock.protocol.subjects import is_valid
from penstock.protocol.times import SECOND_NS

JETSTREAM_WORDS = {"enabled": True, "enable": True, "disabled": False, "disable": False}

USER_KEYS = {
    "user": "user",
    "username": "user",
    "pass": "password",
    "password": "password",
    "nkey": "nkey",
    "permission": "permissions",
    "permissions": "permissions",
    "authorization": "permissions",
    "allowed_connection_types": "connection_types",
    "connection_types": "connection_types",
    "clients": "connection_types",
}
USER_KEYS_UNSUPPORTED = {
    "proxy_required": "Penstock does not support proxies that vouch for clients; remove it",
}
CERTIFICATE_KEYS = {"cert_file": "cert_file", "key_file": "key_file"}
USER_TEXTS = ("user", "password", "nkey")
PERMISSION_KEYS = {
    "pub": "publish",
    "publish": "publish",
    "sub": "subscribe",
    "subscribe": "subscribe",
    "allow_responses": "allow_responses",
    "publish_allow_responses": "allow_responses",
}
RESPONSE_KEYS = {
    "max": "max",
    "max_msgs": "max",
    "max_messages": "max",
    "max_responses": "max",
    "expires": "expires",
    "expiration": "expires",
    "ttl": "expires",
}


def fail(node: Node, reason: str) -> NoReturn:
    """Raise an error about a value, with its place."""
    raise ConfigError(f"Parse error in {node.at}: {reason}")


def read_text(node: Node, name: str) -> str:
    """Return a string. Numbers and booleans are read as text, as they were written."""
    if isinstance(node.value, list | dict):
        fail(node, f"`{name}` expects a string, not {_shown(node)}")
    return node.text


def read_boolean(node: Node, name: str) -> bool:
    """Return a boolean."""
    if not isinstance(node.value, bool):
        fail(node, f"`{name}` expects `true` or `false`, not {_shown(node)}")
    return node.value


def read_number(node: Node, name: str) -> int:
    """Return a whole number or a size."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    # nats-server also reads JetStream sizes from strings, and those are binary.
    if isinstance(node.value, str) and node.value[-1:].isalpha():
        size = units.size_of(node.value, kilo=1024)
        if size is not None:
            return size
    fail(node, f"`{name}` expects a number, not {_shown(node)}")


def read_duration(node: Node, name: str) -> float:
    """Return seconds of a duration such as `1m30s` or `7d`; a plain number means seconds."""
    if (duration_ns := units.duration_of(node.text)) is not None:
        return duration_ns / SECOND_NS
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    fail(node, f'`{name}` expects a duration such as "30s" or "2m", not {_shown(node)}')


def read_jetstream_switch(node: Node, name: str) -> bool:
    """Return whether JetStream is enabled: a boolean, a word, or a block, which enables it."""
    if isinstance(node.value, bool | dict):
        return node.value is not False
    if isinstance(node.value, str) and node.value.lower() in JETSTREAM_WORDS:
        return JETSTREAM_WORDS[node.value.lower()]
    fail(node, f"`{name}` expects a boolean, `enabled`, `disabled` or a block, not {_shown(node)}")


def read_sync(node: Node, name: str) -> float | Literal["always"]:
    """Return the sync interval of storage."""
    return "always" if node.text.lower() == "always" else read_duration(node, name)


def read_cipher(node: Node, name: str) -> Literal["chacha", "aes"]:
    """Return the cipher of the store."""
    match node.text.lower():
        case "chacha" | "chachapoly":
            return "chacha"
        case "aes":
            return "aes"
    fail(node, f"`{name}` expects `chacha` or `aes`, not {_shown(node)}")


def read_handshake_first(node: Node, name: str) -> HandshakeFirst:
    """Return how long to wait for a TLS client to start: a switch, `auto` or a duration."""
    words: dict[str, HandshakeFirst] = {
        **dict.fromkeys(("true", "on", "yes"), 0.0),
        **dict.fromkeys(("false", "off", "no"), None),
        **dict.fromkeys(("auto", "auto_fallback"), FALLBACK_DELAY_S),
    }
    if node.text.lower() in words:
        return words[node.text.lower()]
    if units.duration_of(node.text) is not None:
        return read_duration(node, name)
    fail(node, f"`{name}` expects a boolean, `auto` or a duration, not {_shown(node)}")


def read_tls_version(node: Node, name: str) -> TlsVersion:
    """Return a TLS version that is still secure."""
    if node.text == "1.2":
        return "1.2"
    if node.text == "1.3":
        return "1.3"
    fail(node, f'`{name}` is "1.2" or "1.3", not {_shown(node)}')


def read_texts(node: Node, name: str) -> tuple[str, ...]:
    """Return a list of strings, given as a list or as one string."""
    nodes = node.value if isinstance(node.value, list) else [node]
    return tuple(read_text(item, name) for item in nodes)


def read_text_map(node: Node, name: str) -> Mapping[str, str]:
    """Return a block of strings."""
    return {key: read_text(item, f"{name}.{key}") for key, item in block_of(node, name).items()}


def read_address(node: Node, name: str) -> tuple[str, int]:
    """Return host and port of `host:port`. A plain number is a port without a host."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return "", node.value
    host, colon, port = read_text(node, name).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        fail(node, f"`{name}` needs brackets round the IPv6 address, as in `[::1]:4222`")
    if not colon or not re.fullmatch(r"-1|\d+", port):
        fail(node, f"`{name}` expects `host:port` or a port, not {_shown(node)}")
    return host, int(port)


def read_certificates(node: Node, name: str) -> tuple[CertificateFiles, ...]:
    """Return several certificates with their keys."""
    if not isinstance(node.value, list):
        fail(node, f"`{name}` expects a list of blocks, not {_shown(node)}")
    return tuple(_read_certificate(item, name) for item in node.value)


def _read_certificate(node: Node, name: str) -> CertificateFiles:
    entries = entries_of(node, name, CERTIFICATE_KEYS, {})
    for key in CERTIFICATE_KEYS:
        if key not in entries:
            fail(node, f"each of `{name}` needs a `cert_file` and a `key_file`")
    return CertificateFiles(**{key: read_text(item, key) for key, item in entries.items()})


def read_users(node: Node, name: str) -> tuple[User, ...]:
    """Return the users of an `authorization` block."""
    if not isinstance(node.value, list):
        fail(node, f"`{name}` expects a list of users, not {_shown(node)}")
    return tuple(_read_user(item) for item in node.value)


def read_permissions(node: Node, name: str) -> Permissions:
    """Return the subjects that a user may publish and subscribe to."""
    entries = entries_of(node, name, PERMISSION_KEYS, {})
    publish, subscribe = SubjectRules(), SubjectRules()
    responses = None
    if "publish" in entries:
        publish = _read_rules(entries["publish"], f"{name}.publish", queues=False)
    if "subscribe" in entries:
        subscribe = _read_rules(entries["subscribe"], f"{name}.subscribe", queues=True)
    if "allow_responses" in entries:
        responses = _read_responses(entries["allow_responses"], f"{name}.allow_responses")
    return Permissions(publish=publish, subscribe=subscribe, allow_responses=responses)


READERS: dict[str, Callable[[Node, str], Any]] = {
    "str": read_text,
    "str | None": read_text,
    "bool": read_boolean,
    "int": read_number,
    "int | None": read_number,
    "float": read_duration,
    "float | Literal['always']": read_sync,
    "Literal['chacha', 'aes']": read_cipher,
    "HandshakeFirst": read_handshake_first,
    "TlsVersion": read_tls_version,
    "tuple[str, ...]": read_texts,
    "Mapping[str, str]": read_text_map,
    "tuple[User, ...]": read_users,
    "tuple[CertificateFiles, ...]": read_certificates,
    "Permissions | None": read_permissions,
    "address": read_address,
}
"""The reader of each setting, by the annotation of its field."""


def _read_user(node: Node) -> User:
    entries = entries_of(node, "users", USER_KEYS, USER_KEYS_UNSUPPORTED)
    texts = {key: read_text(entries[key], key) for key in USER_TEXTS if key in entries}
    permissions, types = None, frozenset[str]()
    if "permissions" in entries:
        permissions = read_permissions(entries["permissions"], "permissions")
    if "connection_types" in entries:
        given = read_texts(entries["connection_types"], "allowed_connection_types")
        types = frozenset(name.upper() for name in given)
    try:
        return User(
            name=texts.get("user", ""),
            password=texts.get("password", ""),
            nkey=texts.get("nkey", ""),
            permissions=permissions,
            connection_types=types,
        )
    except ConfigError as error:
        fail(node, str(error))


def _read_rules(node: Node, name: str, *, queues: bool) -> SubjectRules:
    """Return allowed and denied subjects: a subject, a list, or a block of the two."""
    if not isinstance(node.value, dict):
        return SubjectRules(allow=_read_subjects(node, name, queues=queues))
    entries = entries_of(node, name, {"allow": "allow", "deny": "deny"}, {})
    rules = {
        key: _read_subjects(item, f"{name}.{key}", queues=queues) for key, item in entries.items()
    }
    return SubjectRules(**rules)


def _read_subjects(node: Node, name: str, *, queues: bool) -> tuple[str, ...]:
    subjects = read_texts(node, name)
    if not subjects and not name.endswith(".deny"):
        # nats-server reads an empty list as "everything", which is rarely what its writer
        # means.
        fail(node, f'`{name}` is an empty list; to allow nothing, write `deny: ">"`')
    for subject in subjects:
        words = subject.split() if queues else [subject]
        if len(words) not in (1, 2) or not all(is_valid(word.encode()) for word in words):
            fail(node, f'`{name}` has an invalid subject "{subject}"')
    return subjects


def _read_responses(node: Node, name: str) -> ResponseRules | None:
    """Return the rules for replies: a switch, or a block of limits. Zero is the default."""
    if isinstance(node.value, bool):
        return ResponseRules() if node.value else None
    entries = entries_of(node, name, RESPONSE_KEYS, {})
    usual = ResponseRules()
    messages_max, expires_s = 0, 0.0
    if "max" in entries:
        messages_max = read_number(entries["max"], f"{name}.max")
    if "expires" in entries:
        expires_s = read_duration(entries["expires"], f"{name}.expires")
    return ResponseRules(
        messages_max=messages_max or usual.messages_max, expires_s=expires_s or usual.expires_s
    )


def entries_of(
    node: Node, name: str, known: Mapping[str, str], unsupported: Mapping[str, str]
) -> Block:
    """Return the entries of a block under their canonical names."""
    entries: Block = {}
    for key, item in block_of(node, name).items():
        if key.lower() in known:
            entries[known[key.lower()]] = item
        elif key.lower() in unsupported:
            fail(item, f"`{key}` is not supported: {unsupported[key.lower()]}")
        elif not item.used:
            fail(item, f"unknown field `{key}` in `{name}`; hint: one of {', '.join(known)}")
    return entries


def block_of(node: Node, name: str) -> Block:
    if not isinstance(node.value, dict):
        fail(node, f"`{name}` expects a block, not {_shown(node)}")
    return node.value


def _shown(node: Node) -> str:
    """Return a value for an error message."""
    if isinstance(node.value, dict):
        return "a block"
    return "a list" if isinstance(node.value, list) else f'"{node.text}"'
