"""Every directive and every flag, one by one: taken, warned of, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    "HandshakeFirst": "auto",
    "TlsVersion": '"1.3"',
    "address": '"h:1"',
    "Mapping[str, str]": "{ a: b }",
}
NEEDS_MORE = {
    **dict.fromkeys(("https_port", "https"), "a certificate"),
    **dict.fromkeys(("authorization.user", "authorization.password"), "the other one"),
    **dict.fromkeys(("no_auth_user", "system_account", "resolver", "operator"), "accounts"),
    "resolver_preload": "an operator",
    "max_pending": "a `max_payload` below it",
}
"""Directives that make no sense alone; what they do is tested where they do it."""

ALONE = sorted(
    name
    for name, directive in DIRECTIVES.items()
    if directive.kind in VALUES and name not in NEEDS_MORE
)


def written(name: str, value: str) -> str:
    """Return a directive as a file has it, with what it needs around it."""
    for prefix, around in sorted(AROUND.items(), key=lambda item: -len(item[0])):
        if name.startswith(prefix):
            return around % f"{name.removeprefix(prefix)}: {value}"
    return f"{name}: {value}"


def loaded(path: Path, text: str, *flags: str):  # type: ignore[no-untyped-def]
    path.write_text(text)
    given, _ = parse_flags(flags, (*FLAGS, *IGNORED_FLAGS), REFUSED_FLAGS)
    return load(str(path), {}, given)


def complaint(path: Path, text: str) -> str:
    """Return what is wrong with a text, if anything is."""
    try:
        loaded(path, text)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ALONE)
def test_a_directive_is_taken(name: str, tmp_path: Path) -> None:
    options = loaded(tmp_path / "x.conf", written(name, VALUES[DIRECTIVES[name].kind]))

    taken = [source for source in options.sources.values() if "x.conf:1:" in source]
    assert taken
    assert options.warnings == ()


@pytest.mark.parametrize("name", sorted({*DIRECTIVES, *ALIASES} - {*ALONE}))
def test_a_directive_is_known(name: str, tmp_path: Path) -> None:
    """A block where none belongs: the reader of the directive says so, or takes it."""
    said = complaint(tmp_path / "x.conf", written(name, "{ no_such: [] }"))

    assert f"unknown directive `{name}`" not in said


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_has_no_effect_is_warned_of(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.conf"

    (warning,) = loaded(path, written(name, "{ port: 1 }" if name in JOINING else "text")).warnings

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


@pytest.mark.parametrize("name", REFUSED_FLAGS)
def test_a_flag_that_is_refused_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"flag -{name} is not supported: "):
        parse_flags([f"-{name}", "x"], FLAGS, REFUSED_FLAGS)
