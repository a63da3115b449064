"""A server's INFO, read with suspicion."""

from __future__ import annotations

import json

import pytest

from penstock.client.connection.info import read_info
from penstock.errors import ProtocolError


def test_fields_are_kept_and_those_that_say_nothing_left_out() -> None:
    info = read_info(b'{"server_id": "x", "max_payload": 5, "connect_urls": null, "new": [1]}')

    assert {"server_id": "x", "max_payload": 5, "new": [1]} == info


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"\xff{}",
        b'{"max_payload": NaN}',
        b'{"max_payload": 1.5}',
        b'{"max_payload": true}',
        b'{"max_payload": "1"}',
        b'{"max_payload": ' + b"9" * 5000 + b"}",
        b'{"connect_urls": {}}',
        b'{"connect_urls": "a:1"}',
        b'{"tls_required": 1}',
        b'{"tls_required": "no"}',
        b'{"nonce": 5}',
        b'{"nonce": "\\ud800"}',
        b'{"ldm": []}',
        b'{"x": ' + b"[" * 200_000,
        b'{"x": ' * 100_000,
    ],
    ids=lambda text: text[:30].decode(errors="replace"),
)
def test_an_info_that_is_wrong_is_named(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="the server's INFO"):
        read_info(text)


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(ProtocolError) as raised:
        read_info(json.dumps({"nonce": ["x" * 10_000]}).encode())

    assert len(str(raised.value)) < 200
