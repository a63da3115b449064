"""Message ids are known for the duplicate window, and no longer."""

from __future__ import annotations

from penstock.jetstream.intake.dedupe import DuplicateWindow
from penstock.jetstream.store.memory import open_memory_store

WINDOW_NS = 100


def window(*known: tuple[int, int]) -> DuplicateWindow:
    """Return a window that knows sequences and their times."""
    made = DuplicateWindow(WINDOW_NS)
    for sequence, time_ns in known:
        made.remember(b"id-%d" % sequence, sequence, time_ns)
    return made


def test_an_id_is_known_to_the_end_of_the_window() -> None:
    ids = window((1, 0), (2, 50))

    assert [1, None, None] == [ids.find(b"id-1", now_ns) for now_ns in (99, 100, 101)]
    assert (2, 1) == (ids.find(b"id-2", 149), len(ids))
    assert (None, 0) == (ids.find(b"id-2", 150), len(ids))


def test_ids_of_messages_that_were_taken_back_are_forgotten() -> None:
    ids = window((1, 0), (2, 0), (3, 0))

    ids.forget_after(1)

    assert [1, None, None] == [ids.find(b"id-%d" % n, 0) for n in (1, 2, 3)]


def test_ids_are_listed_by_their_sequences() -> None:
    ids = window((2, 10), (4, 20), (6, 30))

    assert [(4, 20, b"id-4"), (6, 30, b"id-6")] == ids.between(3, 6)
    assert [] == ids.between(7, 9)


def test_a_shorter_window_holds_at_once() -> None:
    ids = window((1, 0))
    ids.window_ns = 10

    assert None is ids.find(b"id-1", 10)


def test_ids_are_read_back_from_the_store() -> None:
    store = open_memory_store()
    head = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n"
    store.append([(b"a", head % n, b"", 60 * n) for n in (1, 2, 3)])
    ids = DuplicateWindow(WINDOW_NS)

    ids.recover(store, now_ns=200)

    assert [None, 2, 3] == [ids.find(b"id-%d" % n, 200) for n in (1, 2, 3)]
