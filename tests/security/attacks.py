"""
What hostile clients do to keep a server busy, one function each.

A function returns when the server has done what it was asked for, or has hung up.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.servers import HOST, RawClient
from tests.websocket import BINARY, RawWebSocket, frame

from penstock.core import snappy
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots.archive import ArchiveEntry

DONE = b"MSG done 99 0\r\n"
PATIENCE_S = 120.0
MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Target:
    """Where a server is reached."""

    port: int
    http_port: int
    websocket_port: int


Attack = Callable[[Target], None]


def flood(target: Target, data: bytes) -> None:
    """Send bytes and read what comes back, until the server has done everything or hangs up."""
    with RawClient(target.port).connect() as client:
        client.sock.settimeout(PATIENCE_S)
        everything = b"SUB r 98\r\n" + data + b"SUB done 99\r\nPUB done 0\r\n\r\n"
        sender = threading.Thread(target=_send_anyway, args=(client.sock, everything))
        sender.start()
        tail = b""
        while DONE not in tail:
            try:
                received = client.sock.recv(MEGABYTE)
            except ConnectionError:
                break
            if not received:
                break
            tail = tail[-len(DONE) :] + received
        sender.join()


def _send_anyway(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        """The server has hung up already."""


def publish(subject: str, payload: bytes = b"", header: bytes = b"") -> bytes:
    """Return the bytes of one message that asks for an answer."""
    if header:
        sizes = b"%d %d" % (len(header), len(header + payload))
        return b"HPUB %b r %b\r\n%b%b\r\n" % (subject.encode(), sizes, header, payload)
    return b"PUB %b r %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)


def call(name: str, document: Any = None) -> bytes:
    """Return the bytes of one request to JetStream's API."""
    body = b"" if document is None else json.dumps(document).encode()
    return publish(f"$JS.API.{name}", body)


def stream(name: str, **settings: Any) -> bytes:
    """Return the request for a stream in memory."""
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory"} | settings
    return call(f"STREAM.CREATE.{name}", config)


def consumer(name: str, **settings: Any) -> bytes:
    """Return the request for a durable consumer of `S`."""
    config = {"durable_name": name, "ack_policy": "explicit"} | settings
    request = {"stream_name": "S", "config": config}
    return publish(f"$JS.API.CONSUMER.DURABLE.CREATE.S.{name}", json.dumps(request).encode())


def many_subjects(target: Target) -> None:
    flood(target, stream("S", subjects=[f"a.{each}.x" for each in range(20_000)]))


def overlapping_subjects(target: Target) -> None:
    flood(target, stream("S", subjects=[f"*.{each}.>" for each in range(10_000)]))


def many_filters(target: Target) -> None:
    filters = [f"S.{each}.x" for each in range(15_000)]
    flood(target, stream("S") + consumer("c", filter_subjects=filters))


def nested_transforms(target: Target) -> None:
    destination = "{{a(" * 40_000
    flood(target, stream("S", subject_transform={"src": ">", "dest": destination}))


def many_documents(target: Target) -> None:
    flood(target, publish("$JS.API.STREAM.CREATE.S", b"{}" * 200_000))


def bad_json(target: Target) -> None:
    body = b'{"name":"S","subjects":[' + b'"a",' * 240_000 + b"!"
    flood(target, publish("$JS.API.STREAM.CREATE.S", body))


def deep_json(target: Target) -> None:
    flood(target, publish("$JS.API.STREAM.CREATE.S", b"[" * 1_000_000))


def wildcard_churn(target: Target) -> None:
    cached = b"".join(b"PUB a.%d 0\r\n\r\n" % each for each in range(8192))
    flood(target, cached + b"SUB a.zzz.* 7\r\nUNSUB 7\r\n" * 10_000)


def ping_bomb(target: Target) -> None:
    with RawWebSocket(target.websocket_port) as client:
        client.sock.settimeout(PATIENCE_S)
        client.upgrade(Sec_WebSocket_Extensions="permessage-deflate")
        deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflater.compress(
            b'CONNECT {"verbose":false}\r\n' + b"PING\r\n" * MEGABYTE + b"NONSENSE\r\n"
        )
        packed += deflater.flush(zlib.Z_SYNC_FLUSH)[:-4]
        sender = threading.Thread(
            target=_send_anyway, args=(client.sock, frame(BINARY, packed, reserved=0x40))
        )
        sender.start()
        try:
            while client.sock.recv(MEGABYTE):
                """PONGs, until the server hangs up."""
        except ConnectionError:
            """So it has."""
        sender.join()


def connect_again(target: Target) -> None:
    flood(target, b"".join(b'CONNECT {"verbose":false,"k%d":1}\r\n' % n for n in range(20_000)))


def many_streams(target: Target) -> None:
    flood(target, b"".join(stream(f"S{each}", storage="file") for each in range(300)))


