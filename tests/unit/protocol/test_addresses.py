"""Addresses as configurations write them."""

from __future__ import annotations

import pytest

from penstock.protocol.addresses import split_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("example.com", ("example.com", None)),
        ("example.com:4222", ("example.com", 4222)),
        ("[::1]", ("::1", None)),
        ("[::1]:4222", ("::1", 4222)),
        (":4222", ("", 4222)),
        ("", ("", None)),
    ],
)
def test_an_address_has_a_host_and_may_have_a_port(
    text: str, expected: tuple[str, int | None]
) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h:", "`` is not a port"),
        ("h:x", "`x` is not a port"),
        ("h:65536", "`65536` is not a port"),
        ("h:٣", "is not a port"),
        ("::1", "brackets"),
        ("::bad", "`bad` is not a port"),
    ],
)
def test_what_is_no_address_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        split_address(text)
