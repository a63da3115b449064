"""The bytes of segments: records, scans, trailers."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot import encode_records
from penstock.hot.records import RECORD_BYTES_MIN
from penstock.jetstream.store.columns import columns_of
from penstock.jetstream.store.file.segment import (
    HEADER_BYTES,
    Header,
    Removal,
    decode_header,
    encode_header,
    encode_removal,
    find_record,
    scan,
)
from penstock.jetstream.store.file.trailer import (
    FOOTER_BYTES,
    decode_footer,
    decode_ids,
    decode_places,
    decode_summary,
    encode_trailer,
    summarize,
)
from penstock.jetstream.store.values import Entry

SALT = 0xABCD
HEADER = Header(number=3, covers=4, salt=SALT, base_sequence=9, floor_sequence=2, base_time_ns=8)
ENTRIES: list[Entry] = [
    (b"a.b", b"", b"one", 5),
    (b"a.c", b"NATS/1.0\r\n\r\n", b"", 6),
    (b"a.b", b"", b"", 7),
]
REMOVAL = Removal(4, ((5, 6), (8, 8)), erase=True)

entry_lists = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=300).filter(lambda s: b"\n" not in s),
        st.binary(max_size=300),
        st.binary(max_size=3000),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=20,
)


def segment(entries: list[Entry], first: int = 10) -> bytes:
    return encode_header(HEADER) + encode_records(first, entries, SALT)[0]


def test_a_header_comes_back() -> None:
    assert decode_header(encode_header(HEADER)) == HEADER
    assert len(encode_header(HEADER)) == HEADER_BYTES


@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_a_damaged_header_does_not(place: int) -> None:
    data = bytearray(encode_header(HEADER))
    data[place] ^= 0x10
    assert decode_header(bytes(data)) is None


@given(entry_lists)
def test_a_scan_finds_what_was_written(entries: list[Entry]) -> None:
    data = segment(entries) + encode_removal(REMOVAL, SALT)
    found = scan(data, SALT)
    assert list(found.sequences) == list(range(10, 10 + len(entries)))
    assert found.subjects == [entry[0] for entry in entries]
    assert found.removals == [REMOVAL]
    assert found.end == len(data)


def test_another_salt_finds_nothing() -> None:
    assert len(scan(segment(ENTRIES), SALT + 1).sequences) == 0


@pytest.mark.parametrize("length", range(HEADER_BYTES, len(segment(ENTRIES))))
def test_a_cut_anywhere_keeps_the_records_before_it(length: int) -> None:
    found = scan(segment(ENTRIES)[:length], SALT)
    ends = [HEADER_BYTES + 36, HEADER_BYTES + 36 + 49, HEADER_BYTES + 36 + 49 + 33]
    assert len(found.sequences) == len([end for end in ends if end <= length])


@pytest.mark.parametrize("place", range(HEADER_BYTES, len(segment(ENTRIES))))
def test_a_flipped_bit_costs_one_message(place: int) -> None:
    data = bytearray(segment(ENTRIES))
    data[place] ^= 1
    whole = scan(segment(ENTRIES), SALT)
    strict, tolerant = scan(bytes(data), SALT), scan(bytes(data), SALT, synced_end=len(data))
    damaged = sum(offset <= place for offset in whole.offsets) - 1
    expected = [10, 11, 12]
    assert list(strict.sequences) == expected[:damaged]
    del expected[damaged]
    assert list(tolerant.sequences) == expected
    assert len(tolerant.damaged) == 1


def test_sequences_that_go_back_end_a_scan() -> None:
    data = segment(ENTRIES) + encode_records(11, ENTRIES, SALT)[0]
    assert list(scan(data, SALT).sequences) == [10, 11, 12]


def test_the_next_record_is_found_behind_rubbish() -> None:
    records, _ = encode_records(5, ENTRIES, SALT)
    for rubbish in (b"", b"x", b"PN" * 50, records[:-1]):
        at = find_record(rubbish + records, len(rubbish), SALT)
        assert at == len(rubbish)
    assert find_record(b"PN" * RECORD_BYTES_MIN, 0, SALT) is None


@given(entry_lists.filter(bool), st.booleans())
def test_a_trailer_says_what_a_scan_finds(entries: list[Entry], is_dense: bool) -> None:
    data = segment(entries)
    if not is_dense:
        data += encode_records(100, ENTRIES, SALT)[0]
    found = scan(data, SALT)
    places, subjects = columns_of(found)
    times = (found.first_time_ns, found.last_time_ns)
    summary, topics = summarize(
        found.sequences[0], places, subjects, times_ns=times, removals=(REMOVAL,)
    )
    trailer = encode_trailer(
        summary, places, topics, header=HEADER, records_end=len(data), salt=SALT
    )
    size = len(data) + len(trailer)
    footer = decode_footer(trailer[-FOOTER_BYTES:], size, SALT)
    assert footer is not None
    parts = [
        (data + trailer)[offset : offset + length]
        for offset, length in zip(footer.offsets, footer.lengths, strict=True)
    ]
    decoded = decode_summary(parts[0])
    assert decoded.dense is is_dense
    assert decoded.total == len(found.sequences)
    assert decoded.subjects == list(dict.fromkeys(found.subjects))
    assert sum(decoded.counts) == decoded.total
    assert [removal.ranges for removal in decoded.removals] == [(), REMOVAL.ranges]
    assert (decoded.first_time_ns, decoded.last_time_ns) == times
    again = decode_places(parts[1], decoded.total, dense=is_dense)
    assert (again.offsets, again.lengths, again.deltas) == (
        places.offsets,
        places.lengths,
        places.deltas,
    )
    ids = decode_ids(parts[2], decoded.total)
    assert [decoded.subjects[place] for place in ids] == found.subjects
    for subject, delta in zip(decoded.subjects, decoded.last_deltas, strict=True):
        last = max(
            s for s, of in zip(found.sequences, found.subjects, strict=True) if of == subject
        )
        assert decoded.first_sequence + delta == last


@pytest.mark.parametrize("place", range(FOOTER_BYTES))
def test_a_damaged_footer_is_none(place: int) -> None:
    places, subjects = columns_of(scan(segment(ENTRIES), SALT))
    summary, topics = summarize(10, places, subjects, times_ns=(5, 7), removals=())
    trailer = encode_trailer(summary, places, topics, header=HEADER, records_end=300, salt=SALT)
    footer = bytearray(trailer[-FOOTER_BYTES:])
    assert decode_footer(bytes(footer), 300 + len(trailer), SALT) is not None
    assert decode_footer(bytes(footer), 301 + len(trailer), SALT) is None
    footer[place] ^= 1
    assert decode_footer(bytes(footer), 300 + len(trailer), SALT) is None


def test_ids_are_as_small_as_the_number_of_subjects_allows() -> None:
    entries: list[Entry] = [(b"s.%d" % n, b"", b"", n) for n in range(300)]
    places, subjects = columns_of(scan(segment(entries), SALT))
    assert subjects.condensed().ids == array("H", range(300))
    places, subjects = columns_of(scan(segment(entries[:256]), SALT))
    assert subjects.condensed().ids == array("B", range(256))
    assert len(places.offsets) == 256
