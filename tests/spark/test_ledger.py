"""
A stream that is archived and copied at once while everything happens, and a witness.

A producer never stops. Drivers, executors and servers are killed and come back; a server of three
misses some messages before it does. Between two lives of the driver its cores, tasks, batches and
queries are others, and its checkpoints are set another way. Single messages are deleted, and the
head of the stream is trimmed, while it is read and between. In the end the
witness looks into lake and target with tools of its own: each message is there once, or its
deletion was asked for, or an error has told of it. And all of that has to have happened.

`SPARK_LEDGER_ROUNDS` makes the long form: on nats-server and on three of them as well, and with
executors of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pyarrow.parquet as pq
import pytest
from nats.js import JetStreamContext
from tests.cluster import NODES, cluster_of
from tests.servers import NATS_SERVER, PENSTOCK, ServerProcess, wait_until
from tests.spark.conftest import Broker, elected, wait_until_forgotten
from tests.spark.ledgerhost import COPIES
from tests.spark.processes import descendants, executors, kill, kill_driver, kill_one_of

ROUNDS = int(os.environ.get("SPARK_LEDGER_ROUNDS", "0"))
ALONE, CLUSTER = ("local[2]", "local[3]"), "local-cluster[2,1,1024]"
MASTERS = (CLUSTER, ALONE[0], CLUSTER, ALONE[1]) if ROUNDS else ALONE
"""In turns. A round has two or three lives, so that each kind of life meets each of these."""
QUERIES = ("archive", "copy")
SUBJECTS = ("", "SOURCE.>", "SOURCE.*, SOURCE.*.more")
"""Ways to ask for all there is: what subjects leave out could hide what is gone."""
STEP_S = 600
PACE = 50
"""Messages the producer has under way at once, ten times a second."""
SLOW = 50
"""Messages a second that a task writes, so that there is time to kill it before it is done."""
WINDOW_S = 10
"""How long the target remembers ids: a server on a busy machine stores within half of it."""
AHEAD = 3000
MISSED = 300
"""What a server of three misses while it is away."""
LOST = 700
"""How far behind the newest batch the head of the stream is trimmed to."""
GONE = re.compile(r"messages (\d+) to (\d+) of stream `SOURCE` are gone")
OVERTAKEN = re.compile(
    r"the head of stream `SOURCE` moved to (\d+) while it was read, and messages from (\d+) on"
)


class Witness:
    """Knows what was stored, what was removed on purpose, and what each query has told."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        """By sequence, what the producer has an ack for."""
        self.deleted: set[int] = set()
        self.trimmed_to = 0
        self.told: dict[str, set[int]] = {"archive": set(), "copy": set()}
        """The sequences that an error of a query has spoken of."""

    def hear(self, query: str, error: str) -> None:
        """Take note of how a query ended; it may give up for nothing but messages that are gone."""
        if not error:
            return
        ranges = [(int(first), int(last)) for first, last in GONE.findall(error)]
        ranges += [(int(first), int(head) - 1) for head, first in OVERTAKEN.findall(error)]
        assert ranges, f"{query}: {error}"
        for first, last in ranges:
            told = set(range(first, last + 1))
            assert any(self._is_removed(each) for each in told), f"{query}: {error}"
            self.told[query] |= told

    def judge(self, query: str, found: list[bytes]) -> dict[str, int]:
        """See that each message is there once, or that it was said why not; return the figures."""
        counts = Counter(found)
        doubled = [data for data, times in counts.items() if times > 1]
        assert not doubled, f"{query}: {len(doubled)} doubled, as {doubled[:3]}"
        foreign = counts.keys() - set(self.stored.values())
        assert not foreign, f"{query}: {len(foreign)} of nobody, as {sorted(foreign)[:3]}"
        missing = {n for n, data in self.stored.items() if data not in counts}
        kept = sorted(n for n in missing if not self._is_removed(n))
        assert not kept, f"{query}: {len(kept)} are in the stream and were not brought: {kept[:9]}"
        quiet = sorted(missing - self.deleted - self.told[query])
        assert not quiet, f"{query}: {len(quiet)} lost without a word: {quiet[:9]}"
        return {"stored": len(self.stored), "found": len(found), "told": len(missing)}

    def _is_removed(self, sequence: int) -> bool:
        return sequence in self.deleted or sequence <= self.trimmed_to


class Producer:
    """Publishes numbered messages on a thread, each until it has an ack, inside a `with` block."""

    def __init__(self, urls: list[str], witness: Witness, read_up_to: Callable[[], int]) -> None:
        self._urls = urls
        self._witness = witness
        self._read_up_to = read_up_to
        self._is_stopping = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._thread.join()

    async def _run(self) -> None:
        async with await connect_foreign(self._urls) as client:
            jetstream = client.jetstream(timeout=5)
            number = 0
            while not self._is_stopping:
                await asyncio.sleep(0.1)
                # On a busy machine it would be far ahead of its readers.
                if number < self._read_up_to() + AHEAD:
                    burst = [self._store(jetstream, number + each) for each in range(PACE)]
                    await asyncio.gather(*burst)
                    number += PACE

    async def _store(self, jetstream: JetStreamContext, number: int) -> None:
        data, headers = b'{"n": %d}' % number, {"Nats-Msg-Id": f"n-{number}"}
        while True:
            with suppress(nats.errors.Error, OSError):
                ack = await jetstream.publish(f"SOURCE.{number % 7}", data, headers=headers)
                self._witness.stored[ack.seq] = data
                return
            await asyncio.sleep(0.2)


async def connect_foreign(urls: list[str]) -> nats.NATS:
    """Return a client of somebody else's, that goes on when servers come back."""

    async def ignore(_: Exception) -> None:
        """It connects again by itself."""

    return await nats.connect(
        servers=urls, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=ignore
    )


