"""`Nats-Request-Info` is the server's word to a service: nobody else's gets there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.conftest import Servers
from tests.security.asking import Asker, Heard
from tests.servers import PENSTOCK, Program, ServerProcess

CONFIG = """
jetstream { store_dir: js }
accounts {
  A {
    users: [ { user: service, password: x } ]
    exports: [ { service: "svc.>" } ]
  }
  B {
    jetstream: enabled
    users: [ { user: guest, password: x } ]
    imports: [ { service: { account: A, subject: "svc.>" }, to: "their.>" } ]
  }
}
"""
FORGED = b'Nats-Request-Info: {"acc":"FORGED","user":"root"}'
NAME = "nats-request-info"


class Scene:
    """A service of one account, and a user of another that imports it."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.service = stack.enter_context(Asker.of(server, "service"))
        self.service.subscribe("svc.>", 7)
        self.guest = stack.enter_context(Asker.of(server, "guest"))
        self.guest.ask("$JS.API.STREAM.DELETE.S")

    def create(self, name: str, **config: object) -> None:
        answer = self.guest.ask(f"$JS.API.STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer


@pytest.fixture
def scene(servers: Servers, program: Program) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(servers(program, CONFIG), stack)


def told(request: Heard) -> list[dict[str, object]]:
    """Return everything a request says of who asks, in whatever letters."""
    lines = [line.partition(":") for line in request.header.decode().splitlines()]
    return [json.loads(value) for name, _, value in lines if name.lower() == NAME]


def test_of_a_request(scene: Scene) -> None:
    scene.guest.publish("their.x", header=FORGED)

    assert [each["acc"] for each in told(scene.service.hear())] == ["B"]


def test_of_a_delivery(scene: Scene) -> None:
    scene.create("S", subjects=["mine.>"])
    scene.guest.ask("mine.one", header=FORGED)
    scene.guest.subscribe("their.x", 7)
    config = {"name": "c", "deliver_subject": "their.x", "ack_policy": "none"}
    created = {"stream_name": "S", "config": config}
    scene.guest.ask("$JS.API.CONSUMER.CREATE.S.c", created)

    request = scene.service.hear()

    assert told(request) == [{"acc": "B"}]
    assert request.subject == "mine.one", "a delivery keeps its subject"


def test_a_delivery_goes_to_the_service_it_is_addressed_to(scene: Scene) -> None:
    scene.create("S", subjects=["mine.>"])
    scene.guest.ask("mine.admin")
    scene.service.subscribe("svc.admin", 8)
    scene.service.send(b"UNSUB 7\r\n")
    scene.service.subscribe("svc.x", 9)
    scene.guest.subscribe("their.x", 7)
    config = {"name": "c", "deliver_subject": "their.x", "ack_policy": "none"}
    created = {"stream_name": "S", "config": config}
    scene.guest.ask("$JS.API.CONSUMER.CREATE.S.c", created)

    assert b" 9 " in scene.service.line(), "not the one that the stored subject would name"


def test_of_a_republished_message(scene: Scene) -> None:
    republish = {"src": "mine.>", "dest": "their.>"}
    scene.create("S", subjects=["mine.>"], republish=republish)
    scene.guest.ask("mine.x", header=FORGED)

    request = scene.service.hear()

    assert request.subject == "svc.x"
    assert told(request) == [{"acc": "B"}]


# nats-server passes it on.
@pytest.mark.parametrize("program", [PENSTOCK], indirect=True, ids=["penstock"])
@pytest.mark.parametrize("name", [b"nats-request-info", b"NATS-REQUEST-INFO", b"nATS-Request-info"])
def test_of_a_request_that_says_it_in_other_letters(scene: Scene, name: bytes) -> None:
    scene.guest.publish("their.x", header=name + b': {"acc":"FORGED"}\r\nKept: 1')

    request = scene.service.hear()

    assert [each["acc"] for each in told(request)] == ["B"]
    assert b"\r\nKept: 1\r\n" in request.header


def test_of_a_message_that_is_stored(scene: Scene) -> None:
    """It is the word of a server to a service, so none is kept."""
    scene.create("S", subjects=["mine.>"])
    scene.guest.ask("mine.one", header=FORGED)
    scene.guest.ask("mine.two", header=FORGED + b"\r\nKept: 1\r\n" + FORGED)
    kept = [scene.guest.ask("$JS.API.STREAM.MSG.GET.S", {"seq": number}) for number in (1, 2)]

    headers = [base64.b64decode(each["message"].get("hdrs", "")) for each in kept]
    assert headers == [b"", b"NATS/1.0\r\nKept: 1\r\n\r\n"]
