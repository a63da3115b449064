"""Consumers in a `World`: make one, pull, ack, and see what came."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.unit.jetstream.world import BIG, World

from penstock.hot import wire
from penstock.protocol import headers


class Received(NamedTuple):
    """A message as the client got it."""

    subject: str
    reply: str
    status: str
    payload: bytes

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Deliveries, stream sequence, consumer sequence and pending, from the ack subject."""
        fields = self.reply.split(".")
        return int(fields[-5]), int(fields[-4]), int(fields[-3]), int(fields[-1])


def consume(world: World, stream: str, name: str, /, **config: Any) -> Any:
    """Create a durable consumer with explicit acks, which must work."""
    answer = create(world, stream, name, **({"durable_name": name} | config))
    assert "error" not in answer, answer
    return answer


def create(world: World, stream: str, name: str, /, **config: Any) -> Any:
    """Try to create a consumer."""
    config = {"ack_policy": "explicit"} | config
    return world.call(f"CONSUMER.CREATE.{stream}.{name}", stream_name=stream, config=config)


def info(world: World, stream: str, name: str) -> Any:
    """Return ConsumerInfo."""
    return world.call(f"CONSUMER.INFO.{stream}.{name}")


def publish(world: World, stream: str, *payloads: str, subject: str = "") -> None:
    """Store messages."""
    for payload in payloads:
        world.ask(subject or stream, payload)


def request(world: World, stream: str, name: str, **wish: Any) -> list[Received]:
    """Ask for messages, and return what comes at once."""
    body = json.dumps(wish) if wish else ""
    world.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply="_INBOX.pull")
    return received(world)


def ack(world: World, message: Received, kind: str = "+ACK", *, reply: str = "") -> list[Received]:
    """Say something about a message, and return what comes of it."""
    world.publish(message.reply, kind, reply=reply)
    return received(world)


def received(world: World) -> list[Received]:
    """Return what came to the client once all is settled and nothing is due."""
    for _ in range(20):
        world.shared.timers.run(world.now_ns)
        world.settle()
    return [_message(operation) for operation in operations(world)]


def operations(world: World) -> list[wire.Op]:
    entries = [
        entry[0].join(entry[1]) if isinstance(entry, tuple) else bytes(entry)
        for entry in world.session.outbox
    ]
    world.session.outbox.clear()
    world.session.outbox_bytes = 0
    found, _, _ = wire.parse_messages(b"".join(entries), BIG, 4096)
    return [operation for operation in found if operation[0] == wire.MSG]


def _message(operation: wire.Op) -> Received:
    _, subject, _, reply, header_bytes, data = operation
    code, text = headers.status(data[:header_bytes])
    status = f"{code} {text}" if code else ""
    return Received(subject.decode(), reply.decode(), status, data[header_bytes:])


def payloads(messages: list[Received]) -> list[bytes]:
    return [message.payload for message in messages]
