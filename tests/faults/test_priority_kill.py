"""
Priority groups over kills: one client is pinned at a time, and whoever was is known no more.

Several clients of the suite's own pull from one group, ack what they get, and go by what
they are told. The server is killed in the middle; the ledger is of all lives together.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from tests.faults.outsider import GONE, PATIENCE_S, Outsider, Told
from tests.servers import PENSTOCK, ServerProcess

KILLS = int(os.environ.get("PRIORITY_KILLS", "4"))
MESSAGES = 200
CLIENTS = 4
SECOND_NS = 1_000_000_000
NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.C"


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


def prepare(client: Outsider, policy: str, **config: Any) -> None:
    client.do("STREAM.CREATE.S", name="S", subjects=["s"])
    consumer = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": 10 * SECOND_NS}
    consumer |= {"priority_policy": policy, "priority_groups": ["g"]} | config
    client.do("CONSUMER.CREATE.S.C", stream_name="S", config=consumer)


def info(client: Outsider) -> dict[str, Any]:
    return client.do("CONSUMER.INFO.S.C")


class Ledger:
    """What was stored, delivered and acked, in all lives of the server."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.pins: list[str] = []
        """Who was pinned, one after the other."""

    def on_message(self, told: Told) -> None:
        assert told.sequence not in self.acked, "acked, and delivered again"
        pin = told.headers.get("Nats-Pin-Id", "")
        if pin and (not self.pins or self.pins[-1] != pin):
            assert pin not in self.pins, "one that was pinned before is so again"
            self.pins.append(pin)


class Worker:
    """A client of the group, as the specification of pinned clients has it."""

    def __init__(self, running: ServerProcess, ledger: Ledger, **wish: Any) -> None:
        self.client = Outsider(running)
        self.ledger = ledger
        self.wish = {"batch": 5, "expires": 5 * SECOND_NS, "group": "g"} | wish
        self.pin = ""
        self.taken = 0
        self.refused = 0
        self._inbox = ""
        self._left = 0

    def step(self) -> None:
        """Ask if nothing is asked for, and take what has come."""
        if not self._left:
            self._inbox, self._left = self.client.inbox(), self.wish["batch"]
            wish = self.wish | ({"id": self.pin} if self.pin else {})
            self.client.publish(NEXT, json.dumps(wish).encode(), reply=self._inbox)
        while told := self.client.next():
            if told.subject != self._inbox and not told.reply:
                continue
            if told.status:
                self._left = 0
                self.on_status(told.status)
            else:
                self.take(told)

    def on_status(self, status: str) -> None:
        if status.startswith("423"):
            self.pin, self.refused = "", self.refused + 1

    def take(self, told: Told) -> None:
        self.ledger.on_message(told)
        self.pin = told.headers.get("Nats-Pin-Id", "")
        self._left = max(self._left - 1, 0)
        self.taken += 1
        self.client.request(told.reply, b"+ACK")
        self.ledger.acked.add(told.sequence)


def work(workers: list[Worker], ledger: Ledger, count: int) -> None:
    """Let all of them work until so many messages are acked."""
    deadline_s = time.monotonic() + 2 * PATIENCE_S
    while len(ledger.acked) < count:
        for worker in workers:
            worker.step()
        assert time.monotonic() < deadline_s, f"{len(ledger.acked)} of {count} acked"


def check_counts(client: Outsider, ledger: Ledger) -> None:
    """See that the server counts as the ledger does."""
    assert ledger.acked == set(range(1, MESSAGES + 1))
    found = info(client)
    assert (found["num_pending"], found["num_ack_pending"]) == (0, 0)
    assert found["ack_floor"]["stream_seq"] == MESSAGES


def test_one_is_pinned_at_a_time_over_all_lives_of_a_server(tmp_path: Path) -> None:
    chance = random.Random(1)
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "pinned_client", priority_timeout=60 * SECOND_NS)
            for _ in range(MESSAGES):
                client.store("s", b"x")
        for life in range(KILLS + 1):
            workers = [Worker(running, ledger) for _ in range(CLIENTS)]
            work(workers, ledger, (life + 1) * MESSAGES // (KILLS + 1))
            pinned = [worker for worker in workers if worker.taken]
            assert len(pinned) == 1, "one client was pinned in this life"
            assert info(pinned[0].client)["priority_groups"][0]["pinned_client_id"] == pinned[0].pin
            if life < KILLS and chance.random() < 0.5:
                # The pin is taken away, and its client goes silent: another takes over.
                silent = pinned[0]
                silent.client.do("CONSUMER.UNPIN.S.C", group="g")
                more = min(len(ledger.acked) + 3, MESSAGES)
                work([each for each in workers if each is not silent], ledger, more)
            if life < KILLS:
                running.process.kill()
                running.start_again()
            else:
                check_counts(workers[0].client, ledger)
            for worker in workers:
                worker.client.__exit__()
        assert len(set(ledger.pins)) == len(ledger.pins) >= KILLS + 1


def test_a_pin_of_a_former_life_is_refused_and_another_is_pinned(tmp_path: Path) -> None:
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "pinned_client", priority_timeout=60 * SECOND_NS)
            for _ in range(MESSAGES):
                client.store("s", b"x")
        before = Worker(running, ledger)
        work([before], ledger, 10)
        running.process.kill()
        running.start_again()

        # The one of the former life comes back with its pin, when nobody has one.
        returned, other = Worker(running, ledger), Worker(running, ledger)
        returned.pin = before.pin
        assert "pinned_client_id" not in info(returned.client)["priority_groups"][0]
        work([returned, other], ledger, 20)
        # And once more, when another has it.
        late = Worker(running, ledger)
        late.pin = before.pin
        work([late, returned, other], ledger, MESSAGES)

        assert returned.refused == late.refused == 1
        assert sorted([returned.taken > 0, other.taken > 0, late.taken > 0]) == [False, False, True]
        assert before.pin == ledger.pins[0]
        check_counts(other.client, ledger)
        for worker in (before, returned, other, late):
            worker.client.__exit__()


