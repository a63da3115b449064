"""The ledger of a consumer: what waits for its ack, what is due again, where the floor is."""

from __future__ import annotations

import random

from penstock.jetstream.consumers.ledger import LOOK_NS, Ledger

WAIT_NS = 30


def ledger(*, next_sequence: int = 1, backoff_ns: tuple[int, ...] = (WAIT_NS,)) -> Ledger:
    made = Ledger(next_sequence)
    made.backoff_ns = backoff_ns
    return made


def test_deliveries_are_numbered_one_after_another() -> None:
    book = ledger(next_sequence=10)

    assert [1, 3] == [book.deliver([10, 12], now_ns=0), book.deliver([13], now_ns=1)]
    assert (4, 13) == (book.next_consumer_sequence, book.delivered_sequence)
    assert {10: (1, 30), 12: (2, 30), 13: (3, 31)} == book.pending


def test_what_needs_no_ack_is_numbered_and_not_waited_for() -> None:
    book = ledger()

    assert 1 == book.pass_over([1, 2, 3])

    book.settle_delivered()
    assert ({}, 0, (3, 3)) == (book.pending, book.deadline_ns, book.floor(4))


def test_the_floor_rises_to_the_first_message_that_waits() -> None:
    book = ledger()
    book.deliver([1, 2, 3], now_ns=0)

    floors = []
    for sequence in (2, 1, 3):
        assert [sequence] == book.settle([sequence])
        floors.append(book.floor(next_sequence=4))

    assert [(0, 0), (2, 2), (3, 3)] == floors


def test_with_nothing_waiting_the_floor_is_before_the_next_message() -> None:
    """Or it would stay behind what the filter lets pass by."""
    book = ledger()
    book.deliver([1], now_ns=0)
    book.settle([1])

    book.note_empty(next_sequence=500)

    assert (1, 499) == book.floor(next_sequence=900)


def test_the_floor_passes_redeliveries_of_later_numbers() -> None:
    book = ledger()
    book.deliver([1, 2], now_ns=0)
    book.retry([1])
    assert 3 == book.redeliver([1], now_ns=5)

    book.settle([1])

    assert (1, 1) == book.floor(next_sequence=3)


def test_an_ack_counts_once_and_only_for_what_waits() -> None:
    book = ledger()
    book.deliver([1, 2], now_ns=0)

    assert [[1], [], []] == [book.settle([1]), book.settle([1]), book.settle([7])]


def test_an_ack_of_all_settles_what_came_before_and_nothing_behind() -> None:
    book = ledger()
    book.deliver([1, 2, 5, 6], now_ns=0)

    assert [1, 2, 5] == book.settle_up_to(consumer_sequence=3, sequence=5)
    assert ([6], (3, 5)) == (list(book.pending), book.floor(next_sequence=7))
    assert [] == book.settle_up_to(consumer_sequence=2, sequence=2), "below the floor"


def test_what_is_overdue_is_told_once_and_in_order() -> None:
    book = ledger()
    book.deliver([3], now_ns=5)
    book.deliver([4, 5], now_ns=0)

    assert [] == book.overdue(29)
    assert [4, 5] == book.overdue(30)
    book.retry([4, 5])
    assert [3] == book.overdue(35)


def test_the_next_look_leaves_time_for_each_message_that_waits() -> None:
    book = ledger()
    book.deliver([1, 2, 3], now_ns=0)
    assert WAIT_NS == book.deadline_ns

    book.overdue(29)

    assert 29 + 3 * LOOK_NS == book.deadline_ns


def test_each_delivery_waits_as_long_as_its_number_says() -> None:
    book = ledger(backoff_ns=(10, 20, 50))
    book.deliver([1], now_ns=0)

    deadlines, counts = [book.pending[1][1]], [book.deliveries(1)]
    for _ in range(3):
        book.retry([1])
        book.redeliver([1], now_ns=100)
        deadlines.append(book.pending[1][1])
        counts.append(book.deliveries(1))

    assert ([10, 120, 150, 150], [1, 2, 3, 4]) == (deadlines, counts)


def test_work_in_progress_is_not_due_any_more() -> None:
    book = ledger()
    book.deliver([1], now_ns=0)
    book.retry([1])

    book.extend(1, deadline_ns=99)

    assert ([], (1, 99)) == (list(book.due), book.pending[1])


def test_a_message_that_was_given_up_may_still_be_acked() -> None:
    book = ledger()
    book.deliver([1], now_ns=0)
    book.retry([1])

    book.give_up(1)

    assert ({}, []) == (book.pending, list(book.due))
    assert [[1], []] == [book.settle([1]), book.settle([1])]


def test_what_was_taken_back_was_not_delivered() -> None:
    book = ledger()
    book.pass_over([1, 2, 3])
    book.settle_delivered()

    book.go_back(next_sequence=2)

    assert (1, (3, 1)) == (book.delivered_sequence, book.floor(next_sequence=2))


def test_a_ledger_that_is_restored_goes_on_as_the_one_before() -> None:
    chance = random.Random(7)
    for _ in range(50):
        book, now_ns, stored = ledger(backoff_ns=(10, 40)), 1000, 0
        for _ in range(30):
            now_ns += chance.randrange(20)
            match chance.randrange(4):
                case 0:
                    fresh = list(range(stored + 1, stored + 1 + chance.randrange(1, 4)))
                    stored = fresh[-1]
                    book.deliver(fresh, now_ns)
                case 1:
                    book.retry(book.overdue(now_ns))
                    book.redeliver(list(book.due), now_ns)
                case 2 if book.pending:
                    book.settle([chance.choice(list(book.pending))])
                case 3 if book.pending:
                    book.give_up(chance.choice(list(book.pending)))

        again = Ledger.restore(book.state(stored + 1), book.backoff_ns, now_ns)

        assert again.pending == book.pending
        assert again.redelivered == book.redelivered
        assert again.floor(stored + 1) == book.floor(stored + 1)
        assert again.state(stored + 1) == book.state(stored + 1)
        assert again.overdue(now_ns + 100) == sorted(book.pending)
