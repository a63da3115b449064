"""`penstock topics`: a plan says what apply does, apply does it, check sees what is different."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous
from tests.conftest import Servers
from tests.servers import PROGRAMS, ServerProcess

from penstock.bus import EventBus
from penstock.bus.topics.plan import action_for
from penstock.bus.topics.topics import Drift, TopicReport

PENSTOCK = str(Path(sys.executable).parent / "penstock")
FILE = """
eventbus:
  type: nats
  namespace: {namespace}
  nats: {{urls: {url}}}
  topics:
    orders: {{max_msgs: {messages}, compression: {compression}}}
    prices: {{persistence: ephemeral}}
"""

FIXABLE = Drift("messages_max", 2, 1, True)
FIXED = Drift("compression", "s2", "none", False)


def report(*drifts: Drift, exists: bool = True) -> TopicReport:
    return TopicReport(topic="t", action="validated", drifts=drifts, exists=exists)


@pytest.mark.parametrize(
    ("found", "actions"),
    [
        (report(exists=False), ("create", "create", "refuse", "skip")),
        (report(), ("keep", "keep", "keep", "skip")),
        (report(FIXABLE), ("keep", "update", "refuse", "skip")),
        (report(FIXABLE, FIXED), ("keep", "refuse", "refuse", "skip")),
    ],
    ids=["missing", "as declared", "fixable", "not fixable"],
)
def test_each_strategy_has_its_own_answer(found: TopicReport, actions: tuple[str, ...]) -> None:
    strategies = ("create_only", "create_or_update", "validate_only", "skip")

    assert actions == tuple(action_for(found, strategy) for strategy in strategies)


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> ServerProcess:
    return servers(request.param, "jetstream { store_dir: store }")


class Command:
    """`penstock topics` on one configuration file, whose contents change."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._namespace = f"t{uuid.uuid4().hex[:8]}"
        self.declare(1000)

    def declare(self, messages: int, compression: str = "none") -> None:
        text = FILE.format(
            namespace=self._namespace, url=self._url, messages=messages, compression=compression
        )
        self._path.write_text(text)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PENSTOCK, "topics", *arguments, "--bus", str(self._path)],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def actions(self, *arguments: str) -> dict[str, Any]:
        rows = json.loads(self(*arguments, "--json").stdout)
        return {row["topic"]: row["action"] for row in rows}


def test_plan_apply_and_check_from_nothing_to_drift(server: ServerProcess, tmp_path: Path) -> None:
    topics = Command(tmp_path / "bus.yaml", server.url)

    assert {"orders": "create", "prices": "none"} == topics.actions("plan")
    assert {"orders": "create", "prices": "none"} == topics.actions("plan")  # nothing was changed
    assert 1 == topics("check").returncode
    assert 1 == topics("apply", "--strategy", "validate_only").returncode
    assert 0 == topics("apply").returncode
    assert 0 == topics("check").returncode
    topics.declare(5000)
    checked = topics("check")
    assert (1, True) == (checked.returncode, "`max_msgs` is 1000, not 5000" in checked.stdout)
    assert {"orders": "keep", "prices": "none"} == topics.actions("apply")  # create_only
    assert 1 == topics("check").returncode
    # A bus with `skip` does not look at the difference, so no deployment fails of it.
    assert 0 == topics("check", "--strategy", "skip").returncode
    update = ("--strategy", "create_or_update")
    assert {"orders": "update", "prices": "none"} == topics.actions("apply", *update)
    assert 0 == topics("check", "orders").returncode
    topics.declare(5000, "s2")
    refused = topics("plan", *update)
    assert (1, True) == (refused.returncode, "needs a new topic" in refused.stdout)


@asynchronous
async def test_what_the_plan_made_the_bus_finds(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "bus.yaml"
    Command(path, server.url)("apply")
    async with EventBus.open(path, strategy="validate_only") as bus:
        assert (await bus.check_topic("orders")).in_sync


@asynchronous
async def test_without_a_namespace_the_topics_of_every_bus_are_listed(
    server: ServerProcess, tmp_path: Path
) -> None:
    names = sorted(f"t{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name, topic in zip(names, ("orders", "bills"), strict=True):
        async with EventBus.open(server.url, namespace=name) as bus:
            await bus.configure_topic("limited", max_msgs=1000)
            for number in range(2):
                await bus.publish(topic, b"%d" % number)

    def listed(*arguments: str) -> str:
        return subprocess.run(
            [PENSTOCK, "topics", "list", "--server", server.url, *arguments],
            capture_output=True,
            check=True,
            text=True,
        ).stdout

    rows = [line.split(maxsplit=3) for line in listed().splitlines()]
    assert ["BUS", "TOPIC", "MESSAGES", "KEPT"] == rows[0]
    assert [
        [names[0], "limited", "0", "retention 24h, max_bytes 1 GiB, max_msgs 1,000"],
        [names[0], "orders", "2", "shared"],
        [names[1], "bills", "2", "shared"],
        [names[1], "limited", "0", "retention 24h, max_bytes 1 GiB, max_msgs 1,000"],
    ] == sorted(row for row in rows[1:] if row[0] in names)
    found = json.loads(listed("--namespace", names[0], "--json"))
    assert [("limited", 0, False), ("orders", 2, True)] == [
        (one["topic"], one["messages"], one["shared"]) for one in found
    ]


def test_the_option_for_a_broker_of_kafka_is_named() -> None:
    for words in (("topics", "list"), ("dlq", "list"), ("dlq", "replay", "--all")):
        command = [PENSTOCK, *words, "--server", "kafka://127.0.0.1:1"]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert (2, True) == (ended.returncode, "--bus kafka://" in ended.stderr)


def test_what_is_not_declared_cannot_be_compared_and_the_remedy_is_named(
    server: ServerProcess,
) -> None:
    for verb in ("plan", "check", "apply"):
        ended = subprocess.run(
            [PENSTOCK, "topics", verb, "--server", server.url], capture_output=True, text=True
        )
        assert (2, True) == (ended.returncode, "`penstock topics list`" in ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("plan", "--strategy", "perhaps"), "`perhaps` is unknown"),
        (("plan", "nowhere"), "`nowhere` is not declared under `topics`"),
        (("pla",), "did you mean `plan`"),
        (("plan", "--bsu", "x"), "did you mean `--bus`"),
    ],
)
def test_a_wrong_command_line_is_told_what_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ended = Command(tmp_path / "bus.yaml", "nats://127.0.0.1:1")(*arguments)

    assert (2, True) == (ended.returncode, complaint in ended.stderr)
