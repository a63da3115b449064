"""What may be published, subscribed to, received and answered."""

from __future__ import annotations

import pytest

from penstock.config.accounts import Permissions as Rules
from penstock.config.accounts import ResponseRules, SubjectRules
from penstock.core.identity.permissions import DECISIONS_MAX, Permissions

SECOND_NS = 1_000_000_000


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def rules(*allow: str, deny: tuple[str, ...] = ()) -> SubjectRules:
    return SubjectRules(allow=allow or None, deny=deny)


@pytest.mark.parametrize(
    ("publish", "subject", "expected"),
    [
        (rules(), b"a", True),
        (rules("a"), b"a", True),
        (rules("a"), b"b", False),
        (rules("a.*", "b.>"), b"a.x", True),
        (rules("a.*", "b.>"), b"a.x.y", False),
        (rules("a.*", "b.>"), b"b.x.y", True),
        (rules(deny=("a.*",)), b"a.x", False),
        (rules(deny=("a.*",)), b"a.>", False),
        (rules(deny=("a.*",)), b"b", True),
        (rules("a.>", deny=("a.b",)), b"a.b", False),
        (rules("a.>", deny=("a.b",)), b"a.c", True),
        (rules("a.>"), b"a..b", False),
        (rules(deny=(">",)), b"a..b", True),
        (SubjectRules(allow=()), b"a", False),
    ],
)
def test_publish_rules(publish: SubjectRules, subject: bytes, expected: bool) -> None:
    permissions = Permissions(Rules(publish=publish), Clock())

    assert expected == permissions.may_publish(subject)
    assert expected == permissions.allows(subject), "and the same when asked again"


@pytest.mark.parametrize(
    ("subscribe", "subject", "queue", "expected"),
    [
        (rules(), b"a", b"", True),
        (rules("a.*"), b"a.b", b"", True),
        (rules("a.*"), b"a.*", b"", True),
        (rules("a.*"), b"a.>", b"", False),
        (rules("a.*"), b"*.b", b"", False),
        (rules("a.>"), b"a.>", b"", True),
        (rules("a.>"), b"a.*.>", b"", True),
        (rules(deny=("a.b",)), b"a.b", b"", False),
        (rules(deny=("a.b",)), b"a.b", b"g", False),
        (rules(deny=("a.b",)), b"a.*", b"", True),
        (rules("a"), b"a", b"g", True),
        (rules("a g"), b"a", b"", False),
        (rules("a g"), b"a", b"g", True),
        (rules("a g"), b"a", b"h", False),
        (rules("a", "a g"), b"a", b"", True),
        (rules("a", "a g"), b"a", b"g", True),
        (rules("a", "a g"), b"a", b"h", False),
        (rules("a *.v1"), b"a", b"x.v1", True),
        (rules("a *.v1"), b"a", b"x.v2", False),
        (rules(deny=("a g",)), b"a", b"", True),
        (rules(deny=("a g",)), b"a", b"g", False),
        (rules(deny=("a g",)), b"a", b"h", True),
        (rules(deny=("a *.v1",)), b"a", b"x.v1", False),
    ],
)
def test_subscribe_rules(
    subscribe: SubjectRules, subject: bytes, queue: bytes, expected: bool
) -> None:
    permissions = Permissions(Rules(subscribe=subscribe), Clock())

    assert expected == permissions.may_subscribe(subject, queue)


@pytest.mark.parametrize(
    ("deny", "subject", "queue", "expected"),
    [
        (("a.b",), b"a.b", b"", False),
        (("a.b",), b"a.c", b"", True),
        (("a.*",), b"a.c", b"g", False),
        (("a.b g",), b"a.b", b"", True),
        (("a.b g",), b"a.b", b"g", False),
        (("a.b g",), b"a.b", b"h", True),
    ],
)
def test_a_denied_message_is_held_back_from_a_wider_subscription(
    deny: tuple[str, ...], subject: bytes, queue: bytes, expected: bool
) -> None:
    permissions = Permissions(Rules(subscribe=rules(deny=deny)), Clock())

    assert expected == permissions.may_receive(subject, queue)


