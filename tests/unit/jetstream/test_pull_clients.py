"""Many clients of one pull consumer that come, ask, and go: each message goes to one of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.consuming import consume, operations
from tests.unit.jetstream.world import SECOND_NS, World

CLIENTS = 4
STEPS = 60
ROUNDS_MAX = 200
POLICIES: list[dict[str, Any]] = [
    {},
    {"max_ack_pending": 3},
    {"ack_policy": "none"},
    {"priority_policy": "overflow", "priority_groups": ["g"]},
    {"priority_policy": "prioritized", "priority_groups": ["g"]},
]


class Crowd:
    """Clients with an inbox each, which they listen on or not, and what they were given."""

    def __init__(self, world: World, seed: int, config: dict[str, Any]) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.group = {"group": "g"} if "priority_groups" in config else {}
        self.listening: set[int] = set()
        self.published = 0
        self.delivered: list[int] = []
        self.unacked: list[str] = []
        world.create("S")
        consume(world, "S", "C", ack_wait=3600 * SECOND_NS, **config)
        for number in range(CLIENTS):
            self.come_or_go(number)

    def step(self) -> None:
        """Do one of the things that happen."""
        actions = [self.publish, self.ask, self.ask, self.ack_some, self.wait]
        self.random.choice([*actions, lambda: self.come_or_go(self.random.randrange(CLIENTS))])()
        self.settle()

    def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 10))):
            self.world.publish("S", b"x" * self.random.choice((0, 10, 3000)))
            self.published += 1

    def ask(self) -> None:
        wish: dict[str, Any] = {"batch": self.random.choice((1, 2, 5, 50))}
        wish |= self.random.choice(({}, {"no_wait": True}, {"expires": 5 * SECOND_NS}))
        wish |= self.random.choice(({}, {"max_bytes": 100}, {"max_bytes": 5000}))
        self._ask(self.random.randrange(CLIENTS), wish)

    def _ask(self, client: int, wish: dict[str, Any]) -> None:
        body = json.dumps(wish | self.group)
        self.world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", body, reply=f"inbox.{client}")

    def come_or_go(self, client: int) -> None:
        line = b"UNSUB %d\r\n" if client in self.listening else b"SUB inbox.%d %d\r\n"
        count = line.count(b"%d")
        self.world.send(line % ((client, 10 + client)[-count:]))
        self.listening ^= {client}

    def ack_some(self) -> None:
        for reply in self.unacked[: self.random.randint(0, len(self.unacked))]:
            self.world.publish(reply, "+ACK")
            self.unacked.remove(reply)

    def wait(self) -> None:
        self.world.advance(self.random.choice((0.1, 6.0)))

    def settle(self) -> None:
        """Let everything happen that is due, and take what comes."""
        self.world.settle()
        self.world.shared.timers.run(self.world.now_ns)
        self.world.settle()
        for _, _, _, reply, _, _ in operations(self.world):
            if reply.startswith(b"$JS.ACK."):
                self.unacked.append(reply.decode())
                self.delivered.append(int(reply.split(b".")[-4]))

    def finish(self) -> None:
        """Ask until everything was delivered."""
        if 0 not in self.listening:
            self.come_or_go(0)
        for _ in range(ROUNDS_MAX):
            if len(self.delivered) == self.published:
                return
            for reply in self.unacked:
                self.world.publish(reply, "+ACK")
            self.unacked.clear()
            self._ask(0, {"batch": 50, "expires": SECOND_NS})
            # Requests by priority are served when those are in that came together.
            self.settle()
            self.world.advance(1.1)
            self.settle()


@pytest.mark.parametrize("config", POLICIES, ids=repr)
def test_each_message_is_delivered_once_whoever_comes_and_goes(
    config: dict[str, Any], tmp_path: Path
) -> None:
    for seed in range(15):
        crowd = Crowd(World(tmp_path / str(seed)), seed, config)
        for _ in range(STEPS):
            crowd.step()
        crowd.finish()

        assert sorted(crowd.delivered) == list(range(1, crowd.published + 1)), seed
