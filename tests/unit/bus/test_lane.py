"""A lane keeps the order of a key whose first message failed, and lets other keys go on."""

from __future__ import annotations

from penstock.bus.engine import Delivery
from penstock.bus.lane import Lane, Parked


def delivery(key: str, number: int) -> Delivery:
    made = Delivery("t", b"", b"", number)
    made.key = key
    return made


def parked(lane: Lane, key: str, *waiting: Delivery) -> Delivery:
    """Park a key behind its first message, which failed; return that one."""
    head = delivery(key, 1)
    lane.parked[key] = Parked(head)
    assert all(lane.is_behind(one) for one in waiting)
    return head


def test_later_messages_of_a_parked_key_wait_and_others_do_not() -> None:
    lane, later = Lane(), delivery("a", 2)
    head = parked(lane, "a", later)

    assert [later] == list(lane.parked["a"].waiting)
    assert not lane.is_behind(delivery("b", 1))
    assert not lane.is_behind(head), "it may be tried again"


def test_what_waited_goes_before_what_came_later() -> None:
    lane, second, third, other = Lane(), delivery("a", 2), delivery("a", 3), delivery("b", 1)
    head = parked(lane, "a", second, third)
    lane.queue.append(other)

    lane.reopen(head)
    lane.reopen(head)

    assert ([second, third, other], {}) == (list(lane.queue), lane.parked)


def test_an_emptied_lane_keeps_what_it_is_told_to() -> None:
    lane, kept, other = Lane(), delivery("b", 1), delivery("c", 1)
    parked(lane, "a", delivery("a", 2))
    queue = lane.queue
    queue.extend([other, kept])

    lane.empty(kept=[kept])

    assert lane.queue is queue, "a worker may be at it"
    assert ([kept], []) == (list(queue), list(lane.parked["a"].waiting))


def test_an_emptied_lane_keeps_the_order_of_what_waits_and_what_is_queued() -> None:
    lane, second, third, fourth = Lane(), *(delivery("a", number) for number in (2, 3, 4))
    head = parked(lane, "a", second, third)
    lane.queue.append(fourth)

    lane.empty(kept=[second, third, fourth])
    lane.reopen(head)

    assert [second, third, fourth] == list(lane.queue)


def test_what_another_has_taken_is_forgotten_and_the_rest_goes_on() -> None:
    lane, second, third, queued = Lane(), delivery("a", 2), delivery("a", 3), delivery("b", 9)
    head = parked(lane, "a", second, third)
    lane.queue.append(queued)
    taken = {head, second, queued}

    lane.drop(lambda one: one in taken, kept=())

    assert ([third], {}) == (list(lane.queue), lane.parked)


def test_a_key_stays_parked_while_its_first_message_is_kept() -> None:
    lane, second = Lane(), delivery("a", 2)
    head = parked(lane, "a", second)

    lane.drop(lambda one: one in {head, second}, kept=[head])

    assert ([], ["a"], []) == (list(lane.queue), list(lane.parked), list(lane.parked["a"].waiting))