def test_no_two_are_pinned_when_a_server_comes_back_to_all_of_them_at_once(tmp_path: Path) -> None:
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "pinned_client", priority_timeout=60 * SECOND_NS)
        for life in range(KILLS):
            workers = [Worker(running, ledger) for _ in range(CLIENTS)]
            for worker in workers:
                # All wait before there is anything, the pins of former lives among them.
                worker.pin = random.Random(life).choice(["", *ledger.pins])
                worker.step()
            with Outsider(running) as client:
                for _ in range(MESSAGES // KILLS):
                    client.store("s", b"x")
            work(workers, ledger, (life + 1) * (MESSAGES // KILLS))
            assert len(ledger.pins) == life + 1
            assert [worker.taken > 0 for worker in workers].count(True) == 1
            for worker in workers:
                worker.client.__exit__()
            running.process.kill()
            running.start_again()


def test_overflow_is_what_it_was_after_a_kill(tmp_path: Path) -> None:
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "overflow")
            for _ in range(MESSAGES // 2):
                client.store("s", b"x")
        for _ in range(KILLS):
            helper = Worker(running, ledger, min_pending=MESSAGES // 2 + 1)
            for _ in range(10):
                helper.step()
            assert info(helper.client)["num_pending"] == MESSAGES // 2
            assert helper.taken == 0, "it is not to help before there is more to do"
            helper.client.__exit__()
            running.process.kill()
            running.start_again()
        helper = Worker(running, ledger, min_pending=MESSAGES // 2 + 1)
        for _ in range(MESSAGES // 2):
            helper.client.store("s", b"x")
        work([helper], ledger, MESSAGES // 2)
        for _ in range(20):
            helper.step()
        assert helper.taken == MESSAGES // 2, "and no more than that"
        usual = Worker(running, ledger)
        work([helper, usual], ledger, MESSAGES)
        check_counts(usual.client, ledger)
        for worker in (helper, usual):
            worker.client.__exit__()


def test_those_with_a_smaller_number_go_first_in_each_life(tmp_path: Path) -> None:
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "prioritized")
        for life in range(KILLS):
            second = Worker(running, ledger, priority=2, batch=100)
            second.step()
            first = Worker(running, ledger, priority=1, batch=100)
            first.step()
            # Both requests have arrived before there is anything to deliver.
            assert info(first.client)["num_waiting"] == info(second.client)["num_waiting"] == 2
            for _ in range(MESSAGES // KILLS):
                first.client.store("s", b"x")
            done = (life + 1) * (MESSAGES // KILLS)
            work([first, second], ledger, done - 5)
            assert second.taken == 0
            work([first, second], ledger, done)
            for worker in (first, second):
                worker.client.__exit__()
            running.process.kill()
            running.start_again()
        with Outsider(running) as client:
            check_counts(client, ledger)


def test_a_kill_in_the_middle_of_deliveries_gives_none_twice_that_was_acked(tmp_path: Path) -> None:
    chance = random.Random(2)
    ledger = Ledger()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, "pinned_client", priority_timeout=60 * SECOND_NS)
            for _ in range(MESSAGES):
                client.store("s", b"x")
        for _ in range(KILLS):
            workers = [Worker(running, ledger) for _ in range(CLIENTS)]
            try:
                for _ in range(chance.randrange(1, 6)):
                    for worker in workers:
                        worker.step()
                # Requests, deliveries and acks are under way.
                running.process.kill()
                for worker in workers:
                    worker.step()
            except GONE:
                pass
            for worker in workers:
                worker.client.__exit__()
            running.start_again()
        workers = [Worker(running, ledger) for _ in range(CLIENTS)]
        work(workers, ledger, MESSAGES)
        check_counts(workers[0].client, ledger)
        for worker in workers:
            worker.client.__exit__()
