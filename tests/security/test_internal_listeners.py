"""
What the server delivers and answers commands nobody.

A client says where deliveries and answers go, and has stored what is in them. If one
of them reached a handler of the server, a user could have done what it may not do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from tests.conftest import Servers
from tests.security.asking import Asker
from tests.servers import PENSTOCK, Program, ServerProcess, wait_until
from tests.unit.jetstream.world import World

CONFIG = """
jetstream { store_dir: js }
accounts {
  A {
    jetstream: enabled
    users: [
      { user: owner, password: x }
      { user: guest, password: x, permissions: { publish: { deny: [
        "$JS.API.STREAM.DELETE.>", "$JS.API.STREAM.PURGE.>", "$JS.ACK.VICTIM.>"
      ] } } }
    ]
    exports: [ { service: "echo" } ]
  }
  B {
    jetstream: enabled
    users: [
      { user: other, password: x, permissions: { publish: { deny: "$JS.API.STREAM.DELETE.>" } } }
    ]
    imports: [ { service: { account: A, subject: "echo" } } ]
  }
  SYS { users: [ { user: admin, password: x } ] }
}
system_account: SYS
"""
DELETE, PURGE = "$JS.API.STREAM.DELETE.VICTIM", "$JS.API.STREAM.PURGE.VICTIM"
numbers = count(1)


class Scene:
    """A stream with one message and its owner, and a guest who may not touch it."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.owner = stack.enter_context(Asker.of(server, "owner"))
        self.guest = stack.enter_context(Asker.of(server, "guest"))
        for name in self.owner.ask("$JS.API.STREAM.NAMES")["streams"] or ():
            self.owner.ask(f"$JS.API.STREAM.DELETE.{name}")
        config = {"name": "VICTIM", "subjects": ["victim.>"]}
        self.owner.ask("$JS.API.STREAM.CREATE.VICTIM", config)
        self.owner.ask("victim.one", b"1")
        config = {"name": "MINE", "subjects": ["mine.>"], "allow_direct": True}
        self.guest.ask("$JS.API.STREAM.CREATE.MINE", config)

    def messages(self) -> int:
        """Return how many messages the victim has; -1 if it is gone."""
        answer = self.owner.ask("$JS.API.STREAM.INFO.VICTIM")
        return answer["state"]["messages"] if "state" in answer else -1

    def push(self, subject: str, **config: object) -> None:
        """Have everything in the guest's stream delivered to a subject, and see it arrive."""
        name = f"c{next(numbers)}"
        self.guest.subscribe(subject, 7)
        config = {"name": name, "deliver_subject": subject, "ack_policy": "none", **config}
        call = f"$JS.API.CONSUMER.CREATE.MINE.{name}"
        # A consumer of another name may not be refused: the answer does not matter here.
        self.guest.publish(
            call, json.dumps({"stream_name": "MINE", "config": config}).encode(), reply="_INBOX.no"
        )
        assert self.guest.hear() is not None
        self.guest.send(b"UNSUB 7\r\n")
        self.guest.heard()


@pytest.fixture
def scene(servers: Servers, program: Program) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(servers(program, CONFIG), stack)


def test_the_guest_may_not_delete_the_stream_itself(scene: Scene) -> None:
    scene.guest.publish(DELETE)
    scene.guest.publish(PURGE)
    scene.guest.heard()

    assert scene.messages() > 0


@pytest.mark.parametrize("target", ["$JS.API.x", "$JS.API.CONSUMER.x", DELETE, PURGE])
@pytest.mark.parametrize("stored", ["mine.zz.STREAM.DELETE.VICTIM", "mine.zz.STREAM.PURGE.VICTIM"])
def test_a_delivery_is_no_call_of_the_api(scene: Scene, target: str, stored: str) -> None:
    scene.guest.ask(stored)

    scene.push(target)

    assert scene.messages() > 0


def test_a_delivery_settles_nobody_elses_message(scene: Scene) -> None:
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 3600 * 10**9}
    created = {"stream_name": "VICTIM", "config": config}
    scene.owner.ask("$JS.API.CONSUMER.DURABLE.CREATE.VICTIM.d", created)
    scene.owner.publish("$JS.API.CONSUMER.MSG.NEXT.VICTIM.d", b"1", reply=scene.owner.inbox)
    ack = scene.owner.hear().reply
    scene.guest.ask("mine.zz." + ack.removeprefix("$JS.ACK."), b"+TERM")

    scene.push("$JS.ACK.x")

    info = scene.owner.ask("$JS.API.CONSUMER.INFO.VICTIM.d")
    assert info["num_ack_pending"] == 1


@pytest.mark.parametrize(
    "target", ["$JS.FC.x", "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.PING.STATZ"]
)
def test_a_delivery_to_any_handler_of_the_server_reaches_clients_alone(
    scene: Scene, target: str
) -> None:
    scene.guest.ask("mine.one")

    scene.push(target)

    assert scene.messages() > 0


def ask_info(guest: Asker, reply: str) -> None:
    guest.publish("$JS.API.INFO", reply=reply)


