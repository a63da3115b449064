"""Payloads: what a subscriber counts is what happened to the messages, whatever it was."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.load.payload import HEAD, Checker, Chunk, Tags, chunk_messages, timed
from penstock.bench.report.histogram import Histogram

SIZE = 32
SENT_NS = 1_000


def messages(publisher, publishers, count, size=SIZE, sent_ns=SENT_NS):
    """Return the operations of a publisher's messages, as they come off the wire."""
    prefix = b"PUB a %d\r\n" % size
    chunk = Chunk(prefix, size, b"\r\n", Tags(publisher, publishers))
    data = b"".join(
        chunk.fill(sequence, min(chunk.messages, count - sequence), sent_ns)
        for sequence in range(0, count, chunk.messages)
    )
    stride = len(prefix) + size + 2
    assert count * stride == len(data)
    starts = range(len(prefix), len(data), stride)
    return [(0, b"a", b"1", b"", 0, data[start : start + size]) for start in starts]


def check(operations, publishers, *, read=100, now_ns=SENT_NS, size=SIZE):
    """Return the checker after it took the operations, so many at a time."""
    checker = Checker(publishers, size, Histogram())
    for start in range(0, len(operations), read):
        checker.take(operations[start : start + read], now_ns)
    return checker


def counts(checker):
    return checker.received, checker.disordered, checker.foreign


@pytest.mark.parametrize("publishers", [1, 2, 3, 10, 16, 100, 128, 129, 300])
@pytest.mark.parametrize("read", [1, 7, 1000])
def test_messages_of_all_publishers_in_any_mixture_are_in_order(publishers, read):
    count = 3000 // publishers
    streams = [messages(number, publishers, count) for number in range(publishers)]
    turns = [number for number in range(publishers) for _ in range(count)]
    random.Random(publishers).shuffle(turns)
    mixed = [streams[number].pop(0) for number in turns]

    assert (len(turns), 0, 0) == counts(check(mixed, publishers, read=read))


@pytest.mark.parametrize("publishers", [1, 5, 200])
@pytest.mark.parametrize("gap", [1, 15, 16, 17, 255, 256, 257, 512])
def test_a_gap_of_any_length_is_missed(publishers, gap):
    operations = messages(0, publishers, 1000)
    del operations[100 : 100 + gap]

    assert (1000 - gap, 0, 0) == counts(check(operations, publishers, read=10_000))


@pytest.mark.parametrize("distance", [1, 16, 256])
def test_a_message_that_comes_later_than_its_successors_is_out_of_order(distance):
    operations = messages(0, 1, 600)
    operations.insert(100 + distance, operations.pop(100))

    assert (600, 1, 0) == counts(check(operations, 1))


def test_a_message_that_comes_again_is_out_of_order():
    operations = messages(0, 2, 200)
    operations.insert(50, operations[40])

    assert (201, 1, 0) == counts(check(operations, 2))


@given(st.data())
def test_whatever_happens_the_bulk_check_says_what_the_plain_one_does(data):
    publishers = data.draw(st.integers(1, 20))
    operations = [one for number in range(publishers) for one in messages(number, publishers, 40)]
    for _ in range(data.draw(st.integers(0, 3))):
        operations.insert(
            data.draw(st.integers(0, len(operations))),
            operations.pop(data.draw(st.integers(0, len(operations) - 1))),
        )
    del operations[data.draw(st.integers(0, len(operations))) :]
    read = data.draw(st.sampled_from([1, 13, 1000]))
    plain = Checker(publishers, SIZE, Histogram())
    for operation in operations:
        plain._take_singly([operation])

    assert counts(plain) == counts(check(operations, publishers, read=read))


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * SIZE, b"\xff" * SIZE, bytes(SIZE + 1)])
def test_a_message_of_somebody_else_is_told_apart(payload):
    operations = messages(0, 3, 100)
    operations.insert(50, (0, b"a", b"1", b"", 0, payload))

    assert (100, 0, 1) == counts(check(operations, 3))


@pytest.mark.parametrize("size", [0, 1, HEAD.size - 1])
def test_payloads_too_small_for_a_head_are_counted(size):
    assert (100, 0, 0) == counts(check(messages(0, 1, 100, size=size), 1, size=size))


@pytest.mark.parametrize("size", [HEAD.size, 128, 5000, 200_000])
def test_payloads_of_any_size_are_numbered(size):
    operations = messages(0, 1, 70, size=size)

    assert list(range(70)) == [HEAD.unpack_from(operation[5])[3] for operation in operations]


def test_sequences_go_on_beyond_every_byte():
    chunk = Chunk(b"", SIZE, b"", Tags(0, 1))
    first = (1 << 24) - chunk.messages
    data = chunk.fill(first, chunk.messages, 0) + chunk.fill(1 << 24, chunk.messages, 0)

    sequences = [HEAD.unpack_from(data, start)[3] for start in range(0, len(data), SIZE)]

    assert list(range(first, first + 2 * chunk.messages)) == sequences


def test_latency_is_that_of_the_timed_messages():
    checker = check(messages(0, 1, 3200, sent_ns=5_000), 1, now_ns=12_000)

    assert (100, 7_000, 7_000) == (
        checker._latency_ns.count,
        checker._latency_ns.minimum,
        checker._latency_ns.maximum,
    )


def test_messages_that_are_never_timed_have_no_latency():
    assert 0 == check(messages(0, 1, 1000, sent_ns=0), 1)._latency_ns.count


@pytest.mark.parametrize("count", [1, 8, 32, 256])
def test_timed_messages_are_one_in_so_many_and_move_about(count):
    chosen = [
        (sequence + index) % 32
        for sequence in range(0, 32 * 512, count)
        for index in timed(sequence, count, 32)
    ]

    assert 512 == len(chosen)
    assert count == 1 or len(set(chosen)) > 1


@pytest.mark.parametrize(("size", "expected"), [(0, 256), (128, 256), (1000, 64), (100_000, 1)])
def test_chunks_of_larger_messages_are_shorter(size, expected):
    assert expected == chunk_messages(size)


def test_a_message_that_was_lengthened_is_not_ours():
    operations = messages(0, 1, 100)
    *fields, payload = operations[-1]
    operations[-1] = (*fields, payload + b"more")

    assert (99, 0, 1) == counts(check(operations, 1))
