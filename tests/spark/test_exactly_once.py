"""
Real processes killed while rows are copied: each row arrives, and arrives once.

Driver and executors are processes of their own (`local-cluster`). In each of `SPARK_ROUNDS` an
executor, a Python worker and the server are killed in any order, and the driver last of all; the
executors it leaves behind go by themselves. With more than one round, nats-server is held to the
same, and a cluster of three, which loses one for good.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cluster import NODES, cluster_of
from tests.servers import PROGRAMS, Program, ServerProcess, wait_until
from tests.spark.conftest import Broker, elected, rows_of, wait_until_forgotten
from tests.spark.processes import (
    descendants,
    executors,
    kill,
    kill_driver,
    kill_one_of,
    python_workers,
)

CLUSTER, ALONE = "local-cluster[2,1,1024]", "local[2]"
"""Where tasks run while things are killed, and where what is left of them is done."""
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "1"))
STEP_S = 600
MESSAGES = 10_000 * ROUNDS
SMALL, LARGE = 100, 5000
"""Messages of a micro-batch: small while things are killed, so that there is time for it."""
WINDOW_S = 10
"""How long the target remembers ids: a server on a busy machine stores within half of it."""
PROGRAM = Path(__file__).parent / "copier.py"


class Restartable:
    """A server that is killed and comes back on its port, with what it had stored."""

    def __init__(self, stack: ExitStack, program: Program, store: Path) -> None:
        self._stack = stack
        self._program = program
        self._flags = ("-js", "-sd", str(store))
        self._running = stack.enter_context(ServerProcess(program, "", *self._flags))
        self.broker = Broker(self._running.url)
        self.urls = self._running.url

    def restart(self) -> None:
        """Kill it, and start it again."""
        port = str(self._running.port)
        self._running.process.kill()
        self._running.process.wait()
        self._running = self._stack.enter_context(
            ServerProcess(self._program, "", *self._flags, "-p", port)
        )


class Trio:
    """A cluster of three that goes on with two."""

    def __init__(self, stack: ExitStack) -> None:
        self._servers = cluster_of(NODES, stack)
        self.broker = elected(Broker(self._servers[0].url, replicas=NODES))
        self.urls = ",".join(server.url for server in self._servers)

    def restart(self) -> None:
        """Kill one the first time: without two there is no majority."""
        self._servers[-1].process.kill()


@pytest.fixture(params=["penstock", "nats-server", "cluster"] if ROUNDS > 1 else ["penstock"])
def restartable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restartable | Trio]:
    """Return a server of this test alone."""
    with ExitStack() as stack:
        if request.param == "cluster":
            yield Trio(stack)
        else:
            program = next(each for each in PROGRAMS if each.name == request.param)
            yield Restartable(stack, program, tmp_path / "store")


@contextmanager
def copier(home: Path, master: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program; kill what is left of it."""
    # Spark leaves the logs of executors below its home, and workers listen on any address.
    environment = os.environ | {"XDG_CACHE_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(PROGRAM), master, *arguments]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            for pid in descendants(process.pid):
                kill(pid)


def stored(broker: Broker, stream: str) -> int:
    """Return how many messages a stream holds."""
    return int(broker.info(stream)["state"]["messages"])


def wait_for_more(broker: Broker, stream: str) -> None:
    """Return once a stream holds more than it does now."""
    before = stored(broker, stream)
    wait_until(lambda: stored(broker, stream) > before, timeout_s=STEP_S)


@pytest.mark.slow
@pytest.mark.timeout(STEP_S * (5 * ROUNDS + 2))
def test_rows_are_stored_once_although_driver_executors_and_server_are_killed(
    restartable: Restartable | Trio, tmp_path: Path
) -> None:
    broker, chance = restartable.broker, random.Random()
    broker.create("SOURCE")
    broker.create("TARGET", duplicate_window=WINDOW_S * 1_000_000_000)
    ledger = broker.fill("SOURCE", MESSAGES)
    checkpoint = str(tmp_path / "checkpoint")
    arguments = (restartable.urls, "SOURCE", "TARGET", checkpoint)

    for _ in range(ROUNDS):
        with copier(tmp_path, CLUSTER, *arguments, str(SMALL)) as process:
            wait_for_more(broker, "TARGET")
            faults = [
                lambda pid=process.pid: kill_one_of(lambda: executors(pid), chance, STEP_S),
                lambda pid=process.pid: kill_one_of(lambda: python_workers(pid), chance, STEP_S),
                restartable.restart,
            ]
            chance.shuffle(faults)
            for fault in faults:
                fault()
                wait_for_more(broker, "TARGET")
            kill_driver(process.pid, STEP_S)
        # Ids alone do not do for what is written again.
        wait_until_forgotten(broker, "TARGET", WINDOW_S)
    interrupted = stored(broker, "TARGET")
    with copier(tmp_path, ALONE, *arguments, str(LARGE)) as process:
        assert 0 == process.wait(STEP_S)

    assert interrupted < MESSAGES, "it was killed too late to show anything"
    expected = sorted((subject.replace("SOURCE.", "TARGET."), data) for _, subject, data in ledger)
    assert expected == sorted((subject, data) for _, subject, data in rows_of(broker, "TARGET"))
    wait_until(lambda: broker.consumers("SOURCE") == [], timeout_s=STEP_S)
