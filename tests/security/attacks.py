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

from tests.contract.credentials import ACCOUNT, NO_LIMITS, USER, Key
from tests.servers import HOST, RawClient
from tests.websocket import BINARY, RawWebSocket, frame

from penstock.core import snappy
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots.archive import ArchiveEntry

DONE = b"MSG done 99 0\r\n"
PATIENCE_S = 120.0
MEGABYTE = 1024 * 1024
CONTINUATION = 0


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
        packed = deflated(
            b'CONNECT {"verbose":false}\r\n' + b"PING\r\n" * MEGABYTE + b"NONSENSE\r\n"
        )
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
    restore(target, [ArchiveEntry(archive.STATE, 1, payload=state), *entries])


def restore(target: Target, entries: list[ArchiveEntry]) -> None:
    """Restore a stream from a snapshot of ours; to nats-server it is rubbish."""
    whole = b"".join(map(archive.encode_entry, [*entries, archive.END]))
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


def hang_up(clients: list[socket.socket]) -> None:
    """Wait until the server has hung up on clients that should not have come."""
    for client in clients:
        client.settimeout(PATIENCE_S)
        try:
            while client.recv(MEGABYTE):
                """What it says before."""
        except ConnectionError:
            """It did."""


def knock(port: int, stack: ExitStack, count: int, said: bytes) -> list[socket.socket]:
    """Connect so many times, and say the same each time."""
    clients = [
        stack.enter_context(socket.create_connection((HOST, port), PATIENCE_S))
        for _ in range(count)
    ]
    for client in clients:
        _send_anyway(client, said)
    return clients


def nonsense_logins(target: Target) -> None:
    words = (b'"user":"\\ud800","pass":"\\udfff"', b'"jwt":"\xff.\xff.\xff"', b'"nkey":"\xc3\xa9"')
    with ExitStack() as stack:
        for each in words:
            hang_up(knock(target.port, stack, 100, b"CONNECT {%b}\r\n" % each))


def bomb_before_login(target: Target) -> None:
    said = b'CONNECT {"user":"ann","pass":"guess"}\r\n' + b"PING\r\n" * (7 * MEGABYTE // 6)
    with ExitStack() as stack:
        clients = []
        for _ in range(10):
            client = stack.enter_context(RawWebSocket(target.websocket_port))
            client.upgrade(Sec_WebSocket_Extensions="permessage-deflate")
            _send_anyway(client.sock, frame(BINARY, deflated(said), reserved=0x40))
            clients.append(client.sock)
        hang_up(clients)


def deflated(text: bytes) -> bytes:
    """Return a compressed message."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


def forwarded_upgrades(target: Target) -> None:
    for each in range(100):
        with RawWebSocket(target.websocket_port) as client:
            client.upgrade(X_Forwarded_For=f"10.1.2.{each}").frame()


def unfinished_upgrades(target: Target) -> None:
    with ExitStack() as stack:
        knock(target.websocket_port, stack, 100, b"GET / HTTP/1.1\r\nHost: x\r\n")
        many = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000
        hang_up(knock(target.websocket_port, stack, 3, many))


def empty_frames(target: Target) -> None:
    with RawWebSocket(target.websocket_port) as client:
        client.upgrade()
        client.say(b'CONNECT {"verbose":false}\r\n')
        empty = frame(CONTINUATION, is_final=False) * 100_000
        client.sock.settimeout(PATIENCE_S)
        client.sock.sendall(frame(BINARY, is_final=False) + empty + frame(CONTINUATION))
        client.say(b"PING\r\n")
        client.read_until(b"PONG\r\n")


def idle_monitoring(target: Target) -> None:
    with ExitStack() as stack:
        knock(target.http_port, stack, 200, b"")
        knock(target.http_port, stack, 50, b"GET /varz HTTP/1.1\r\nHost: x\r\n")
        with urllib.request.urlopen(f"http://{HOST}:{target.http_port}/varz") as answer:
            answer.read()


def odd_reports(target: Target) -> None:
    reports = [b'{"name":"p%d","batch":NaN,"rows_per_s":1e999}' % each for each in range(3000)]
    flood(
        target,
        b"".join(b"PUB $PENSTOCK.PIPELINE %d\r\n%b\r\n" % (len(each), each) for each in reports),
    )


def deliveries_into_the_api(target: Target) -> None:
    filled = publish("S.zz.STREAM.DELETE.S") * 2000
    settings = {"deliver_subject": "$JS.API.x", "ack_policy": "none"}
    flood(target, stream("S") + filled + b"SUB $JS.API.x 97\r\n" + consumer("p", **settings))


def large_restore(target: Target) -> None:
    state = json.dumps({"first_seq": 1, "last_seq": 300}).encode()
    entries = [ArchiveEntry(b"S.x", 10**18, each, b"", bytes(50_000)) for each in range(1, 301)]
    restore(target, [ArchiveEntry(archive.STATE, 1, payload=state), *entries])


def slow_reader(target: Target) -> None:
    with RawClient(target.port, receive_buffer=4096).connect() as reader:
        reader.send(b"SUB busy.> 1\r\n")
        reader.settle()
        flood(target, b"PUB busy.x 1000\r\n%b\r\n" % bytes(1000) * 20_000)


def expectations(target: Target) -> None:
    filled = b"".join(publish(f"S.{each}.y") for each in range(20_000))
    header = b"Nats-Expected-Last-Subject-Sequence"
    block = b"NATS/1.0\r\n%b: 0\r\n%b-Subject: S.*.x\r\n\r\n" % (header, header)
    flood(target, stream("S") + filled + publish("S.1.z", header=block) * 20)


def rollups(target: Target) -> None:
    filled = publish("S.x") * 20_000 + publish("S.y") * 20_000
    roll = publish("S.x", header=b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")
    flood(target, stream("S", allow_rollup_hdrs=True, max_msgs_per_subject=50_000) + filled + roll)


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


def half_handshakes(target: Target) -> None:
    with ExitStack() as stack:
        hang_up(knock(target.port, stack, 100, b"\x16\x03\x01\x02\x00\x01"))


def forged_tokens(target: Target) -> None:
    account, user = Key(ACCOUNT), Key(USER)
    token = account.jwt(user.public, "ann", {"type": "user", **NO_LIMITS})
    with ExitStack() as stack:
        hang_up(knock(target.port, stack, 100, b'CONNECT {"jwt":"%b"}\r\n' % token.encode()))


ATTACKS: tuple[Attack, ...] = (
    *(many_subjects, overlapping_subjects, many_filters, nested_transforms),
    *(many_documents, bad_json, deep_json, wildcard_churn, ping_bomb, connect_again),
    *(many_streams, gappy_restore, padded_pulls, many_pulls, bad_names, pings),
    *(unfinished_publishes, bad_logins, header_bombs, huge_numbers, monitoring),
    *(many_subscriptions, unheard_publishes, unheard_requests, acks, purges, deletion),
    *(nonsense_logins, bomb_before_login, forwarded_upgrades, unfinished_upgrades, empty_frames),
    *(idle_monitoring, odd_reports, deliveries_into_the_api, large_restore, slow_reader),
    *(expectations, rollups),
)
