"""Routes that are remembered stay those that would be worked out anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.work import work_of

from penstock.core.routing.route import WIDE, Route, RouteTable, Subscription
from penstock.protocol import subjects

TOKENS = st.sampled_from([b"a", b"b", b"$JS", b"ACK", b"*", b">", b"i1", b"i2"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
PATTERNS = SUBJECTS.filter(subjects.is_valid)
ODD_SUBJECTS = st.one_of(SUBJECTS, st.sampled_from([b".", b"a.", b".a", b"a..b", b"a.b."]))


def ignore(*_: object) -> None:
    """A handler that does nothing: routes are looked at, nothing is delivered."""


def handler(subject: bytes, sid: int = 0) -> Subscription:
    return Subscription(subject, None, sid=b"%d" % sid, handler=ignore)


def handlers_of(route: Route) -> set[Subscription]:
    return set(route.handlers)


class RememberedRoutes(RuleBasedStateMachine):
    """Subscriptions come and go, subjects are looked up, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(4)
        self.subscriptions: list[Subscription] = []
        self.most = 0
        """Subjects that may be remembered because there were so many subscriptions."""

    @rule(pattern=PATTERNS)
    def subscribe(self, pattern: bytes) -> None:
        subscription = handler(pattern)
        self.subscriptions.append(subscription)
        self.table.insert(subscription)
        self.most = max(self.most, 2 * len(self.subscriptions))

    @rule(index=st.integers(0, 100))
    def unsubscribe(self, index: int) -> None:
        if self.subscriptions:
            self.table.remove(self.subscriptions.pop(index % len(self.subscriptions)))

    @rule(subject=ODD_SUBJECTS)
    def look_up(self, subject: bytes) -> None:
        route = self.table.cache.get(subject) or self.table.find(subject)
        assert self.expected(subject) == handlers_of(route)
        assert route.is_empty == (not self.expected(subject))

    @rule(replies=st.lists(SUBJECTS, min_size=1, max_size=4))
    def look_up_together(self, replies: list[bytes]) -> None:
        route = self.table.shared_route(replies)
        for reply in replies if route is not None else []:
            assert self.expected(reply) == handlers_of(route)

    @invariant()
    def everything_remembered_is_still_right(self) -> None:
        for subject, route in self.table.cache.items():
            assert self.expected(subject) == handlers_of(route)

    @invariant()
    def the_memory_is_bounded(self) -> None:
        assert len(self.table.cache) <= max(4, self.most)
        assert len(self.table._by_prefix) <= 4
        branches = [each for some in self.table._by_tokens.values() for each in some.values()]
        assert set(self.table.cache) == set().union(*branches)
        assert all(branches)

    def expected(self, subject: bytes) -> set[Subscription]:
        if b"" in subject.split(b"."):
            return set()
        return {each for each in self.subscriptions if subjects.matches(each.subject, subject)}


RememberedRoutes.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRememberedRoutes = RememberedRoutes.TestCase