@pytest.mark.parametrize(
    ("permission", "expected"),
    [
        (Rules(), False),
        (Rules(subscribe=rules("a")), False),
        (Rules(subscribe=rules(deny=("a",))), True),
        (Rules(allow_responses=ResponseRules()), True),
    ],
)
def test_deliveries_are_watched_only_where_a_rule_needs_it(
    permission: Rules, expected: bool
) -> None:
    assert expected == Permissions(permission, Clock()).watches_delivery


def responder(messages_max: int = 1, expires_s: float = 2.0) -> tuple[Permissions, Clock]:
    clock = Clock()
    responses = ResponseRules(messages_max=messages_max, expires_s=expires_s)
    return Permissions(Rules(allow_responses=responses), clock), clock


def test_a_responder_may_publish_nothing_but_answers() -> None:
    permissions, _ = responder()

    assert not permissions.may_publish(b"r")
    permissions.expect_reply(b"r")
    assert not permissions.may_publish(b"s")
    assert permissions.may_publish(b"r")


@pytest.mark.parametrize("messages_max", [1, 3])
def test_a_request_may_be_answered_so_many_times(messages_max: int) -> None:
    permissions, _ = responder(messages_max)
    permissions.expect_reply(b"r")

    answers = [permissions.may_publish(b"r") for _ in range(messages_max + 2)]

    assert answers == [True] * messages_max + [False, False]


@pytest.mark.parametrize("messages_max", [0, -1])
def test_without_a_limit_a_request_may_be_answered_until_it_expires(messages_max: int) -> None:
    permissions, clock = responder(messages_max)
    permissions.expect_reply(b"r")

    assert all(permissions.may_publish(b"r") for _ in range(100))
    clock.now_ns = 2 * SECOND_NS - 1
    assert permissions.may_publish(b"r")
    clock.now_ns = 2 * SECOND_NS
    assert not permissions.may_publish(b"r")


def test_a_second_request_with_an_open_reply_subject_uses_it_up() -> None:
    permissions, _ = responder()
    permissions.expect_reply(b"r")
    permissions.expect_reply(b"r")

    assert not permissions.may_publish(b"r")


def test_replies_that_are_allowed_anyway_are_not_noted() -> None:
    publish = rules("r")
    permissions = Permissions(Rules(publish=publish, allow_responses=ResponseRules()), Clock())

    permissions.expect_reply(b"r")

    assert permissions._replies == {}


def test_replies_are_not_noted_where_nothing_is_allowed_for_them() -> None:
    permissions = Permissions(Rules(publish=rules("a")), Clock())

    permissions.expect_reply(b"r")

    assert not permissions.may_publish(b"r")


def test_the_memory_of_decisions_is_bounded() -> None:
    permissions = Permissions(Rules(publish=rules("a.>")), Clock())

    for number in range(DECISIONS_MAX + 10):
        assert permissions.may_publish(b"a.%d" % number)

    assert len(permissions._decisions) <= DECISIONS_MAX


def test_of_too_many_open_replies_the_expired_go_first_then_the_oldest() -> None:
    permissions, clock = responder()
    permissions.expect_reply(b"expired")
    clock.now_ns = 2 * SECOND_NS
    for number in range(DECISIONS_MAX):
        permissions.expect_reply(b"r.%d" % number)
    assert (b"expired" in permissions._replies, len(permissions._replies)) == (False, DECISIONS_MAX)

    permissions.expect_reply(b"last")

    assert len(permissions._replies) == DECISIONS_MAX
    assert not permissions.may_publish(b"r.0")
    assert permissions.may_publish(b"r.1")
    assert permissions.may_publish(b"last")