def gappy_restore(target: Target) -> None:
    state = json.dumps({"first_seq": 1, "last_seq": 1 + 9_999 * 2000}).encode()
    entries = [ArchiveEntry(b"S.x", 10**18, 1 + each * 2000, b"", b"x") for each in range(10_000)]
    encoded = map(archive.encode_entry, [ArchiveEntry(archive.STATE, 1, payload=state), *entries])
    whole = b"".join([*encoded, archive.encode_entry(archive.END)])
    data = archive.STREAM_IDENTIFIER + snappy.frames(archive.MAGIC + whole)
    with RawClient(target.port).connect() as client:
        client.sock.settimeout(PATIENCE_S)
        config = {"name": "S", "subjects": ["S.>"], "storage": "file"}
        client.send(b"SUB r 98\r\n" + call("STREAM.RESTORE.S", {"config": config, "state": {}}))
        client.line()
        deliver = json.loads(client.line())["deliver_subject"]
        for chunk in (data[at : at + 128 * 1024] for at in range(0, len(data), 128 * 1024)):
            client.send(publish(deliver, chunk))
        client.send(publish(deliver))
        while not client.line().startswith(b"{"):
            """The chunks are acknowledged first."""


def padded_pulls(target: Target) -> None:
    pull = publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1}' + b" " * 1_000_000)
    flood(target, stream("S") + consumer("c") + pull * 20)


def many_pulls(target: Target) -> None:
    pull = publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"expires":60000000000}')
    flood(target, stream("S") + consumer("c") + pull * 5000)


def bad_names(target: Target) -> None:
    flood(target, stream("S") + b"".join(consumer(f"c{each}\0") for each in range(1000)))


def pings(target: Target) -> None:
    flood(target, b"PING\r\n" * 200_000)


def unfinished_publishes(target: Target) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(RawClient(target.port))
            client.send(b"PUB a 1000000\r\n" + bytes(1000))


def bad_logins(target: Target) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.port)) for _ in range(100)]
        for client in clients:
            client.send(b'CONNECT {"user":"ann","pass":"guess"}\r\n')


def header_bombs(target: Target) -> None:
    header = b"NATS/1.0\r\n" + b"a: b\r\n" * 150_000 + b"\r\n"
    flood(target, stream("S") + publish("S.x", header=header) * 5)


def huge_numbers(target: Target) -> None:
    names = (b"Nats-Expected-Last-Sequence", b"Nats-TTL", b"Nats-Required-Api-Level")
    lines = b"".join(b"%b: %b\r\n" % (name, b"9" * 100_000) for name in names)
    header = b"NATS/1.0\r\n" + lines + b"\r\n"
    message = publish("S.x", header=header) + publish("$JS.API.INFO", header=header)
    flood(target, stream("S", allow_msg_ttl=True) + message * 10)


def monitoring(target: Target) -> None:
    with RawClient(target.port).connect() as client:
        client.sock.settimeout(PATIENCE_S)
        client.send(b"".join(b"SUB a.%d %d\r\n" % (each, each) for each in range(20_000)))
        client.settle()
        for path in ("connz?subs=1", "connz?subs=detail", "subsz?subs=1", "jsz?streams=1"):
            with urllib.request.urlopen(f"http://{HOST}:{target.http_port}/{path}") as answer:
                answer.read()


def many_subscriptions(target: Target) -> None:
    flood(target, b"".join(b"SUB a.%d.* a%d\r\n" % (each, each) for each in range(50_000)))


def unheard_publishes(target: Target) -> None:
    flood(target, b"".join(b"PUB n.%d 0\r\n\r\n" % each for each in range(100_000)))


def unheard_requests(target: Target) -> None:
    flood(target, b"".join(b"PUB n.%d r 0\r\n\r\n" % each for each in range(20_000)))


def acks(target: Target) -> None:
    ack = publish("$JS.ACK.S.c.1.1.1.1800000000000000000.0", b"+NXT 1")
    flood(target, stream("S") + consumer("c") + ack * 5000)


def purges(target: Target) -> None:
    filled = b"".join(publish(f"S.{each}") for each in range(5000))
    flood(target, stream("S") + filled + call("STREAM.PURGE.S", {"filter": "S.*"}))


def deletion(target: Target) -> None:
    consumers = b"".join(consumer(f"c{each}") for each in range(300))
    flood(target, stream("S", storage="file") + consumers + call("STREAM.DELETE.S"))


ATTACKS: tuple[Attack, ...] = (
    *(many_subjects, overlapping_subjects, many_filters, nested_transforms),
    *(many_documents, bad_json, deep_json, wildcard_churn, ping_bomb, connect_again),
    *(many_streams, gappy_restore, padded_pulls, many_pulls, bad_names, pings),
    *(unfinished_publishes, bad_logins, header_bombs, huge_numbers, monitoring),
    *(many_subscriptions, unheard_publishes, unheard_requests, acks, purges, deletion),
)