class KeptWideRoutes(RememberedRoutes):
    """The same, where every subject with a receiver counts as one with very many."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(4, wide=1)


KeptWideRoutes.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestKeptWideRoutes = KeptWideRoutes.TestCase


def test_a_route_to_very_many_is_not_worked_out_again_for_a_pattern_beside_it() -> None:
    table = RouteTable(64)
    for sid in range(WIDE):
        table.insert(handler(b"a.*", sid))
    route = table.find(b"a.b")

    table.insert(handler(b"*.z"))

    assert work_of(lambda: table.find(b"a.b")) < 50
    assert table.find(b"a.b") is route
    table.insert(handler(b"*.b"))
    assert len(table.find(b"a.b").handlers) == WIDE + 1


def test_subjects_with_the_same_receivers_share_a_route() -> None:
    table = RouteTable(100)
    table.insert(handler(b"a.>"))
    table.insert(handler(b"a.b.c"))

    assert table.find(b"a.x") is table.find(b"a.y.z")
    assert table.find(b"a.b.c") is not table.find(b"a.b.d")


def test_a_new_inbox_leaves_other_subjects_remembered() -> None:
    table = RouteTable(100)
    table.insert(handler(b"orders.>"))
    route = table.find(b"orders.new")

    table.insert(handler(b"_INBOX.1.*"))

    assert table.cache == {b"orders.new": route}


def test_a_full_memory_is_emptied_and_filled_again() -> None:
    table = RouteTable(2)
    table.insert(handler(b"a"))

    for subject in (b"a", b"b", b"c"):
        table.find(subject)

    assert list(table.cache) == [b"c"]


def test_all_subjects_that_are_subscribed_to_are_remembered() -> None:
    table = RouteTable(2)
    wanted = [b"s.%d" % number for number in range(100)]
    for subject in wanted:
        table.insert(handler(subject))

    for subject in wanted:
        table.find(subject)

    assert list(table.cache) == wanted


@pytest.mark.parametrize(
    "pattern", [b"a.zzz.*", b"a.b.zzz.*", b"a.*.zzz", b"a.>", b"*.zzz", b"a.b.*", b"a.7.*.*"]
)
@pytest.mark.parametrize("form", [b"a.b.%d", b"a.%d", b"a.%d.b"])
def test_who_comes_and_goes_costs_the_same_whatever_is_remembered(
    pattern: bytes, form: bytes
) -> None:
    def churn_calls(remembered: int) -> int:
        table = RouteTable(100_000)
        table.insert(handler(b"a.b.c"))
        for number in range(remembered):
            table.find(form % number)
        passing = handler(pattern)
        table.insert(passing)  # Drops what it has to, once.
        table.remove(passing)
        return work_of(lambda: [(table.insert(passing), table.remove(passing)) for _ in range(10)])

    assert churn_calls(5000) <= churn_calls(50) + 10


def test_a_branch_that_is_large_is_forgotten_as_a_whole() -> None:
    table = RouteTable(1000)
    for number in range(200):
        table.find(b"a.b.%d" % number)
        table.find(b"a.c.%d" % (number % 10))

    table.insert(handler(b"a.b.zzz.*"))

    assert set(table.cache) == {b"a.c.%d" % number for number in range(10)}


def test_replies_of_one_inbox_have_one_route() -> None:
    table = RouteTable(100)
    table.insert(handler(b"_INBOX.x.*"))

    route = table.shared_route([b"_INBOX.x.1", b"_INBOX.x.2"])

    assert route is not None
    assert route is table.find(b"_INBOX.x.3")


def test_replies_of_several_inboxes_are_looked_up_one_by_one() -> None:
    table = RouteTable(100)
    table.insert(handler(b"_INBOX.x.*"))

    assert table.shared_route([b"_INBOX.x.1", b"_INBOX.y.2"]) is None
    assert table.shared_route([b"_INBOX.x.1", b"_INBOX.x.2.3"]) is None
    assert table.shared_route([b"_INBOX.x.1", b"_INBOX.x."]) is None


def test_acks_are_remembered_by_what_they_have_in_common() -> None:
    table = RouteTable(100)
    table.insert(handler(b"$JS.ACK.>"))

    first = table.find(b"$JS.ACK.stream.consumer.1.1.1.1.0")
    matches = table.matches

    assert first is table.find(b"$JS.ACK.stream.consumer.1.2.2.2.0")
    assert (table.matches, table.cache) == (matches, {})


@given(PATTERNS)
def test_a_watch_is_told_who_comes_and_goes_on_just_its_subject(changed: bytes) -> None:
    table = RouteTable(100)
    told: list[bytes] = []
    watched = [b"a", b"a.b", b"i1.i2"]
    for subject in watched:
        table.watch(subject, lambda subject=subject: told.append(subject))
    expected = [each for each in watched if changed == each]
    subscription = handler(changed)

    table.insert(subscription)
    assert expected == told
    table.remove(subscription)
    assert expected * 2 == told


def test_a_watch_that_ended_is_told_nothing() -> None:
    table = RouteTable(100)
    told: list[str] = []
    actions = [lambda: told.append("one"), lambda: told.append("two")]
    for action in actions:
        table.watch(b"a", action)

    table.unwatch(b"a", actions[0])
    table.insert(handler(b"a"))
    table.unwatch(b"a", actions[1])
    table.insert(handler(b"a"))

    assert told == ["two"]
