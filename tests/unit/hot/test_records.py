"""Messages as records and back, in both twins."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compiled import compiled_twin

from penstock.hot import records
from penstock.hot.records import Entry

SALT = 0xABCD
ENTRIES: list[Entry] = [
    (b"a.b", b"", b"one", 5),
    (b"a.c", b"NATS/1.0\r\n\r\n", b"", 6),
    (b"a.b", b"", b"", 7),
]
LENGTHS = [30 + 3 + 3, 30 + 3 + 4 + 12, 30 + 3]
"""As nats-server counts these messages."""
RECORDS = (
    # checksum, length, mark, kind, flags, subject length, sequence, time; then the rest
    "d31eddaa 24000000 504e 01 00 0300 0b0a000000000000 0500000000000000612e626f6e65",
    "3e3afa83 31000000 504e 02 00 0300 0c0a000000000000 0600000000000000"
    "612e630c0000004e4154532f312e300d0a0d0a",
    "0f5765f6 21000000 504e 01 00 0300 0d0a000000000000 0700000000000000612e62",
)


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return records if request.param == "reference" else compiled_twin()


def record(body: bytes, *, length: int | None = None, kind: int = 1, subject_length: int) -> bytes:
    """A record that checks out, whatever it says."""
    length = 30 + len(body) if length is None else length
    rest = struct.pack("<IHBBHQq", length, 0x4E50, kind, 0, subject_length, 9, 8) + body
    return struct.pack("<I", crc32(rest, SALT)) + rest


def test_records_are_as_the_file_format_says(twin: ModuleType) -> None:
    data = b"".join(map(bytes.fromhex, RECORDS))

    assert twin.encode_records(0x0A0B, ENTRIES, SALT) == (data, LENGTHS)


def test_no_messages_are_no_records(twin: ModuleType) -> None:
    assert twin.encode_records(1, [], SALT) == (b"", [])
    assert twin.decode_messages(b"", [], 0, SALT) == []


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.binary(max_size=300),
            st.binary(max_size=3000),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=20,
    ),
    st.integers(0, 2**64 - 21),
    st.integers(0, 2**32 - 1),
)
def test_messages_come_back_as_they_were(entries: list[Entry], first: int, salt: int) -> None:
    data, lengths = records.encode_records(first, entries, salt)
    offsets = [0, *accumulate(lengths)][:-1]
    messages = [
        (sequence, time_ns, subject, headers, payload)
        for sequence, (subject, headers, payload, time_ns) in enumerate(entries, first)
    ]

    assert compiled_twin().encode_records(first, entries, salt) == (data, lengths)
    assert records.decode_messages(data, offsets, 0, salt) == messages
    assert compiled_twin().decode_messages(data, offsets, 0, salt) == messages


@pytest.mark.parametrize("size", [*range(70), 4095, 4096, 65537])
def test_the_checksum_is_zlibs_whatever_the_length(twin: ModuleType, size: int) -> None:
    data, _ = twin.encode_records(1, [(b"s", b"", bytes(i % 251 for i in range(size)), 0)], SALT)

    assert int.from_bytes(data[:4], "little") == crc32(data[4:], SALT)


def test_messages_are_found_by_offsets_in_the_segment(twin: ModuleType) -> None:
    data, _ = twin.encode_records(7, ENTRIES, SALT)

    assert twin.decode_messages(data, array("I", [185, 100]), 100, SALT) == [
        (9, 7, b"a.b", b"", b""),
        (7, 5, b"a.b", b"", b"one"),
    ]


@pytest.mark.parametrize("offset", [-1, 1, 35, 37, 90, 116, 119, 2**31, 2**70, -(2**70)])
def test_an_offset_that_leads_nowhere_gives_nothing(twin: ModuleType, offset: int) -> None:
    data, _ = twin.encode_records(7, ENTRIES, SALT)

    assert twin.decode_messages(data, [offset], 0, SALT) == [None]


def test_another_salt_or_another_byte_gives_nothing(twin: ModuleType) -> None:
    data, _ = twin.encode_records(7, ENTRIES[:1], SALT)
    damaged = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]

    assert twin.decode_messages(data, [0], 0, SALT + 1) == [None]
    assert [twin.decode_messages(each, [0], 0, SALT) for each in damaged] == [[None]] * len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (record(b"sp", subject_length=1), (9, 8, b"s", b"", b"p")),
        (record(b"s", subject_length=1), (9, 8, b"s", b"", b"")),
        (record(b"s", subject_length=2), None),
        (record(b"sp", subject_length=1, length=33), None),
        (record(b"sp", subject_length=1, length=2**32 - 1), None),
        (record(b"", subject_length=0, length=29), None),
        (record(b"sp", subject_length=1, kind=0), None),
        (record(b"", subject_length=0, kind=3), None),
        (record(b"s\x01\0\0\0hp", subject_length=1, kind=2), (9, 8, b"s", b"h", b"p")),
        (record(b"s\x02\0\0\0hp", subject_length=1, kind=2), (9, 8, b"s", b"hp", b"")),
        (record(b"s\0\0\0\0hp", subject_length=1, kind=2), (9, 8, b"s", b"", b"hp")),
        (record(b"s\x03\0\0\0hp", subject_length=1, kind=2), None),
        (record(b"s\xff\xff\xff\xffhp", subject_length=1, kind=2), None),
        (record(b"s\0\0\0", subject_length=1, kind=2), None),
    ],
)
def test_what_a_record_says_must_fit_it(twin: ModuleType, data: bytes, expected: object) -> None:
    assert twin.decode_messages(data, [0], 0, SALT) == [expected]


@pytest.mark.parametrize(
    ("first", "entry"),
    [
        (1, (bytes(2**16), b"", b"", 0)),
        (1, (bytes(2**16), b"h", b"", 0)),
        (1, (b"s", b"", b"", 2**63)),
        (1, (b"s", b"h", b"", -(2**63) - 1)),
        (-1, (b"s", b"", b"", 0)),
        (2**64, (b"s", b"", b"", 0)),
    ],
)
def test_a_message_that_does_not_fit_a_record_is_refused(
    twin: ModuleType, first: int, entry: Entry
) -> None:
    with pytest.raises(ValueError, match="a message does not fit a record"):
        twin.encode_records(first, [entry], SALT)


def test_sequences_end_where_64_bits_do(twin: ModuleType) -> None:
    data, _ = twin.encode_records(2**64 - 1, ENTRIES[:1], SALT)
    assert twin.decode_messages(data, [0], 0, SALT)[0][0] == 2**64 - 1

    with pytest.raises(ValueError, match="a message does not fit a record"):
        twin.encode_records(2**64 - 1, ENTRIES, SALT)


@pytest.mark.parametrize("length", [*range(200), 1000, 4096, 65_537])
def test_the_checksum_is_zlibs_for_every_length(length: int) -> None:
    entries = [(b"s", b"", bytes(index * 7 % 256 for index in range(length)), 5)]

    assert records.encode_records(1, entries, SALT) == compiled_twin().encode_records(
        1, entries, SALT
    )


PLAIN = (0, b"a.b", b"in.1", 0, 2, b"hi\r\n")


def test_plain_publishes_are_entries_with_replies(twin: ModuleType) -> None:
    without_reply = (0, b"c", b"", 0, 0, b"\r\n")

    assert ([(b"a.b", b"", b"hi", 7), (b"c", b"", b"", 7)], [b"in.1", b""]) == twin.plain_entries(
        [PLAIN, without_reply], 7
    )


@pytest.mark.parametrize(
    "other",
    [
        (0, b"a.b", b"in.2", 3, 5, b"hhhhi\r\n"),
        (0, b"a.b", b"in.2", 0, 2, b"hi\r\nho\r\n"),
    ],
    ids=["headers", "a run"],
)
def test_one_publish_that_is_not_plain_makes_them_all_be_looked_at(
    twin: ModuleType, other: tuple[object, ...]
) -> None:
    assert twin.plain_entries([PLAIN, other], 7) is None


@pytest.mark.parametrize("publishes", [None, [7], [(0, b"a")], [(0, b"a", b"", 0, 0, None)]])
def test_the_compiled_twin_takes_only_publishes(publishes: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        compiled_twin().plain_entries(publishes, 7)