class Place:
    """Where the streams are: one server, or three of which each may go for a while."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.is_cluster = kind == "cluster"
        if self.is_cluster:
            self.servers = cluster_of(NODES, stack)
            elected(Broker(self.servers[0].url, replicas=NODES))
        else:
            program = PENSTOCK if kind == "penstock" else NATS_SERVER
            flags = ("-js", "-sd", "store")
            self.servers = [stack.enter_context(ServerProcess(program, "", *flags))]
        self.urls = [server.url for server in self.servers]
        replicas = len(self.servers)
        for name in ("SOURCE", "TARGET"):
            window_s = WINDOW_S if name == "TARGET" else 3600
            self.ask(
                lambda js, name=name, window_s=window_s: js.add_stream(
                    name=name,
                    subjects=[f"{name}.>"],
                    num_replicas=replicas,
                    duplicate_window=window_s,
                )
            )

    def ask(self, question: Callable[[JetStreamContext], Any]) -> Any:
        """Ask until there is an answer: a server may be starting, or be about to lead."""

        async def attempt() -> Any:
            async with await connect_foreign(self.urls) as client:
                return await question(client.jetstream(timeout=5))

        def is_answered() -> bool:
            with suppress(nats.errors.Error, OSError):
                answers.append(asyncio.run(attempt()))
            return bool(answers)

        answers: list[Any] = []
        wait_until(is_answered, timeout_s=STEP_S)
        return answers[0]

    def restart(self) -> None:
        """Kill the only server, and have it come back with what it had."""
        self.servers[0].process.kill()
        self.servers[0].start_again()

    def restart_one(self, stream: str, *, leader: bool) -> None:
        """Kill a server of three, and have it come back when the others are ahead of it."""
        led_by = self.ask(lambda js: js.stream_info(stream)).cluster.leader
        leading = self.servers[int(led_by.removeprefix("n"))]
        chosen = leading if leader else next(s for s in self.servers if s is not leading)
        missed = self.last_sequence() + MISSED
        chosen.process.kill()
        wait_until(lambda: self.last_sequence() >= missed, timeout_s=STEP_S)
        chosen.start_again()

    def last_sequence(self) -> int:
        """Return the end of the source."""
        return int(self.ask(lambda js: js.stream_info("SOURCE")).state.last_seq)

    def copied(self) -> int:
        """Return how many messages the target holds."""
        return int(self.ask(lambda js: js.stream_info("TARGET")).state.messages)

    def target(self) -> list[bytes]:
        """Return what the target holds."""

        async def read(jetstream: JetStreamContext) -> list[bytes]:
            messages = await jetstream.subscribe("TARGET.>", ordered_consumer=True)
            return [(await messages.next_msg(timeout=30)).data for _ in range(count)]

        count = self.copied()
        found: list[bytes] = self.ask(read)
        return found


class Driver:
    """One life of the program that runs both queries, inside a `with` block."""

    def __init__(self, home: Path, life: dict[str, Any]) -> None:
        self._checkpoints = Path(life["checkpoints"])
        self._said = home / "said"
        self._log = home / "log"
        # Spark leaves the logs of executors below its home, and workers listen on any address.
        environment = os.environ | {"XDG_CACHE_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._said.open("wb") as said, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.ledgerhost", json.dumps(life)],
                env=environment,
                stdout=said,
                stderr=log,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in descendants(self.process.pid):
            kill(pid)
        self.process.wait()

    def ends(self) -> dict[str, str]:
        """Return the queries that have ended, and by which error."""
        if self.process.poll() is not None:
            assert len(self.told()) == len(QUERIES), self._log.read_text()[-5000:]
        return self.told()

    def told(self) -> dict[str, str]:
        """Return what it has said of ends, whether it lives or not."""
        return {each["query"]: each["error"] for each in self._lines() if "error" in each}

    def started_again(self) -> int:
        """Return how often it has started a query again, because Spark's Python was too late."""
        return sum("too late" in each for each in self._lines())

    def _lines(self) -> list[dict[str, str]]:
        lines = self._said.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_progress(self) -> None:
        """Return once each query has finished a batch more, or has ended."""
        before = {query: self._finished(query) for query in QUERIES}
        wait_until(
            lambda: all(
                query in self.ends() or self._finished(query) > before[query] for query in QUERIES
            ),
            timeout_s=STEP_S,
        )

    def is_within_a_batch(self, count: Callable[[], int]) -> bool:
        """Tell whether rows of a batch are being stored that is not finished yet."""
        finished, stored = self._finished("copy"), count()
        return count() > stored and self._finished("copy") == finished

    def wait_for_end(self) -> dict[str, str]:
        """Return how both queries ended."""
        wait_until(lambda: len(self.ends()) == len(QUERIES), timeout_s=STEP_S)
        return self.ends()

    def _finished(self, query: str) -> int:
        commits = (self._checkpoints / query / "commits").glob("*")
        return max((int(each.name) for each in commits if each.name.isdigit()), default=-1)


