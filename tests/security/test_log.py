"""What others send does not write the log: what is shown of it stands on one line, in print."""

from __future__ import annotations

import pytest
from tests.conftest import Servers
from tests.servers import HOST, Program, RawClient
from tests.websocket import RawWebSocket

CONFIG = f"""
authorization {{ users = [ {{user: ann, password: x, permissions: {{publish: mine}}}} ] }}
websocket {{ listen: '{HOST}:-1', no_tls: true }}
"""


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        (b"a\x1b[31m", rb"a\x1b[31m"),
        (b"a\x07\x0b\x7f", rb"a\a\v\x7f"),
        (b"\xff\x85", rb"\xff\x85"),
        (b'a"b\\c', rb"a\"b\\c"),
        ("é\u202e\u00a0\u2028\U0001f600".encode(), "é\\u202e\\u00a0\\u2028\U0001f600".encode()),
        ("\U000e0001".encode(), rb"\U000e0001"),
    ],
    ids=["escape", "letters", "no UTF-8", "quotes", "white space", "a tag"],
)
def test_a_subject_is_shown_in_print(
    subject: bytes, shown: bytes, program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    with RawClient(server.port) as client:
        client.connect(user="ann", **{"pass": "x"}).send(b"PUB %b 0\r\n\r\n" % subject)

        text = b"-ERR 'Permissions Violation for Publish to \"%b\"'" % shown
        assert client.settle() == [text]
    assert "\x1b[31m" not in server.log


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("10.1.2.3", "10.1.2.3/"),
        ("10.1.2.5, 10.1.2.6", ""),
        ("fe80::1%evil", ""),
        ("evil", ""),
    ],
)
def test_an_address_that_is_none_is_not_shown(
    address: str, shown: str, program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    with RawWebSocket(server.websocket_port).upgrade(X_Forwarded_For=address) as client:
        client.say(b"PING\r\n")
        port = client.sock.getsockname()[1]
        client.closing()

    assert f" {shown}{HOST}:{port} " in server.log
    assert "evil" not in server.log


@pytest.mark.parametrize("value", ["fe80::1%\n[1] evil", "a\0b", "a\x1bb", "a\x7fb"])
def test_a_header_of_several_lines_is_refused(
    value: str, program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    with RawWebSocket(server.websocket_port) as client:
        assert client.ask(X_Forwarded_For=value).startswith(b"HTTP/1.1 400 ")

    assert "evil" not in server.log
