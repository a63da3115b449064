"""
Schedules and times to live when the server is killed before, at and after they are due.

Each schedule makes its message once: none is lost, none made twice. What repeats goes on
after a restart, also where its messages are consumed and gone by then.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.outsider import PATIENCE_S, Outsider
from tests.servers import PENSTOCK, ServerProcess, wait_until

KILLS = int(os.environ.get("SCHEDULE_KILLS", "4"))
EACH_LIFE = 20
LATEST_S = 3.0
STREAM: dict[str, Any] = {
    "name": "T",
    "subjects": ["t.>"],
    "allow_msg_schedules": True,
    "allow_msg_ttl": True,
    "allow_direct": True,
}


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


def rfc3339(time_s: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
    return f"{whole}.{int(time_s % 1 * 1e9):09d}Z"


def schedule(client: Outsider, name: str, pattern: str, target: str, **more: str) -> None:
    told = {"Nats_Schedule": pattern, "Nats_Schedule_Target": target}
    client.store(f"t.schedule.{name}", name.encode(), **told, **more)


def subjects(client: Outsider) -> Counter[str]:
    """Return how many messages there are of each subject."""
    return Counter(client.do("STREAM.INFO.T", subjects_filter=">")["state"].get("subjects", {}))


def test_a_schedule_makes_one_message_whenever_the_server_dies(tmp_path: Path) -> None:
    chance = random.Random(1)
    asked: set[str] = set()
    with server(tmp_path) as running:
        with Outsider(running) as client:
            client.do("STREAM.CREATE.T", **STREAM)
        for life in range(KILLS):
            with Outsider(running) as client:
                for number in range(EACH_LIFE):
                    name = f"{life}-{number}"
                    due = f"@at {rfc3339(time.time() + chance.uniform(-0.5, LATEST_S))}"
                    schedule(client, name, due, f"t.made.{name}")
                    asked.add(f"t.made.{name}")
                change(client, life)
                # So that some are due before the kill, some about it, and some while it is dead.
                time.sleep(chance.uniform(0, LATEST_S / 2))
                running.process.kill()
            running.start_again()
        with Outsider(running) as client:
            wait_until(lambda: asked <= subjects(client).keys(), timeout_s=PATIENCE_S)
            assert subjects(client) == Counter(asked)


def change(client: Outsider, life: int) -> None:
    """Change the stream meanwhile."""
    client.do("STREAM.UPDATE.T", **STREAM, max_msgs=10_000 + life, description=str(life))


def test_what_was_taken_back_is_not_made_after_a_kill(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        with Outsider(running) as client:
            client.do("STREAM.CREATE.T", **STREAM)
            soon = f"@at {rfc3339(time.time() + 2)}"
            schedule(client, "kept", soon, "t.made.kept")
            schedule(client, "purged", soon, "t.made.purged")
            schedule(client, "replaced", soon, "t.made.old")
            schedule(client, "replaced", soon, "t.made.new")
            client.do("STREAM.PURGE.T", filter="t.schedule.purged")
            running.process.kill()
        running.start_again()
        with Outsider(running) as client:
            expected = Counter(["t.made.kept", "t.made.new"])
            wait_until(lambda: subjects(client) == expected, timeout_s=PATIENCE_S)


def test_what_repeats_goes_on_where_its_messages_are_consumed(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        with Outsider(running) as client:
            client.do("STREAM.CREATE.T", **STREAM, retention="workqueue")
            schedule(client, "every", "@every 2s", "t.work.every")
            schedule(client, "cron", "*/2 * * * * *", "t.work.cron")
            consumer = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "t.work.>"}
            client.do("CONSUMER.CREATE.T.C", stream_name="T", config=consumer)
        seen: Counter[str] = Counter()
        sequences: set[int] = set()
        began_s = time.monotonic()
        # It is killed more often than anything is due.
        while min(seen["t.work.every"], seen["t.work.cron"]) < 3:
            assert time.monotonic() < began_s + 2 * PATIENCE_S, seen
            with Outsider(running) as client:
                for subject, sequence in consume(client, 1.2):
                    assert sequence not in sequences
                    sequences.add(sequence)
                    seen[subject] += 1
                running.process.kill()
            running.start_again()
        assert max(seen.values()) <= (time.monotonic() - began_s) / 2 + 2


def consume(client: Outsider, seconds: float) -> list[tuple[str, int]]:
    """Take and ack what there is for a while."""
    taken = []
    deadline_s = time.monotonic() + seconds
    inbox = client.inbox()
    while (left_s := deadline_s - time.monotonic()) > 0:
        body = b'{"batch":1,"expires":%d}' % int(left_s * 1e9)
        client.publish("$JS.API.CONSUMER.MSG.NEXT.T.C", body, reply=inbox)
        told = client.next(left_s)
        if told is not None and told.reply:
            client.request(told.reply, b"+ACK")
            taken.append((told.subject, told.sequence))
    return taken


def test_a_message_lives_as_long_as_it_was_given_over_a_kill(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        with Outsider(running) as client:
            client.do("STREAM.CREATE.T", **STREAM)
            began_s = time.time()
            for number in range(10):
                client.store(f"t.short.{number}", b"", Nats_TTL="2s")
            client.store("t.long", b"", Nats_TTL="1h")
            schedule(client, "a", f"@at {rfc3339(began_s + 1)}", "t.made", Nats_Schedule_TTL="2s")
            running.process.kill()
        running.start_again()
        with Outsider(running) as client:
            if time.time() < began_s + 1.5:
                assert subjects(client)["t.short.1"] == 1
            wait_until(lambda: subjects(client) == Counter(["t.long"]), timeout_s=PATIENCE_S)
        assert time.time() >= began_s + 3
