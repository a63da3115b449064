"""A session that is asked for much does a part of it, and the rest when others had their turn."""

from __future__ import annotations

import pytest
from tests.unit.core.peers import Peer, World

from penstock.core.account import MATCHES
from penstock.core.broker import TURN_NS
from penstock.core.session import PORTION
from penstock.hot.wire import Op

COUNT = 8 * PORTION


class BusyWorld(World):
    """A world in which every look at the clock finds that a turn's time has gone by."""

    def __init__(self) -> None:
        super().__init__()
        self.broker.clock_ns = self._later

    def _later(self) -> int:
        self.now_ns += TURN_NS
        return self.now_ns


def turns(peer: Peer, data: bytes) -> list[bytes]:
    """Return what a peer is sent turn by turn."""
    taken = [peer.says(data)]
    while peer.session.put_off:
        assert peer.session.broker.behind == [peer.session]
        peer.session.broker.behind.clear()
        peer.session.go_on()
        taken.append(peer.taken())
    return taken


def test_an_idle_clock_lets_everything_be_done_at_once() -> None:
    peer = World().peer()

    assert turns(peer, b"PING\r\n" * COUNT) == [b"PONG\r\n" * COUNT]


@pytest.mark.parametrize("operation", [b"PING\r\n", b"SUB a.* 7\r\nUNSUB 7\r\nPING\r\n"])
def test_operations_are_done_in_turns_in_order_and_to_the_last(operation: bytes) -> None:
    peer = BusyWorld().peer()

    taken = turns(peer, operation * COUNT)

    assert b"".join(taken) == b"PONG\r\n" * COUNT
    assert max(map(len, taken)) <= len(b"PONG\r\n") * 64


def test_publishes_are_delivered_in_turns_in_order_and_to_the_last() -> None:
    peer = BusyWorld().peer()
    peer.says(b"SUB a.> 1\r\n")

    taken = turns(peer, b"".join(b"PUB a.%d 0\r\n\r\n" % each for each in range(COUNT)))

    assert b"".join(taken) == b"".join(b"MSG a.%d 1 0\r\n\r\n" % each for each in range(COUNT))
    assert len(taken) == COUNT // PORTION
    assert peer.session.in_messages == COUNT


def test_publishes_whose_routes_are_not_known_are_delivered_in_turns_and_in_order() -> None:
    peer = BusyWorld().peer()
    subjects = [b"a.%d" % each for each in range(100)]
    turns(peer, b"".join(b"SUB %b 1%d\r\n" % (each, n) for n, each in enumerate(subjects)))

    taken = turns(peer, b"".join(b"PUB %b 0\r\n\r\n" % each for each in subjects * 2))

    messages = [b"MSG %b 1%d 0\r\n\r\n" % (each, n) for n, each in enumerate(subjects)]
    assert b"".join(taken) == b"".join(messages * 2)
    assert len(taken) >= 100 // MATCHES
    assert peer.session.in_messages == 200


def test_the_clock_is_looked_at_between_publishes_and_what_else_there_is_to_do() -> None:
    peer = BusyWorld().peer()
    peer.says(b"SUB a.* 7\r\n")
    once = b"PUB a.b 0\r\n\r\nSUB *.z 8\r\nUNSUB 8\r\n"

    taken = turns(peer, once * 10)

    assert b"".join(taken) == b"MSG a.b 7 0\r\n\r\n" * 10
    assert len(taken) >= 10


def test_what_a_handler_puts_off_comes_before_what_came_behind_it() -> None:
    world = World()
    peer = world.peer()
    done: list[bytes] = []

    def handler(batch: list[Op], publisher: object) -> None:
        done.append(batch[0][1])
        peer.session.do_later(lambda: done.append(b"rest of " + batch[0][1]))

    world.broker.default_account.listen(b"call.*", handler)
    data = b"PUB call.1 0\r\n\r\nPING\r\nPUB call.2 0\r\n\r\nPING\r\n"

    assert turns(peer, data) == [b"", b"PONG\r\n", b"PONG\r\n"]
    assert done == [b"call.1", b"rest of call.1", b"call.2", b"rest of call.2"]


def test_what_was_put_off_is_dropped_when_the_session_is_closed() -> None:
    peer = BusyWorld().peer()

    taken = turns(peer, b"PING\r\n" * 40 + b"NONSENSE\r\n" + b"PING\r\n" * 40)

    answers = b"".join(taken)
    assert answers == b"PONG\r\n" * 40 + b"-ERR 'Unknown Protocol Operation'\r\n"
    assert peer.session.put_off == []


def test_a_session_that_has_failed_goes_on_with_nothing() -> None:
    peer = World().peer()
    peer.session.do_later(lambda: peer.session.fail("", "Over"))
    peer.session.do_later(lambda: peer.session.write(b"never\r\n"))

    peer.session.go_on()

    assert (peer.taken(), peer.session.put_off, peer.session.closing) == (b"", [], "Over")
