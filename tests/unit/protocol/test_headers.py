"""The header block, both ways, and what hostile blocks do to it: nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import headers

BLOCK = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nA:b\r\na:  two words \r\nA: again\r\nEmpty:\r\n\r\n"

key = st.text("abcXYZ-", min_size=1, max_size=10)
value = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20
).map(lambda text: text.encode().strip().decode())


def test_pairs_are_encoded_in_order_with_their_case() -> None:
    block = headers.encode([("B", "2"), ("a", "1"), ("B", "3")])

    assert b"NATS/1.0\r\nB: 2\r\na: 1\r\nB: 3\r\n\r\n" == block


def test_no_pairs_make_the_empty_block() -> None:
    assert headers.EMPTY == headers.encode([])


def test_a_status_stands_on_the_first_line() -> None:
    block = headers.encode([("A", "b")], status="408 Request Timeout")

    assert b"NATS/1.0 408 Request Timeout\r\nA: b\r\n\r\n" == block
    assert (408, "Request Timeout") == headers.status(block)


@pytest.mark.parametrize("text", ["a\r\nb", "a\nb", "a\rb", "\r\n", "\n\r"])
def test_a_line_break_cannot_smuggle_in_a_header(text: str) -> None:
    for pair in [("key", text), (text, "value")]:
        with pytest.raises(ValueError, match="line breaks"):
            headers.encode([("first", "one"), pair])
    with pytest.raises(ValueError, match="line breaks"):
        headers.encode([], status=text)


def test_decoding_keeps_order_case_and_repetition() -> None:
    pairs = [("Nats-Msg-Id", "7"), ("A", "b"), ("a", "two words"), ("A", "again"), ("Empty", "")]

    assert pairs == headers.decode(BLOCK)


@given(st.lists(st.tuples(key, value)))
def test_what_was_encoded_decodes_to_the_same(pairs: list[tuple[str, str]]) -> None:
    block = headers.encode(pairs)

    assert pairs == headers.decode(block)
    for name, first in reversed(dict(reversed(pairs)).items()):
        assert first.encode() == headers.get(block, name.encode())


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0 100 Idle Heartbeat\r\nA: b\r\n\r\n", (100, "Idle Heartbeat")),
        (b"NATS/1.0   404   No Messages  \r\n\r\n", (404, "No Messages")),
        (b"NATS/1.0 409 \xff\r\n\r\n", (409, "�")),
        (b"NATS/1.0\r\n\r\n", (0, "")),
        (b"NATS/1.0\r\n503: no\r\n\r\n", (0, "")),
        (b"NATS/1.0 what\r\n\r\n", (0, "")),
        (b"NATS/1.0 1000\r\n\r\n", (0, "")),
        (b"NATS/1.0 " + b"9" * 5000, (0, "")),
        (b"", (0, "")),
    ],
)
def test_a_status_is_three_digits_and_a_description(
    block: bytes, expected: tuple[int, str]
) -> None:
    assert expected == headers.status(block)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"Nats-Msg-Id", b"7"),
        (b"A", b"b"),
        (b"a", b"two words"),
        (b"Empty", b""),
        (b"Msg-Id", None),
        (b"nats-msg-id", None),
        (b"NATS/1.0", None),
    ],
)
def test_a_value_is_found_by_its_exact_key(name: bytes, expected: bytes | None) -> None:
    assert expected == headers.get(BLOCK, name)


def test_a_block_that_ends_early_still_has_its_value() -> None:
    # The server passes header blocks on as they are, so they may end anywhere.
    assert b"b" == headers.get(b"NATS/1.0\r\nA: b", b"A")
    assert b"" == headers.get(b"NATS/1.0\r\nA:", b"A")
    assert [("A", "b")] == headers.decode(b"NATS/1.0\r\nA: b")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (headers.add(b"", b"A", b"1"), b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (headers.add(b"NATS/1.0\r\nA: b", b"A", b"1"), b"NATS/1.0\r\nA: b\r\nA: 1\r\n\r\n"),
        (
            headers.put(b"NATS/1.0\r\nA:b\r\nC: d\r\n\r\n", b"A", b"1"),
            b"NATS/1.0\r\nA: 1\r\nC: d\r\n\r\n",
        ),
        (headers.put(b"NATS/1.0\r\nA: b\r\n\r\n", b"C", b"1"), b"NATS/1.0\r\nA: b\r\nC: 1\r\n\r\n"),
        (headers.put(b"NATS/1.0\r\nA: b", b"A", b"1"), b"NATS/1.0\r\nA: 1"),
        (headers.remove(b"NATS/1.0\r\nA: b\r\nC: d\r\n\r\n", b"A"), b"NATS/1.0\r\nC: d\r\n\r\n"),
        (headers.remove(b"NATS/1.0\r\nA: b\r\n\r\n", b"A"), b""),
        (headers.remove(b"NATS/1.0\r\nA: b\r\n\r\n", b"C"), b"NATS/1.0\r\nA: b\r\n\r\n"),
        (
            headers.without_prefixes(
                b"NATS/1.0\r\nX-A: 1\r\nB: X-A\r\nX-C: 2\r\nY-D: 3\r\n\r\n", (b"X-", b"Y-")
            ),
            b"NATS/1.0\r\nB: X-A\r\n\r\n",
        ),
        (headers.without_prefixes(b"NATS/1.0\r\nX-A: 1\r\n\r\n", (b"X-",)), b""),
        (
            headers.without_prefixes(b"NATS/1.0\r\nA: X-\r\n\r\n", (b"X-",)),
            b"NATS/1.0\r\nA: X-\r\n\r\n",
        ),
    ],
)
def test_a_block_is_changed_line_by_line(change: bytes, expected: bytes) -> None:
    assert expected == change


@given(st.binary())
def test_no_bytes_make_reading_fail(block: bytes) -> None:
    headers.decode(block)
    headers.status(block)
    headers.get(block, b"A")
    headers.add(block, b"A", b"b")
    headers.put(block, b"A", b"b")
    headers.remove(block, b"A")
    headers.without_prefixes(block, (b"A",))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (None, None),
        (b"", None),
        (b"-1", None),
        (b"1x", None),
        ("²".encode(), None),
        (b"0", 0),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", 2**63 - 1),
        (b"9" * 5000, 2**63 - 1),
    ],
)
def test_a_number_is_never_longer_than_64_bits(text: bytes | None, number: int | None) -> None:
    assert headers.number(text) == number
