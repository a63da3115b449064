"""What a server is told of a subscription."""

from __future__ import annotations

from penstock.client.connection.interest import Interest
from penstock.hot.wire import MSG, Op


def interest(queue: bytes = b"") -> Interest:
    return Interest(
        b"a.*", b"7", queue=queue, receive=lambda operations: None, ended=lambda error: None
    )


def operations(count: int) -> list[Op]:
    return [(MSG, b"a.b", b"7", b"", 0, b"")] * count


def test_a_server_is_told_subject_queue_and_sid() -> None:
    assert b"SUB a.* 7\r\n" == interest().subscribe_lines()
    assert b"SUB a.* q 7\r\n" == interest(b"q").subscribe_lines()


def test_a_new_server_is_told_what_is_still_missing() -> None:
    wanted = interest()
    wanted.messages_max = 10
    wanted.admit(operations(4))

    assert b"SUB a.* 7\r\nUNSUB 7 6\r\n" == wanted.subscribe_lines()


def test_no_more_is_let_in_than_was_asked_for() -> None:
    wanted = interest()
    wanted.messages_max = 5

    assert [3, 2, 0] == [len(wanted.admit(operations(3))) for _ in range(3)]
    assert wanted.complete


def test_what_drains_is_not_subscribed_again() -> None:
    draining = interest()
    draining.draining = True

    assert b"" == draining.subscribe_lines()
