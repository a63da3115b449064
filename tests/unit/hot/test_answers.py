"""Answers that differ in a number, in both twins."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compiled import compiled_twin

from penstock.hot import answers


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return answers if request.param == "reference" else compiled_twin()


def test_each_reply_gets_the_next_number(twin: ModuleType) -> None:
    encoded = twin.numbered_answers([b"in.1", b"in.20"], b"7", b'{"seq":', b"}", 9)

    assert (b'MSG in.1 7 9\r\n{"seq":9}\r\nMSG in.20 7 10\r\n{"seq":10}\r\n', 19) == encoded


def test_nobody_is_sent_nothing(twin: ModuleType) -> None:
    assert (b"", 0) == twin.numbered_answers([], b"7", b"{", b"}", 1)


@pytest.mark.parametrize("number", [-1, 2**63 - 1, 2**63, 2**70])
def test_a_number_that_does_not_fit_is_refused(twin: ModuleType, number: int) -> None:
    with pytest.raises(ValueError, match="fit 64 bits"):
        twin.numbered_answers([b"in"], b"7", b"", b"", number)


@given(
    st.lists(st.binary(max_size=30), max_size=5),
    *[st.binary(max_size=12)] * 3,
    st.integers(0, 2**63 - 7) | st.integers(0, 200),
)
def test_the_twins_agree(
    replies: list[bytes], sid: bytes, before: bytes, after: bytes, number: int
) -> None:
    arguments = (replies, sid, before, after, number)

    assert answers.numbered_answers(*arguments) == compiled_twin().numbered_answers(*arguments)


def test_a_stored_message_answers_with_where_it_came_from(twin: ModuleType) -> None:
    message = (7, 1_700_000_000_120_000_000, b"kv.a", b"NATS/1.0\r\nA: b\r\n\r\n", b"hi")

    kind, subject, reply, header_bytes, size, data = twin.stored_answer(b"in.1", b"KV", message)

    assert (0, b"in.1", b"") == (kind, subject, reply)
    assert size == len(data) - 2
    assert b"hi\r\n" == data[header_bytes:]
    assert data[:header_bytes] == (
        b"NATS/1.0\r\nA: b\r\nNats-Stream: KV\r\nNats-Subject: kv.a\r\nNats-Sequence: 7\r\n"
        b"Nats-Time-Stamp: 2023-11-14T22:13:20.12Z\r\n\r\n"
    )


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (2**63, 0), (0, 2**63)])
def test_a_message_that_can_not_be_stored_is_no_answer(
    twin: ModuleType, numbers: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match="fit 64 bits"):
        twin.stored_answer(b"in", b"S", (*numbers, b"a", b"", b""))


@given(
    st.integers(0, 2**63 - 1) | st.integers(0, 200),
    st.integers(0, 2**63 - 1) | st.integers(0, 2**33).map(lambda seconds: seconds * 10**9),
    *[st.binary(max_size=600)] * 3,
)
def test_the_twins_agree_on_stored_messages(
    sequence: int, time_ns: int, subject: bytes, header: bytes, payload: bytes
) -> None:
    arguments = (b"in", b"S", (sequence, time_ns, subject, header, payload))

    assert answers.stored_answer(*arguments) == compiled_twin().stored_answer(*arguments)


@pytest.mark.parametrize(
    ("subjects", "parent", "expected"),
    [
        ([], b"in", True),
        ([b"in.1", b"in.20"], b"in", True),
        ([b"in.1", b"in.2.3"], b"in", False),
        ([b"in.1", b"in."], b"in", False),
        ([b"in.1", b"in"], b"in", False),
        ([b"in.1", b"inn.1"], b"in", False),
        ([b"a..b"], b"a.", True),
        ([b"a", b"b"], b"", True),
        ([b".a"], b"", False),
        ([b""], b"", False),
    ],
)
def test_siblings_differ_in_their_last_token(
    twin: ModuleType, subjects: list[bytes], parent: bytes, expected: bool
) -> None:
    assert expected == twin.are_siblings(subjects, parent)


@given(st.lists(st.text("ab.", max_size=5).map(str.encode), max_size=4))
def test_the_twins_know_the_same_siblings(subjects: list[bytes]) -> None:
    for parent in (b"", b"a", b"a.b"):
        expected = answers.are_siblings(subjects, parent)
        assert expected == compiled_twin().are_siblings(subjects, parent)
