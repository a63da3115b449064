"""
The consumer by which a stream reads an origin that it reaches by messages alone.

Nearly always the stream makes it: a push consumer without acks, with flow control and heartbeats,
as nats-server makes for its mirrors and sources. Origins with `consumer` use a durable one that the
operator made, which acks by flow control and is reset to continue after its acked messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import JetStreamError
from penstock.jetstream.copies.origin import Origin, hashed
from penstock.protocol import errorcodes, headers
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.copies.streams import Copying

HEARTBEAT_NS = SECOND_NS
SILENCE_NS = 10 * SECOND_NS
"""After this long without a message, either side takes the other for gone."""
ACK_WAIT_NS = 22 * 3600 * SECOND_NS
"""nats-server's value; without acks it means nothing."""
IDENTITY = "Nats-Stream-Identity"
API_LEVELS = (5, 4, 0)
"""The levels to ask an origin for: its identity; consumers of other streams; nothing."""


class Ask(NamedTuple):
    """A request to the API of the origin."""

    call: str
    header: bytes
    body: bytes


def ask(stream: Copying, origin: Origin, *, deliver: str, level: int) -> Ask:
    """Return the request that makes the origin send its messages."""
    pairs = [("Nats-Required-Api-Level", str(level))] if level else []
    if level >= API_LEVELS[0]:
        pairs.append((IDENTITY, origin.identity))
    header = headers.encode(pairs) if pairs else b""
    durable = origin.config.get("consumer")
    if durable is not None:
        return Ask(f"CONSUMER.RESET.{origin.name}.{durable['name']}", header, b"")
    config = _config(stream, origin, deliver=deliver, level=level)
    body = json.dumps({"stream_name": origin.name, "config": config}).encode()
    name = f"CONSUMER.CREATE.{origin.name}.{config['name']}"
    pattern = config.get("filter_subject")
    return Ask(f"{name}.{pattern}" if pattern else name, header, body)


def _config(stream: Copying, origin: Origin, *, deliver: str, level: int) -> dict[str, Any]:
    is_mirror = stream.config.mirror is not None
    account = stream.context.account.name
    kind, label = ("MIRROR", "mirror") if is_mirror else ("SRC", "src")
    key = " ".join([account, stream.identity, *map(bytes.decode, origin.label)])
    name = f"JS_{kind}_{hashed(key)}"
    config: dict[str, Any] = {
        "name": name if level else f"{name}_{stream.context.new_id(8)}",
        "deliver_subject": deliver,
        "ack_policy": "none",
        "ack_wait": ACK_WAIT_NS,
        "max_deliver": 1,
        "idle_heartbeat": HEARTBEAT_NS,
        "flow_control": True,
        "direct": True,
        "inactive_threshold": SILENCE_NS,
        "metadata": {f"_nats.{label}.stream": stream.name, f"_nats.{label}.acc": account},
    }
    if level:
        config["sourcing"] = True
    filters = [each.decode() for each in origin.filters]
    if len(filters) == 1:
        config["filter_subject"] = filters[0]
    elif filters:
        config["filter_subjects"] = filters
    return config | _start(origin)


def _start(origin: Origin) -> dict[str, Any]:
    """Return the start of the consumer: where we left off, or the configured start."""
    config: Mapping[str, Any] = origin.config
    if origin.read_sequence:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": origin.read_sequence + 1}
    if config.get("opt_start_seq"):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": config["opt_start_seq"]}
    if config.get("opt_start_time"):
        return {"deliver_policy": "by_start_time", "opt_start_time": config["opt_start_time"]}
    return {"deliver_policy": "all"}


def served(
    config: ConsumerConfig, *, retention: str, new_id: Callable[[int], str]
) -> ConsumerConfig:
    """Return the consumer that an origin makes for a request with a stable name."""
    if not (config.direct and config.sourcing and config.name):
        return config
    if retention == "limits":
        return config.but(name=f"{config.name}-{new_id(8)}")
    # The origin keeps messages until they are acked, so this has to be durable, and to ack.
    return config.but(
        direct=False,
        durable_name=config.name,
        ack_policy="flow_control",
        ack_wait=0,
        max_deliver=0,
        inactive_threshold=0,
    )


def identity_header(identity: str) -> bytes:
    """Return the header in which an origin states its identity."""
    return headers.encode([(IDENTITY, identity)])


def check_identity(identity: str, header: bytes) -> None:
    """Refuse a request that is meant for another stream of the same name."""
    expected = headers.get(header, IDENTITY.encode()) if header else None
    if expected and expected.decode(errors="replace") != identity:
        raise JetStreamError(errorcodes.CONSUMER_STREAM_IDENTITY_MISMATCH, msg=identity)


class Delivered(NamedTuple):
    """The numbers in the reply subject of a delivered message."""

    deliveries: int
    sequence: int
    consumer_sequence: int
    time_ns: int
    pending: int


def delivered(reply: bytes) -> Delivered:
    """Read `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<5 numbers>[.<token>]`."""
    fields = reply.split(b".")
    start = 4 if len(fields) == 9 else 6
    if len(fields) < 9 or fields[1] != b"ACK":
        raise ValueError(f"{reply!r} is no ack subject")
    count, sequence, consumer_sequence, time_ns, pending = map(int, fields[start : start + 5])
    return Delivered(count, sequence, consumer_sequence, time_ns, pending)


def flow_control_header(consumer_sequence: int, sequence: int) -> bytes:
    """Return the answer to a flow control request: the position up to which everything is safe."""
    return headers.encode(
        [("Nats-Last-Consumer", str(consumer_sequence)), ("Nats-Last-Stream", str(sequence))]
    )
