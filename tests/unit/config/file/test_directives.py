"""Every directive and every flag, one by one: taken, warned of, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.contract import credentials
from tests.contract.credentials import Key

from penstock.cli.serve.serve import ALL_FLAGS
from penstock.config.file.directives import (
    ALIASES,
    DIRECTIVES,
    FLAGS,
    IGNORED,
    IGNORED_FLAGS,
    JOINING,
    REFUSED_FLAGS,
    UNSUPPORTED,
)
from penstock.config.file.flags import parse_flags
from penstock.config.file.loading import load
from penstock.errors import ConfigError

TLS = 'cert_file: "c", key_file: "k"'
AROUND = {
    "tls.": f"tls {{ {TLS}, %s }}",
    "websocket.tls.": f"websocket {{ port: 1, tls {{ {TLS}, %s }} }}",
    "websocket.": "websocket { port: 1, no_tls: true, %s }",
    "jetstream.": "jetstream { %s }",
    "authorization.": "authorization { %s }",
}
"""What a directive inside a block needs around it."""

VALUES = {
    "bool": "true",
    "int": "1024",
    "int | None": "1024",
    "str": "text",
    "str | None": "text",
    "float": '"45s"',
    "float | Literal['always']": "always",
    "Literal['chacha', 'aes']": "aes",
    "HandshakeFirst": "auto",
    "TlsVersion": '"1.3"',
    "address": '"h:1"',
    "Mapping[str, str]": "{ a: b }",
}
USERS = "users: [ { user: a, password: b } ]"
OPERATOR = Key(credentials.OPERATOR)
TOKEN = OPERATOR.jwt(OPERATOR.public, "o", {"type": "operator"})
ACCOUNT = Key(credentials.ACCOUNT)
PRELOADED = f"{ACCOUNT.public}: {OPERATOR.jwt(ACCOUNT.public, 'a', {'type': 'account'})}"
OF_TLS = {
    "certs": "{ certs: [ { cert_file: c, key_file: k } ] }",
    "cipher_suites": f"{{ {TLS}, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256] }}",
    "curve_preferences": f"{{ {TLS}, curve_preferences: [CurveP256] }}",
    "pinned_certs": f"{{ {TLS}, pinned_certs: ['{'a' * 64}'] }}",
}
WHOLE = {
    "accounts": f"accounts {{ A {{ {USERS} }} }}",
    "authorization.auth_callout": (
        f"authorization {{ auth_callout {{ issuer: {ACCOUNT.public}, auth_users: [a] }}, {USERS} }}"
    ),
    "authorization.default_permissions": (
        f"authorization {{ default_permissions {{ publish: a }}, {USERS} }}"
    ),
    "authorization.user": "authorization { user: a, password: b }",
    "authorization.password": "authorization { user: a, password: b }",
    "authorization.users": f"authorization {{ {USERS} }}",
    "https": f"https: 'h:1', tls {{ {TLS} }}",
    "https_port": f"https_port: 1, tls {{ {TLS} }}",
    "jetstream.remotes": "jetstream { remotes: [ { name: R, url: 'nats://h:1' } ] }",
    "mappings": "mappings { a: b }",
    "max_pending": "max_pending: 2000000, max_payload: 1000",
    "monitor.actions": f"monitor {{ actions: true }}, http_port: 1, authorization {{ {USERS} }}",
    "no_auth_user": f"no_auth_user: a, authorization {{ {USERS} }}",
    "operator": f"resolver: MEMORY, operator: {TOKEN}",
    "resolver": f"resolver: MEMORY, operator: {TOKEN}",
    "resolver_preload": f"resolver: MEMORY, operator: {TOKEN}, resolver_preload {{ {PRELOADED} }}",
    "server_tags": "server_tags: [a]",
    "system_account": f"system_account: S, accounts {{ S {{ {USERS} }} }}",
    "trusted_keys": f"resolver: MEMORY, trusted_keys: [{OPERATOR.public}]",
    "websocket.allowed_origins": (
        "websocket { port: 1, no_tls: true, allowed_origins: ['http://a'] }"
    ),
    **{f"tls.{name}": f"tls {block}" for name, block in OF_TLS.items()},
    **{
        f"websocket.tls.{name}": f"websocket {{ port: 1, tls {block} }}"
        for name, block in OF_TLS.items()
    },
}
"""Directives that need a line of their own, with all that they need around them."""
SETS = {
    "listen": "port",
    "http": "http_port",
    "https": "https_port",
    "websocket.listen": "websocket.port",
}
"""Directives that set the setting of another name."""


def written(name: str, value: str) -> str:
    """Return a directive as a file has it, with what it needs around it."""
    if name in WHOLE:
        return WHOLE[name]
    for prefix, around in sorted(AROUND.items(), key=lambda item: -len(item[0])):
        if name.startswith(prefix):
            return around % f"{name.removeprefix(prefix)}: {value}"
    return f"{name}: {value}"


def loaded(path: Path, text: str, *flags: str):  # type: ignore[no-untyped-def]
    path.write_text(text)
    given, _ = parse_flags(flags, (*FLAGS, *IGNORED_FLAGS), REFUSED_FLAGS)
    return load(str(path), {}, given)


def taken(path: Path, directive: str, text: str) -> None:
    options = loaded(path, text)

    assert f"{path}:1:" in options.sources[SETS.get(directive, directive)]
    assert options.warnings == ()


@pytest.mark.parametrize("name", DIRECTIVES)
def test_a_directive_is_taken(name: str, tmp_path: Path) -> None:
    taken(tmp_path / "x.conf", name, written(name, VALUES.get(DIRECTIVES[name].kind, "")))


@pytest.mark.parametrize("alias", ALIASES)
def test_another_name_of_a_directive_is_taken_for_it(alias: str, tmp_path: Path) -> None:
    name = ALIASES[alias]
    if name in WHOLE:
        first, other = (each.rpartition(".")[2] for each in (name, alias))
        text = re.sub(rf"\b{first}\b(?=:| {{)", other, WHOLE[name], count=1)
        assert other in text
    else:
        text = written(alias, VALUES[DIRECTIVES[name].kind])

    taken(tmp_path / "x.conf", name, text)


BLOCK_OF = {"jetstream.limits": "{ max_ack_pending: 1 }"}


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_has_no_effect_is_warned_of(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    value = BLOCK_OF.get(name, "{ port: 1 }" if name in JOINING else "text")

    (warning,) = loaded(path, written(name, value)).warnings

    key = name.rpartition(".")[2]
    assert warning.startswith(f"{path}:1:")
    assert warning.endswith(f": `{key}` has no effect: {IGNORED[name]}")


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_refused_says_what_to_do_instead(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not supported: ") as refused:
        loaded(tmp_path / "x.conf", written(name, "text"))

    assert UNSUPPORTED[name] in str(refused.value)


@pytest.mark.parametrize("block", JOINING)
def test_naming_another_server_is_refused(block: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"`{block}.{JOINING[block]}` is not supported"):
        loaded(tmp_path / "x.conf", f"{block} {{ {JOINING[block]}: [x] }}")


@pytest.mark.parametrize("name", sorted(name for flag in ALL_FLAGS for name in flag.names))
def test_a_flag_is_taken_with_one_dash_or_two(name: str) -> None:
    flags = ALL_FLAGS
    (flag,) = [flag for flag in flags if name in flag.names]
    value = {bool: "true", int: "7", str: "x"}[flag.kind]

    one, _ = parse_flags([f"-{name}={value}"], flags)
    two, _ = parse_flags([f"--{name}={value}"], flags)

    assert [each.flag for each in one] == [each.flag for each in two] == [flag]


@pytest.mark.parametrize("name", sorted(name for flag in IGNORED_FLAGS for name in flag.names))
def test_a_flag_without_effect_is_warned_of(name: str, tmp_path: Path) -> None:
    (flag,) = [flag for flag in IGNORED_FLAGS if name in flag.names]
    value = {bool: "true", int: "7", str: "x"}[flag.kind]

    (warning,) = loaded(tmp_path / "x.conf", "", f"-{name}={value}").warnings

    assert f"-{name}" in warning
    assert "has no effect: " in warning


@pytest.mark.parametrize("name", REFUSED_FLAGS)
def test_a_flag_that_is_refused_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"flag -{name} is not supported: "):
        parse_flags([f"-{name}", "x"], FLAGS, REFUSED_FLAGS)
