"""Payloads on a terminal."""

from __future__ import annotations

from penstock.cli.payload import headers_field, payload_text


def test_a_payload_cannot_upset_a_terminal() -> None:
    assert payload_text(b"a\tb\n\x1b[2J\n") == "a    b\n\\x1b[2J"
    assert payload_text(b"\xff" * 2048) == "(2 KiB of binary data; --raw prints it)"


def test_a_header_keeps_all_its_values() -> None:
    assert headers_field([("A", "1"), ("B", "2"), ("A", "3")]) == {"A": ["1", "3"], "B": ["2"]}
