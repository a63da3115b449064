"""Errors as people see them."""

from __future__ import annotations

import ast
import re
import ssl
from pathlib import Path

import pytest

import penstock
from penstock.cli.arguments import Verb
from penstock.cli.commands import COMMANDS, path_of, verbs_of
from penstock.cli.connection import CONNECTION
from penstock.cli.hints import Complaint, complaint_of, is_fitting, not_found
from penstock.errors import (
    ApiError,
    ConfigError,
    ConnectFailed,
    JetStreamError,
    NoResponders,
    PenstockError,
    PermissionDenied,
    RequestTimeout,
)

OPTIONS = {name for option in CONNECTION for name in option.names}
EVERY_VERB = [(path_of(name, verb), verb) for name in COMMANDS for verb in verbs_of(name)]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def failure(*causes: Exception) -> ConnectFailed:
    error = ConnectFailed("; ".join(f"h:4222: {cause}" for cause in causes))
    error.causes = causes
    return error


def untrusted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code = code
    return error


ERRORS: list[PenstockError] = [
    failure(ConnectionRefusedError()),
    failure(PermissionDenied("Authorization Violation")),
    failure(untrusted(20)),
    failure(untrusted(62)),
    failure(ssl.SSLError("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
    failure(ConnectFailed("TLS is required, but the server does not offer it")),
    RequestTimeout("late"),
    NoResponders("nobody listens"),
    ConfigError("bad; hint: --bus kafka://host:9092"),
]
"""Errors that any command can meet."""


@pytest.mark.parametrize(("path", "verb"), EVERY_VERB, ids=[path for path, _ in EVERY_VERB])
def test_a_hint_names_only_options_of_its_command(path: str, verb: Verb) -> None:
    for error in ERRORS:
        named = OPTION.findall(complaint_of(error, verb.option_names).hint)

        assert set(named) <= verb.option_names, (path, error)


def hints_of(module: str) -> list[str]:
    """Return the hints that a command has in its texts: in its module, or in its folder."""
    path = Path(penstock.__file__).parents[1] / f"{module.replace('.', '/')}.py"
    files = [path] if path.parent.name == "cli" else sorted(path.parent.glob("*.py"))
    strings = (
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return [text.partition("hint: ")[2] for text in strings if "hint: " in text]


@pytest.mark.parametrize("command", [name for name in COMMANDS if verbs_of(name)])
def test_a_hint_in_the_text_of_a_command_names_its_options(command: str) -> None:
    module = COMMANDS[command].module
    beside = [name for name, each in COMMANDS.items() if each.module == module]
    options = {name for each in beside for verb in verbs_of(each) for name in verb.option_names}

    assert [] == [hint for hint in hints_of(module) if not is_fitting(hint, options)]


def test_a_server_that_refuses_us_is_told_from_one_that_is_not_there() -> None:
    hints = [complaint_of(error, OPTIONS).hint for error in ERRORS[:6]]

    assert hints == [
        "start one with `penstock serve -js`, name one with --server or use --context",
        "log in with --user and --password, --token, --creds, --nkey or --context",
        "name the certificate of its authority with --tlsca",
        "the certificate is for another name of the server",
        "does it want a certificate of ours? --tlscert and --tlskey",
        "nats:// instead of tls://, and no certificates, if that is safe here",
    ]


def test_an_option_of_another_command_is_no_hint() -> None:
    assert "" == complaint_of(RequestTimeout("late"), ()).hint
    assert is_fitting("penstock stream create NAME --subjects a", ())
    assert not is_fitting("name it with --bus", OPTIONS)


def test_an_error_has_its_hint_on_a_line_of_its_own() -> None:
    assert str(complaint_of(ConfigError("bad; hint: try"), ())) == "penstock: bad\nhint: try"
    assert str(complaint_of(ConfigError("bad"), ())) == "penstock: bad"
    assert complaint_of(RequestTimeout("late"), OPTIONS).hint == "wait longer with --timeout"
    disabled = JetStreamError(ApiError(503, 10076, "JetStream not enabled"))
    assert complaint_of(disabled, ()).hint == "start the server with JetStream: penstock serve -js"


def test_what_was_meant_is_found_in_any_case() -> None:
    assert not_found("stream", "orders", ["ORDERS", "X"], command="c") == Complaint(
        "no stream `orders`", "did you mean `ORDERS`?"
    )
    assert not_found("stream", "a", ["ZZZ"], command="c").hint == "c ls"
    assert not_found("stream", "a", [], command="c").hint == "c create"


def test_an_error_of_the_system_is_told_in_its_words() -> None:
    error = ConnectFailed("h:1: [Errno 111] Connect call failed ('127.0.0.1', 1); j:2: timed out")

    assert complaint_of(error, ()).text == "h:1: connection refused; j:2: timed out"