class Ledger:
    """Lets drivers live one after the other, and things happen to all of it meanwhile."""

    def __init__(self, place: Place, home: Path) -> None:
        self.place, self.witness = place, Witness()
        self.happened: Counter[str] = Counter()
        self._home = home
        self._chance = random.Random()
        self._masters, self._checkpoint_by = cycle(MASTERS), cycle(("setting", "option"))
        self._before: dict[str, Any] = {}
        self._drivers: list[Driver] = []

    def live(
        self, *, accepting: bool = False, once: bool = False, rate: int | None = None
    ) -> Driver:
        """Start a driver that differs from the one before in all it may."""
        home = self._home / f"life-{len(self._drivers)}"
        home.mkdir()
        life = {
            "master": next(self._masters),
            "servers": ",".join(self.place.urls),
            "copy": self._another("copy", tuple(COPIES)),
            "checkpoint_by": next(self._checkpoint_by),
            "checkpoints": str(self._home / "checkpoints"),
            "lake": str(self._home / "lake"),
            "once": once,
            "sink": {"ratePerSecond": str(rate)} if rate else {},
            "source": {
                "failOnDataLoss": str(not accepting).lower(),
                "maxMessagesPerTrigger": "5000" if once else str(self._chance.randint(100, 300)),
                "minPartitions": self._another("tasks", ("1", "2", "3", "5")),
                "subjects": self._another("subjects", SUBJECTS),
            },
        }
        self._drivers.append(Driver(home, life))
        return self._drivers[-1]

    def _another(self, what: str, values: tuple[str, ...]) -> str:
        """Return one of some values, but not the one of the life before."""
        others = [each for each in values if each != self._before.get(what)]
        self._before[what] = self._chance.choice(others)
        return str(self._before[what])

    def faults(self, driver: Driver) -> list[Callable[[], None]]:
        """Return what may happen to a life, in any order."""
        pid, place = driver.process.pid, self.place
        faults = {"messages deleted": self.delete}
        if place.is_cluster:
            for stream in ("SOURCE", "TARGET"):
                faults[f"leader of {stream} killed"] = partial(
                    place.restart_one, stream, leader=True
                )
            faults["follower killed"] = partial(place.restart_one, "SOURCE", leader=False)
        else:
            faults["server killed"] = place.restart
        if executors(pid):
            faults["executor killed"] = partial(
                kill_one_of, lambda: executors(pid), self._chance, STEP_S
            )
        chosen = [partial(self._do, *each) for each in faults.items()]
        self._chance.shuffle(chosen)
        return chosen

    def _do(self, what: str, fault: Callable[[], None]) -> None:
        fault()
        self.happened[what] += 1

    def check_coverage(self) -> None:
        """See that nothing this ledger is about was left out."""
        wanted = {"messages deleted", "head trimmed", "driver killed"}
        if self.place.is_cluster:
            wanted |= {"leader of SOURCE killed", "leader of TARGET killed", "follower killed"}
        else:
            wanted.add("server killed")
        if CLUSTER in MASTERS:
            wanted.add("executor killed")
        assert wanted == self.happened.keys()

    def delete(self) -> None:
        """Delete single messages that are being read, and some that were or will be."""
        last = self.place.last_sequence()
        chosen = range(max(2, self.planned() - 200), last, 17)

        async def delete_all(jetstream: JetStreamContext) -> None:
            for sequence in chosen:
                self.witness.deleted.add(sequence)
                with suppress(nats.js.errors.APIError):  # It may be gone already.
                    await jetstream.delete_msg("SOURCE", sequence)

        self.place.ask(delete_all)

    def trim(self) -> None:
        """Remove the head of the source, as a limit does, past what has been read."""
        head = self.planned() + LOST
        wait_until(lambda: self.place.last_sequence() > head, timeout_s=STEP_S)
        self.witness.trimmed_to = head - 1
        self._do(
            "head trimmed", lambda: self.place.ask(lambda js: js.purge_stream("SOURCE", seq=head))
        )

    def wait_until_noticed(self, driver: Driver) -> None:
        """Return once each query has ended, or was past what was trimmed before that was."""
        wait_until(
            lambda: all(
                query in driver.ends() or self._finished(query) > self.witness.trimmed_to
                for query in QUERIES
            ),
            timeout_s=STEP_S,
        )

    def kill_within_a_batch(self, driver: Driver) -> None:
        """Kill a driver that has written a part of what it will have to write again."""
        wait_until(lambda: driver.is_within_a_batch(self.place.copied), timeout_s=STEP_S)
        self._do("driver killed", lambda: kill_driver(driver.process.pid, STEP_S))
        self.hear(driver.told())
        # Ids alone do not do for what is written again.
        wait_until_forgotten(Broker(self.place.urls[0]), "TARGET", WINDOW_S)

    def started_again(self) -> int:
        """Return how often a query was started again because Spark's Python was too late."""
        return sum(driver.started_again() for driver in self._drivers)

    def hear(self, ends: dict[str, str]) -> None:
        """Have the witness take note of how queries ended."""
        for query, error in ends.items():
            self.witness.hear(query, error)

    def lake(self) -> list[bytes]:
        """Return what the lake holds."""
        files = (self._home / "lake").glob("topic=*/date=*/batch=*/*.parquet")
        return [data for file in files for data in pq.ParquetFile(file).read()["data"].to_pylist()]

    def planned(self) -> int:
        """Return the sequence up to which some query has planned to read."""
        return max(
            map(sequence_in, (self._home / "checkpoints").glob("*/offsets/[0-9]*")), default=0
        )

    def progress(self) -> str:
        """Return how far the queries are, and to where the head was trimmed."""
        finished = {query: self._finished(query) for query in QUERIES}
        return f"finished {finished}, trimmed to {self.witness.trimmed_to}"

    def _finished(self, query: str) -> int:
        """Return the sequence up to which a query has written everything."""
        checkpoint = self._home / "checkpoints" / query
        commits = (checkpoint / "commits").glob("[0-9]*")
        return max((sequence_in(checkpoint / "offsets" / each.name) for each in commits), default=0)