def store(guest: Asker, reply: str) -> None:
    guest.publish("mine.two", reply=reply)


def get_direct(guest: Asker, reply: str) -> None:
    guest.ask("mine.empty")
    guest.publish("$JS.API.DIRECT.GET.MINE.mine.empty", reply=reply)


def pull(guest: Asker, reply: str) -> None:
    guest.ask("mine.empty")
    config = {"durable_name": "p", "ack_policy": "explicit"}
    created = {"stream_name": "MINE", "config": config}
    guest.ask("$JS.API.CONSUMER.DURABLE.CREATE.MINE.p", created)
    guest.publish("$JS.API.CONSUMER.MSG.NEXT.MINE.p", b"1", reply=reply)


def pull_in_vain(guest: Asker, reply: str) -> None:
    config = {"durable_name": "p", "ack_policy": "explicit"}
    created = {"stream_name": "MINE", "config": config}
    guest.ask("$JS.API.CONSUMER.DURABLE.CREATE.MINE.p", created)
    wish = b'{"batch":1,"no_wait":true}'
    guest.publish("$JS.API.CONSUMER.MSG.NEXT.MINE.p", wish, reply=reply)


def confirm_an_ack(guest: Asker, reply: str) -> None:
    guest.ask("mine.empty")
    config = {"durable_name": "p", "ack_policy": "explicit"}
    created = {"stream_name": "MINE", "config": config}
    guest.ask("$JS.API.CONSUMER.DURABLE.CREATE.MINE.p", created)
    guest.publish("$JS.API.CONSUMER.MSG.NEXT.MINE.p", b"1", reply=guest.inbox)
    guest.publish(guest.hear().reply, b"+ACK", reply=reply)


def take_a_snapshot(guest: Asker, reply: str) -> None:
    guest.ask("$JS.API.STREAM.SNAPSHOT.MINE", {"deliver_subject": reply})


def beat(guest: Asker, reply: str) -> None:
    config = {"name": "h", "deliver_subject": reply, "idle_heartbeat": 100_000_000}
    guest.publish(
        "$JS.API.CONSUMER.CREATE.MINE.h",
        json.dumps({"stream_name": "MINE", "config": config}).encode(),
    )


def ask_who_i_am(guest: Asker, reply: str) -> None:
    guest.publish("$SYS.REQ.USER.INFO", reply=reply)


WAYS = (
    *(ask_info, store, get_direct, pull, pull_in_vain, confirm_an_ack),
    *(take_a_snapshot, beat, ask_who_i_am),
)


# nats-server obeys most of its own answers.
@pytest.mark.parametrize("program", [PENSTOCK], indirect=True, ids=["penstock"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("target", [DELETE, PURGE])
def test_an_answer_is_no_call_of_the_api(scene: Scene, way: object, target: str) -> None:
    assert callable(way)
    scene.guest.subscribe(target, 7)

    way(scene.guest, target)

    while scene.guest.hear().subject == scene.guest.inbox:
        pass
    scene.guest.heard()
    assert scene.messages() > 0


def test_the_answer_of_a_service_is_no_call_of_the_api(servers: Servers, program: Program) -> None:
    server = servers(program, CONFIG)
    with (
        Asker.of(server, "owner") as service,
        Asker.of(server, "other") as other,
    ):
        other.ask("$JS.API.STREAM.CREATE.OWN", {"name": "OWN", "subjects": ["own"]})
        service.subscribe("echo", 7)
        other.subscribe("$JS.API.STREAM.DELETE.OWN", 7)
        other.publish("echo", reply="$JS.API.STREAM.DELETE.OWN")
        service.publish(service.hear().reply)
        service.heard()

        assert other.hear().subject == "$JS.API.STREAM.DELETE.OWN"
        assert "state" in other.ask("$JS.API.STREAM.INFO.OWN")


def test_a_trace_reaches_no_handler_of_the_server(tmp_path: Path) -> None:
    """A message says where its trace goes: the server writes it, and the publisher chooses."""
    world = World(tmp_path)
    heard: list[object] = []
    world.broker.default_account.listen(
        b"_INBOX.trace", lambda batch, publisher: heard.append(batch)
    )

    world.publish("anything", Nats_Trace_Dest="_INBOX.trace")

    assert len(world.received()) == 1
    assert heard == []


def test_deliveries_still_reach_other_streams(scene: Scene) -> None:
    copy = {"name": "COPY", "subjects": ["copy"]}
    scene.guest.ask("$JS.API.STREAM.CREATE.COPY", copy)
    scene.guest.ask("mine.one", b"1")

    scene.push("copy")

    wait_until(lambda: scene.guest.ask("$JS.API.STREAM.INFO.COPY")["state"]["messages"] == 1)


def test_answers_still_reach_other_streams(scene: Scene) -> None:
    log = {"name": "LOG", "subjects": ["log"], "no_ack": True}
    scene.guest.ask("$JS.API.STREAM.CREATE.LOG", log)

    scene.guest.publish("mine.one", b"1", reply="log")

    wait_until(
        lambda: scene.guest.ask("$JS.API.STREAM.INFO.LOG")["state"]["messages"] == 1,
    )
