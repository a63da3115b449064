"""What needs attention, by rule: what the rule finds, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.net.monitor.watch.attention import DISK_FREE_MIN, RULES, findings
from penstock.net.monitor.watch.reports import (
    ConsumerReport,
    PipelineReport,
    Reports,
    ServerReport,
    StreamReport,
)

HOUR_S = 3600.0


def stream(name: str = "ORDERS", **fields: Any) -> StreamReport:
    plain = StreamReport(
        account="A",
        name=name,
        created="",
        storage="file",
        messages=10,
        bytes=1000,
        first=1,
        last=10,
        consumers=1,
        messages_max=-1,
        bytes_max=-1,
        age_max_ns=0,
        per_subject_max=-1,
        discards_old=True,
        retention="limits",
        lost=0,
        faults=0,
        failure="",
    )
    return plain._replace(**fields)


def consumer(**fields: Any) -> ConsumerReport:
    plain = ConsumerReport(
        account="A",
        stream="ORDERS",
        name="billing",
        pending=0,
        unacked=0,
        unacked_max=1000,
        redelivered=0,
        waiting=1,
        delivered=10,
        withdrawn=0,
        is_paused=False,
        pending_before=0,
    )
    return plain._replace(**fields)


def reports(*seen: Any, unreadable: Any = (), **figures: Any) -> Reports:
    streams = [each for each in seen if isinstance(each, StreamReport)] or [stream()]
    return Reports(
        ServerReport(0, **figures),
        {each.key: each for each in streams},
        {each.key: each for each in seen if isinstance(each, ConsumerReport)},
        [each for each in seen if isinstance(each, PipelineReport)],
        list(unreadable),
    )


STANDING = PipelineReport("A", "archive", "ORDERS", behind_messages=5, age_s=300)
DEAD = stream("shop-dead", messages=3, newest="of `orders.placed` with ValueError by `billing`")
TROUBLE = {
    "store_failure": reports(stream(failure="No space left on device")),
    "damage": reports(stream(lost=2)),
    "disk": reports(disk_free=1 << 40, disk_full_s=5 * HOUR_S),
    "losing": reports(stream(), consumer(pending=10, passed=700)),
    "stuck": reports(stream(), consumer(pending=5, unacked=1000, pending_before=5)),
    "behind": reports(stream(), consumer(pending=5000, pending_before=2000)),
    "dead_letters": reports(stream("shop"), DEAD),
    "slow_consumers": reports(slow_lately=2, slow_last="`dashboard` from 10.0.0.1: Slow Consumer"),
    "standstill": reports(stream(), STANDING),
}

WELL = {
    "nothing at all": reports(),
    "a consumer that waits for others to be faster": reports(
        stream(), consumer(pending=5000, pending_before=9000)
    ),
    "a consumer that is new": reports(stream(), consumer(pending=5000, pending_before=-1)),
    "a consumer that is paused": reports(
        stream(), consumer(pending=5000, pending_before=0, is_paused=True)
    ),
    "a consumer with a short queue": reports(stream(), consumer(pending=99, pending_before=0)),
    "all unacked, and nothing waits": reports(stream(), consumer(unacked=1000)),
    "no bound on what is unacked": reports(
        stream(), consumer(unacked=9000, unacked_max=0, pending=50, pending_before=50)
    ),
    "a stream that only ends like dead letters": reports(DEAD),
    "a bus without dead letters": reports(stream("shop"), stream("shop-dead", messages=0)),
    "a disk that is full next week": reports(disk_free=1 << 40, disk_full_s=170 * HOUR_S),
    "a disk that is never full": reports(disk_free=1 << 40, disk_full_s=-1.0),
    "a pipeline that has read everything": reports(stream(), STANDING._replace(behind_messages=0)),
    "a pipeline that has just reported": reports(stream(), STANDING._replace(age_s=5)),
}


def test_there_is_a_case_for_each_rule() -> None:
    assert [rule.name for rule in RULES] == list(TROUBLE)


@pytest.mark.parametrize("rule", TROUBLE)
def test_a_rule_finds_its_trouble_and_no_other_does(rule: str) -> None:
    (found,) = findings(TROUBLE[rule])

    assert rule == found.rule
    assert found.text


@pytest.mark.parametrize("case", WELL)
def test_the_list_is_empty_when_all_is_well(case: str) -> None:
    assert [] == findings(WELL[case])


def test_a_finding_says_where_and_how_much() -> None:
    (found,) = findings(TROUBLE["behind"])

    assert "`billing` on `ORDERS` is 5,000 messages behind, 3,000 more than a minute ago" == (
        found.text
    )
    assert {"account": "A", "stream": "ORDERS", "consumer": "billing"} == found.where


def test_dead_letters_come_with_the_kind_of_the_newest_cause() -> None:
    (found,) = findings(TROUBLE["dead_letters"])

    assert found.text.endswith("3 dead letters, the newest of `orders.placed` with ValueError by "
                               "`billing`")  # fmt: skip
    assert "shop" == found.where["bus"]


def test_a_disk_with_nearly_nothing_left_is_found_at_once() -> None:
    (found,) = findings(reports(disk_free=DISK_FREE_MIN - 1))

    assert "disk" == found.rule


def test_a_pipeline_that_was_done_is_behind_by_what_came_since() -> None:
    idle = STANDING._replace(behind_messages=0, stored_since=40)

    (found,) = findings(reports(stream(), idle))

    assert "40 messages behind" in found.text


def test_what_could_not_be_brought_back_is_damage() -> None:
    (found,) = findings(reports(unreadable=[("A", "OLD", "no such file")]))

    assert ("damage", "OLD") == (found.rule, found.where["stream"])


def test_what_loses_data_comes_first() -> None:
    both = reports(stream(lost=1), consumer(pending=10, passed=3), slow_lately=1)

    assert ["damage", "losing", "slow_consumers"] == [each.rule for each in findings(both)]