def sequence_in(offsets: Path) -> int:
    """Return the sequence that an entry of a checkpoint speaks of; 0 for one of another kind."""
    found = re.search(r'"sequence":\s*(\d+)', offsets.read_text()) if offsets.exists() else None
    return int(found[1]) if found else 0


def witness_of(*stored: int) -> Witness:
    """Return one that has seen these messages stored."""
    witness = Witness()
    witness.stored = {sequence: b"%d" % sequence for sequence in stored}
    return witness


def test_the_witness_lets_nothing_pass_that_nobody_told() -> None:
    witness = witness_of(1, 2, 3, 4)
    witness.deleted, witness.trimmed_to = {3}, 1

    for found, complaint in (
        ([b"1", b"2", b"4", b"4"], "1 doubled"),
        ([b"1", b"2", b"4", b"5"], "1 of nobody"),
        ([b"1", b"4"], "1 are in the stream"),
        ([b"2", b"4"], "1 lost without a word"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            witness.judge("copy", found)
    gone = "messages 1 to 1 of stream `SOURCE` are gone: removed by its limits"
    witness.hear("copy", gone)
    assert {"stored": 4, "found": 2, "told": 2} == witness.judge("copy", [b"2", b"4"])
    for error in ("out of memory", "messages 4 to 4 of stream `SOURCE` are gone"):
        with pytest.raises(AssertionError, match=error):
            witness.hear("archive", error)


@pytest.fixture(params=["penstock", "nats-server", "cluster"] if ROUNDS else ["penstock"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return servers of this test alone."""
    with ExitStack() as stack:
        yield Place(request.param, stack)


@pytest.mark.slow
@pytest.mark.timeout(STEP_S * 4 * (ROUNDS + 1))
# The foreign client leaves a socket behind whose server is killed while it connects.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)
def test_every_message_arrives_once_or_an_error_tells_why_not(place: Place, tmp_path: Path) -> None:
    ledger = Ledger(place, tmp_path)
    with Producer(place.urls, ledger.witness, ledger.planned):
        for left in reversed(range(max(1, ROUNDS))):
            with ledger.live(rate=SLOW) as driver:
                driver.wait_for_progress()
                for fault in ledger.faults(driver):
                    fault()
                    driver.wait_for_progress()
                ledger.kill_within_a_batch(driver)
            with ledger.live(rate=SLOW) as driver:
                driver.wait_for_progress()
                ledger.trim()
                ledger.wait_until_noticed(driver)
                assert driver.ends().get("copy"), (
                    "the head of the stream was gone, and nobody said so: "
                    f"{driver.ends()}, {ledger.progress()}"
                )
                kill_driver(driver.process.pid, STEP_S)
                ledger.hear(driver.told())
            if left:
                with ledger.live(accepting=True, rate=SLOW) as driver:
                    driver.wait_for_progress()
                    ledger.kill_within_a_batch(driver)
    with ledger.live(accepting=True, once=True) as driver:
        assert dict.fromkeys(QUERIES, "") == driver.wait_for_end()

    ledger.check_coverage()
    print("happened", dict(ledger.happened))
    print("started again because Spark's Python was too late", ledger.started_again())
    print("lake", ledger.witness.judge("archive", ledger.lake()))
    print("target", ledger.witness.judge("copy", place.target()))
