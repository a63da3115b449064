"""
No single request holds up the others: not for long, and not for longer than it is long.

Work is counted in lines of Python that run and calls into C, which a busy machine does not
change. `LINES_MAX` of them take less than the 50 ms that one request may: a line or a call
takes a tenth of a microsecond and more. What C does within one call is not counted, so the
processor's time is looked at too, with ten times as much room: enough for any machine, and
far from the seconds that work which grows with the square of its input takes.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from tests.unit.core import peers
from tests.unit.jetstream.world import World
from tests.work import work_of

from penstock.config.accounts import Permissions, ResponseRules
from penstock.core.routing.route import WITHDRAWN_AT_ONCE
from penstock.core.sharing.services import request_header
from penstock.jetstream.api import clusterapi, directget
from penstock.jetstream.config import consumerrules, originrules, rules
from penstock.jetstream.intake import cron
from penstock.jetstream.server import CALLS
from penstock.net.monitor.connz import LISTED_MAX, connz
from penstock.net.monitor.query import QueryError
from penstock.net.monitor.views import subsz
from penstock.protocol import strictjson
from penstock.protocol.times import parse_duration
from penstock.protocol.transforms import DESTINATION_BYTES_MAX

LINES_MAX = 1_100_000
CPU_S_MAX = 0.5
GROWTH_MAX = 2.5
"""How much more work twice the input may be. Exactly twice, and what is done once."""
STEADY = 3_000
"""Work so small that its growth says nothing."""

Make = Callable[[int], bytes]
"""Makes a request of a given size: items of a list, or bytes."""

KB = 1024
REQUEST = strictjson.REQUEST_BYTES_MAX
SUBJECTS, TOKENS = rules.SUBJECTS_MAX, rules.TOKENS_MAX


def dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def stream(**config: Any) -> bytes:
    return dump({"name": "S", "storage": "memory", **config})


def consumer(**config: Any) -> bytes:
    return dump({"stream_name": "K", "config": {"name": "c", "ack_policy": "explicit", **config}})


def names(form: str, n: int) -> list[str]:
    return [form.format(i) for i in range(n)]


def crossed(n: int) -> list[str]:
    """Return patterns with wildcards where others have tokens: hard to compare."""
    return names("k.*.b{}", n // 2) + names("k.x{}.a", n // 2)


def stars(n: int) -> list[str]:
    """Return patterns of which every one shares tokens with every other one."""
    return ["k." + ".".join("a*"[i >> bit & 1] for bit in range(10)) + f".{i}" for i in range(n)]


def transforms(n: int) -> list[dict[str, str]]:
    return [{"src": f"a.{i}.*", "dest": f"b.{i}.{{{{wildcard(1)}}}}"} for i in range(n)]


def dots(n: int) -> str:
    return ".".join(["*"] * (n // 2))


CREATE, UPDATE = "STREAM.CREATE.S", "STREAM.UPDATE.U"
CONSUMER = "CONSUMER.CREATE.K.c"

REQUESTS: dict[str, tuple[str, Make, int]] = {
    # JSON as such: any call with a body reads it.
    "many values": (CREATE, lambda n: b"{}" * (n // 2), REQUEST),
    "many elements": (CREATE, lambda n: b"[" + b"1," * (n // 2 - 2) + b"1]", REQUEST),
    "many lists": (CREATE, lambda n: b"[" + b"[]," * (n // 3 - 2) + b"[]]", REQUEST),
    "deep lists": (CREATE, lambda n: b"[" * n, REQUEST),
    "deep objects": (CREATE, lambda n: b'{"a":' * (n // 5), REQUEST),
    "bad at its end": (CREATE, lambda n: b"[" + b"1," * (n // 2 - 2) + b"x", REQUEST),
    "bad and scanned": (
        CREATE,
        lambda n: b"[" + b"1," * (n // 2 - 2) + b"x",
        strictjson.SCANNED_CHARACTERS_MAX,
    ),
    "an open text": (CREATE, lambda n: b'{"name":"' + b"a" * (n - 9), REQUEST),
    "escapes": (CREATE, lambda n: b'{"name":"' + b"\\u0041" * (n // 6 - 2) + b'"}', REQUEST),
    "white space": (CREATE, lambda n: b" " * n, REQUEST),
    "white space behind": (CREATE, lambda n: b"{}" + b" " * (n - 2), REQUEST),
    "digits": (CREATE, lambda n: b'{"max_msgs":' + b"9" * (n - 13) + b"}", REQUEST),
    "fractions": (CREATE, lambda n: b'{"max_msgs":0.' + b"9" * (n - 15) + b"}", REQUEST),
    "one key again and again": (
        CREATE,
        lambda n: b"{" + b'"name":"S",' * (n // 11 - 2) + b'"name":"S"}',
        REQUEST,
    ),
    "unknown keys": (
        CREATE,
        lambda n: b"{" + b",".join(b'"%06d":1' % i for i in range(n // 11)) + b"}",
        REQUEST,
    ),
    "longer than allowed": (CREATE, lambda n: b"{" * n, 4 * REQUEST),
    # What a stream has many of.
    "subjects": (CREATE, lambda n: stream(subjects=names("s.{}.new", n)), SUBJECTS),
    "wildcard subjects": (CREATE, lambda n: stream(subjects=names("s.{}.*.x", n)), SUBJECTS),
    "crossed subjects": (CREATE, lambda n: stream(subjects=crossed(n)), SUBJECTS),
    "shared subjects": (CREATE, lambda n: stream(subjects=stars(n)), SUBJECTS),
    "one subject twice": (
        CREATE,
        lambda n: stream(subjects=[*names("s.{}", n - 1), "s.0"]),
        SUBJECTS,
    ),
    "too many subjects": (CREATE, lambda n: stream(subjects=names("s.{}", n)), REQUEST // 12),
    "long subjects": (
        CREATE,
        lambda n: stream(subjects=[".".join([f"s{i}", *["a"] * 999]) for i in range(n // 1000)]),
        TOKENS,
    ),
    "update of subjects": (
        UPDATE,
        lambda n: dump({"name": "U", "storage": "memory", "subjects": names("u.{}.new", n)}),
        SUBJECTS,
    ),
    "metadata": (
        CREATE,
        lambda n: stream(metadata=dict.fromkeys(names("{:05}", n), "")),
        rules.METADATA_BYTES_MAX // 12,
    ),
    "description": (CREATE, lambda n: stream(description="a" * n), REQUEST - 100),
    "tags": (CREATE, lambda n: stream(placement={"tags": ["a"] * n}), REQUEST // 5),
    "sources": (
        CREATE,
        lambda n: stream(sources=[{"name": each} for each in names("o{}", n)]),
        originrules.SOURCES_MAX,
    ),
    "external sources": (
        CREATE,
        lambda n: stream(
            sources=[
                {"name": "U", "external": {"api": f"$JS.{i}.API", "deliver": f"d.{i}"}}
                for i in range(n)
            ]
        ),
        originrules.SOURCES_MAX,
    ),
    "transforms of a source": (
        CREATE,
        lambda n: stream(sources=[{"name": "o", "subject_transforms": transforms(n)}]),
        originrules.TRANSFORMS_MAX,
    ),
    "transforms of a mirror": (
        CREATE,
        lambda n: stream(mirror={"name": "o", "subject_transforms": transforms(n)}),
        originrules.TRANSFORMS_MAX,
    ),
    "transforms of many sources": (
        CREATE,
        lambda n: stream(
            sources=[{"name": f"o{i}", "subject_transforms": transforms(8)} for i in range(n // 8)]
        ),
        originrules.TRANSFORMS_MAX,
    ),
    "nested functions": (
        CREATE,
        lambda n: stream(subject_transform={"src": "s.*", "dest": "{{a(" * (n // 4) + "}}"}),
        REQUEST - 200,
    ),
    "functions": (
        CREATE,
        lambda n: stream(
            subjects=["s.*"],
            subject_transform={"src": "s.*", "dest": ".".join(["{{partition(9,1)}}"] * (n // 19))},
        ),
        DESTINATION_BYTES_MAX,
    ),
    "tokens of a destination": (
        CREATE,
        lambda n: stream(subject_transform={"src": "s.*", "dest": "a." * (n // 2) + "a"}),
        4000,
    ),
    "tokens of a source": (
        CREATE,
        lambda n: stream(subject_transform={"src": dots(n), "dest": "a"}),
        4000,
    ),
    "republish": (
        CREATE,
        lambda n: stream(
            subjects=names("s.{}", n), republish={"src": "s.>", "dest": "r." * 400 + ">"}
        ),
        SUBJECTS,
    ),
    # What a consumer has many of.
    "filters": (CONSUMER, lambda n: consumer(filter_subjects=names("k.{}.new", n)), SUBJECTS),
    "wildcard filters": (
        CONSUMER,
        lambda n: consumer(filter_subjects=names("k.{}.*.x", n)),
        SUBJECTS,
    ),
    "crossed filters": (CONSUMER, lambda n: consumer(filter_subjects=crossed(n)), SUBJECTS),
    "shared filters": (CONSUMER, lambda n: consumer(filter_subjects=stars(n)), SUBJECTS),
    "filters of a work queue": (
        "CONSUMER.CREATE.Q.c",
        lambda n: dump(
            {
                "stream_name": "Q",
                "config": {
                    "name": "c",
                    "ack_policy": "explicit",
                    "filter_subjects": names("q.{}.new", n),
                },
            }
        ),
        SUBJECTS,
    ),
    "last of filters": (
        CONSUMER,
        lambda n: consumer(filter_subjects=names("k.{}", n), deliver_policy="last_per_subject"),
        SUBJECTS,
    ),
    "backoff": (
        CONSUMER,
        lambda n: consumer(backoff=[10**9] * n, max_deliver=10**6),
        consumerrules.BACKOFF_MAX,
    ),
    "too many of a backoff": (CONSUMER, lambda n: consumer(backoff=[1] * n), REQUEST // 3),
    "groups": (
        CONSUMER,
        lambda n: consumer(priority_policy="overflow", priority_groups=names("g{}", n)),
        consumerrules.GROUPS_MAX,
    ),
    "too many groups": (
        CONSUMER,
        lambda n: consumer(priority_policy="overflow", priority_groups=names("g{}", n)),
        REQUEST // 12,
    ),
    "metadata of a consumer": (
        CONSUMER,
        lambda n: consumer(metadata=dict.fromkeys(names("{:05}", n), "")),
        rules.METADATA_BYTES_MAX // 12,
    ),
    "a deliver subject": (
        CONSUMER,
        lambda n: consumer(deliver_subject="d" + ".d" * (n // 2)),
        4000,
    ),
    "a share of acks": (CONSUMER, lambda n: consumer(sample_freq="9" * n), REQUEST - 200),
    # Questions.
    "names by subject": ("STREAM.NAMES", lambda n: dump({"subject": dots(n)}), 4000),
    "list by subject": ("STREAM.LIST", lambda n: dump({"subject": dots(n)}), 4000),
    "subjects of a stream": ("STREAM.INFO.K", lambda n: dump({"subjects_filter": dots(n)}), 4000),
    "purge": ("STREAM.PURGE.K", lambda n: dump({"filter": dots(n)}), 4000),
    "message by subject": ("STREAM.MSG.GET.K", lambda n: dump({"last_by_subj": dots(n)}), 4000),
    "next by subject": (
        "STREAM.MSG.GET.K",
        lambda n: dump({"seq": 1, "next_by_subj": dots(n)}),
        4000,
    ),
    "deletion": ("STREAM.MSG.DELETE.K", lambda n: b'{"seq":' + b"9" * n + b"}", REQUEST - 100),
    "direct get": ("DIRECT.GET.K", lambda n: dump({"last_by_subj": dots(n)}), 4000),
    "last of many": (
        "DIRECT.GET.K",
        lambda n: dump({"multi_last": names("k.{}", n)}),
        directget.MULTI_LAST_MAX,
    ),
    "last of many wildcards": (
        "DIRECT.GET.K",
        lambda n: dump({"multi_last": names("*.{}", n)}),
        directget.MULTI_LAST_MAX,
    ),
    "last of too many": (
        "DIRECT.GET.K",
        lambda n: dump({"multi_last": names("k.{}", n)}),
        REQUEST // 12,
    ),
    "a pull": ("CONSUMER.MSG.NEXT.K.p", lambda n: b"{" + b" " * n + b"}", REQUEST - 100),
    "a pull of digits": ("CONSUMER.MSG.NEXT.K.p", lambda n: b"9" * n, 1024 * KB),
    "a pull of a group": (
        "CONSUMER.MSG.NEXT.K.p",
        lambda n: dump({"group": "g" * n}),
        REQUEST - 100,
    ),
    "a pull with unknown keys": (
        "CONSUMER.MSG.NEXT.K.p",
        lambda n: b"{" + b",".join(b'"%06d":1' % i for i in range(n // 11)) + b"}",
        REQUEST,
    ),
    "a pause": ("CONSUMER.PAUSE.K.p", lambda n: dump({"pause_until": "2" * n}), REQUEST - 100),
    "an unpin": ("CONSUMER.UNPIN.K.p", lambda n: dump({"group": "g" * n}), REQUEST - 100),
    "a reset": ("CONSUMER.RESET.K.p", lambda n: b'{"seq":' + b"9" * n + b"}", REQUEST - 100),
    "a snapshot": ("STREAM.SNAPSHOT.K", lambda n: dump({"deliver_subject": dots(n)}), 4000),
    "a restore": (
        "STREAM.RESTORE.R",
        lambda n: dump({"config": {"name": "R", "subjects": names("r.{}", n)}, "state": {}}),
        SUBJECTS,
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A stream with messages of a thousand subjects, one to change, and a work queue."""
    world = World(tmp_path)
    world.create("K", subjects=["k.>"], allow_direct=True)
    world.create("U", subjects=["u.>"])
    world.create("Q", subjects=["q.>"], retention="workqueue")
    world.send(b"".join(b"PUB k.%d 1\r\nx\r\n" % number for number in range(1000)))
    world.settle()
    config = {"durable_name": "p", "ack_policy": "explicit", "deliver_policy": "new"}
    world.call("CONSUMER.CREATE.K.p", stream_name="K", config=config)
    return world


def test_every_call_is_looked_at() -> None:
    bodiless = {"INFO", "STREAM.DELETE", "CONSUMER.INFO", "CONSUMER.DELETE"}
    paged = {"CONSUMER.NAMES", "CONSUMER.LIST"}
    same = {"CONSUMER.DURABLE.CREATE"}
    asked = tuple(subject for subject, _, _ in REQUESTS.values())
    calls = {".".join(words) for words in CALLS.keys() - clusterapi.CALLS.keys()}

    unknown = {call for call in calls if not any(each.startswith(call) for each in asked)}

    assert unknown == bodiless | paged | same


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_of_any_size_is_answered_in_no_time(world: World, name: str) -> None:
    call, make, largest = REQUESTS[name]
    numbers = count()

    def ask(body: bytes) -> None:
        reply = b"_INBOX.%d" % next(numbers)
        world.send(b"PUB $JS.API.%b %b %d\r\n%b\r\n" % (call.encode(), reply, len(body), body))
        world.settle()

    def clean() -> None:
        for each in ("STREAM.DELETE.S", "CONSUMER.DELETE.K.c", "CONSUMER.DELETE.Q.c"):
            world.publish(f"$JS.API.{each}")
        world.settle()
        world.session.outbox.clear()
        world.session.outbox_bytes = 0

    check_work(lambda n: bounded(ask, make(n)), largest, clean)


def bounded(act: Callable[[bytes], None], data: bytes) -> Callable[[], None]:
    return lambda: act(data)


def check_work(
    prepare: Callable[[int], Callable[[], None]],
    largest: int,
    clean: Callable[[], None] = lambda: None,
) -> None:
    """See that something takes as long as its input is, and not too long at its largest."""
    counts = []
    for size in (largest // 2, largest):
        action = prepare(size)
        counts.append(work_of(action))
        clean()
    action = prepare(largest)
    gc.disable()
    began_s = time.thread_time()
    action()
    took_s = time.thread_time() - began_s
    gc.enable()
    assert counts[-1] < LINES_MAX, f"{counts[-1]} lines and calls"
    less, more = counts
    assert more < STEADY or more <= GROWTH_MAX * less, f"not in proportion: {counts}"
    assert took_s < CPU_S_MAX, f"{took_s:.3f} s"


def test_names_of_consumers_are_paged(world: World) -> None:
    for number in range(300):
        config = {"name": f"c{number}", "ack_policy": "none"}
        world.call(f"CONSUMER.CREATE.K.c{number}", stream_name="K", config=config)

    for call in ("CONSUMER.NAMES.K", "CONSUMER.LIST.K"):
        assert work_of(lambda call=call: world.call(call)) < LINES_MAX


def test_a_list_of_streams_is_little_work_for_each(world: World) -> None:
    for number in range(300):
        world.create(f"C{number}", subjects=[f"c{number}.>"])
    world.call("STREAM.LIST")

    assert work_of(lambda: world.call("STREAM.LIST")) < 300 * 256


def test_a_list_shows_a_stream_as_it_was_changed(world: World) -> None:
    world.call("STREAM.LIST")
    world.call("STREAM.UPDATE.U", name="U", storage="memory", subjects=["u.*"], max_msgs=5)

    listed = {each["config"]["name"]: each for each in world.call("STREAM.LIST")["streams"]}

    assert listed["U"]["config"]["subjects"] == ["u.*"]
    assert listed["U"]["config"]["max_msgs"] == 5
    assert listed["K"]["state"] == world.state("K") | {"consumer_count": 1}


@pytest.mark.parametrize("leaves_gaps", [False, True], ids=["removed", "skipped"])
def test_deleted_messages_are_listed_in_no_time(world: World, leaves_gaps: bool) -> None:
    world.create("G", subjects=["g"])
    stream, gone = world.engine.streams["G"], 10_000
    if leaves_gaps:
        for _ in range(gone):
            world.send(b"PUB g 0\r\n\r\n")
            stream.store.skip(1)
        world.send(b"PUB g 0\r\n\r\n")
    else:
        world.send(b"PUB g 0\r\n\r\n" * (2 * gone + 1))
        stream.remove(range(2, 2 * gone + 1, 2))
    world.settle()

    def ask() -> Any:
        return world.call("STREAM.INFO.G", deleted_details=True)

    assert ask()["state"]["deleted"] == list(range(2, 2 * gone + 1, 2))
    assert work_of(ask) < 3 * gone


def test_a_batch_of_a_direct_get_ends_at_some_time(world: World) -> None:
    data = b"".join(b"PUB k.%d 1\r\nx\r\n" % (number % 500) for number in range(20_000))
    for start in range(0, len(data), 65536):
        world.send(data[start : start + 65536])
    world.settle()
    world.session.outbox.clear()

    world.publish("$JS.API.DIRECT.GET.K", '{"seq":1,"batch":1000000}', reply="_INBOX.b")

    messages = [each for each in world.deliveries() if each[1].endswith(b"x")]
    assert len(messages) == directget.BATCH_MAX


# Messages: headers, subjects, what is made of them.

HEADERS: dict[str, tuple[Make, dict[str, Any]]] = {
    "many lines": (lambda n: b"a:b\r\n" * (n // 5), {}),
    "one line again and again": (lambda n: b"Nats-Msg-Id: x\r\n" * (n // 16), {}),
    "a long id": (lambda n: b"Nats-Msg-Id: " + b"x" * n + b"\r\n", {}),
    "a time to live": (
        lambda n: b"Nats-TTL: " + b"1s" * (n // 2) + b"\r\n",
        {"allow_msg_ttl": True},
    ),
    "a time to live in digits": (
        lambda n: b"Nats-TTL: " + b"9" * n + b"\r\n",
        {"allow_msg_ttl": True},
    ),
    "expected sequence": (lambda n: b"Nats-Expected-Last-Sequence: " + b"9" * n + b"\r\n", {}),
    "expected subject": (
        lambda n: (
            b"Nats-Expected-Last-Subject-Sequence: 1\r\n"
            b"Nats-Expected-Last-Subject-Sequence-Subject: " + b"*." * (n // 2) + b"*\r\n"
        ),
        {},
    ),
    "a schedule": (
        lambda n: (
            b"Nats-Schedule-Target: s.b\r\nNats-Schedule: " + b"1," * (n // 2) + b"1 * * * * *\r\n"
        ),
        {"allow_msg_schedules": True},
    ),
    "an interval": (
        lambda n: (
            b"Nats-Schedule-Target: s.b\r\nNats-Schedule: @every " + b"1s" * (n // 2) + b"\r\n"
        ),
        {"allow_msg_schedules": True},
    ),
    "a time zone": (
        lambda n: (
            b"Nats-Schedule-Target: s.b\r\nNats-Schedule: 0 0 0 1 1 *\r\n"
            b"Nats-Schedule-Time-Zone: " + b"a/" * (n // 2) + b"a\r\n"
        ),
        {"allow_msg_schedules": True},
    ),
    "a counter": (lambda n: b"Nats-Incr: +" + b"9" * n + b"\r\n", {"allow_msg_counter": True}),
    "an API level": (lambda n: b"Nats-Required-Api-Level: " + b"9" * n + b"\r\n", {}),
    "a rollup": (
        lambda n: b"Nats-Rollup: " + b"sub" * (n // 3) + b"\r\n",
        {"allow_rollup_hdrs": True},
    ),
    "a batch": (
        lambda n: b"Nats-Batch-Id: " + b"x" * n + b"\r\nNats-Batch-Sequence: 1\r\n",
        {"allow_atomic": True},
    ),
}
HEADER_BYTES_MAX = 1000 * KB


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_any_size_is_read_in_no_time(world: World, name: str) -> None:
    make, config = HEADERS[name]
    world.create("S", subjects=["s.>"], **config)

    def publish(block: bytes) -> None:
        sizes = len(block), len(block)
        world.send(b"HPUB s.a _INBOX.h %d %d\r\n%b\r\n" % (*sizes, block))
        world.settle()

    def clean() -> None:
        world.session.outbox.clear()
        world.session.outbox_bytes = 0

    check_work(
        lambda n: bounded(publish, b"NATS/1.0\r\n" + make(n) + b"\r\n"), HEADER_BYTES_MAX, clean
    )


@pytest.mark.parametrize("dest", ["{{partition(9,1)}}", "{{wildcard(1)}}", "{{split(1,a)}}"])
def test_a_transform_of_any_subject_is_made_in_no_time(world: World, dest: str) -> None:
    count_max = DESTINATION_BYTES_MAX // (len(dest) + 1)
    transform = {"src": "s.*", "dest": ".".join([dest] * count_max)}
    world.create("S", subjects=["s.*"], subject_transform=transform)

    def publish(subject: bytes) -> None:
        world.send(b"PUB %b 0\r\n\r\n" % subject)
        world.settle()

    check_work(lambda n: bounded(publish, b"s." + b"x" * n), 4000)


# Directives.


def lines(form: bytes) -> Make:
    return lambda n: b"".join(form % (i, i) for i in range(n))


LINE = 4000
DIRECTIVES: dict[str, tuple[Make, int]] = {
    "SUB of many tokens": (lambda n: b"SUB " + b"a." * (n // 2) + b"a 1\r\n", LINE),
    "SUB of many wildcards": (lambda n: b"SUB " + b"*." * (n // 2) + b"* 1\r\n", LINE),
    "SUB with a long sid": (lambda n: b"SUB a " + b"1" * n + b"\r\n", LINE),
    "SUB with spaces": (lambda n: b"SUB a" + b" " * n + b"1\r\n", LINE),
    "SUBs": (lines(b"SUB a.%d %d\r\n"), 2000),
    "SUBs of the same": (lines(b"SUB a %d%d\r\n"), 2000),
    "SUBs and UNSUBs": (
        lambda n: b"".join(b"SUB s.%d.* x\r\nUNSUB x\r\n" % i for i in range(n)),
        2000,
    ),
    "UNSUBs": (lines(b"UNSUB %d %d\r\n"), 4000),
    "UNSUB of digits": (lambda n: b"UNSUB 1 " + b"9" * n + b"\r\n", LINE),
    "PUB of many tokens": (lambda n: b"PUB " + b"a." * (n // 2) + b"a 0\r\n\r\n", LINE),
    "PUB with digits": (lambda n: b"PUB a " + b"0" * n + b"\r\n\r\n", LINE),
    "PUB with a long reply": (lambda n: b"PUB a " + b"r." * (n // 2) + b"r 0\r\n\r\n", LINE),
    "PUBs": (lambda n: b"".join(b"PUB a.%d 0\r\n\r\n" % i for i in range(n)), 4000),
    "HPUB with digits": (lambda n: b"HPUB a 12 " + b"0" * n + b"12\r\nNATS/1.0\r\n\r\n\r\n", LINE),
    "CONNECT with a long name": (lambda n: b'CONNECT {"name":"' + b"a" * n + b'"}\r\n', LINE),
    "CONNECT with many keys": (
        lambda n: b"CONNECT {" + b",".join(b'"%05d":1' % i for i in range(n // 10)) + b"}\r\n",
        LINE,
    ),
    "CONNECT, deep": (lambda n: b'CONNECT {"a":' + b"[" * n + b"\r\n", LINE),
    "CONNECTs": (lambda n: b'CONNECT {"verbose":false}\r\n' * n, 500),
    "PINGs": (lambda n: b"PING\r\n" * n, 5000),
    "PONGs": (lambda n: b"PONG\r\n" * n, 5000),
    "a line without an end": (lambda n: b"PUB " + b"a" * n, LINE),
}


@pytest.mark.parametrize("name", DIRECTIVES)
def test_a_directive_of_any_size_is_done_in_no_time(name: str) -> None:
    make, largest = DIRECTIVES[name]

    def prepare(n: int) -> Callable[[], None]:
        world = peers.World()
        peer = world.peer()
        listener = world.peer()
        # Routes that are remembered, so that whoever comes or goes has something to look at.
        listener.says(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(1000)))
        peer.says(b"".join(b"PUB s.%d 0\r\n\r\n" % i for i in range(1000)))
        return bounded(peer.session.receive, make(n))

    check_work(prepare, largest)


@pytest.mark.parametrize("pattern", [b"s.x.*", b"s.*.x", b"s.>", b"*.x", b">"])
def test_who_comes_and_goes_costs_the_same_whatever_is_subscribed_to(pattern: bytes) -> None:
    def churn(subjects: int) -> int:
        world = peers.World()
        peer, listener = world.peer(), world.peer()
        listener.says(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(subjects)))
        peer.says(b"".join(b"PUB s.%d 0\r\n\r\n" % i for i in range(subjects)))
        once = b"SUB %b x\r\nUNSUB x\r\n" % pattern
        peer.says(once)
        return work_of(lambda: peer.says(once * 10))

    assert churn(4000) <= churn(40) + 20


@pytest.mark.parametrize("queue", [b"", b" q"])
def test_who_leaves_very_many_subscriptions_behind_gives_others_their_turn(queue: bytes) -> None:
    world = peers.World()
    gone, left, publisher = world.peer(), world.peer(), world.peer()
    count = 3 * WITHDRAWN_AT_ONCE
    gone.says(b"".join(b"SUB s.%d%b %d\r\n" % (i, queue, i) for i in range(count)))
    gone.says(b"SUB s.>%b x\r\n" % queue)
    left.says(b"SUB s.*%b 1\r\n" % queue)
    routes = world.broker.accounts["$G"].routes
    kept = len(routes.trie) - len(gone.session.subscriptions)
    publisher.says(b"PUB s.1 0\r\n\r\n")
    gone.taken(), left.taken()

    works = [work_of(lambda: world.broker.close(gone.session, "Client Closed"))]
    publisher.says(b"PUB s.1 0\r\n\r\nPUB s.2 0\r\n\r\n")
    while world.put_off:
        works.append(work_of(world.put_off.pop().action))

    assert gone.taken() == b""
    assert left.taken() == b"MSG s.1 1 0\r\n\r\nMSG s.2 1 0\r\n\r\n"
    assert len(works) == 4
    assert max(works) < LINES_MAX // 4
    assert len(routes.trie) == kept


def test_answers_that_are_expected_are_noted_in_no_time() -> None:
    rules = Permissions(allow_responses=ResponseRules(messages_max=1, expires_s=1000))
    world = peers.World(users={"u": rules, "p": Permissions()})
    peer, publisher = world.peer("u"), world.peer("p")
    peer.says(b"SUB a 1\r\n")

    def prepare(n: int) -> Callable[[], None]:
        return bounded(
            publisher.session.receive, b"".join(b"PUB a r.%d 0\r\n\r\n" % i for i in range(n))
        )

    prepare(5000)()

    check_work(prepare, 2000)


# Times.


@pytest.mark.parametrize(
    "pattern",
    ["0 0 0 30 2 *", "59 59 23 31 12 6", "0 0 0 29 2 *", "* * * * * *", "0 0 0 31 2,4,6 *"],
)
@pytest.mark.parametrize("zone", [None, "America/St_Johns"])
def test_the_next_time_of_a_schedule_is_found_in_no_time(pattern: str, zone: str | None) -> None:
    def find() -> None:
        try:
            cron.next_time_ns(pattern, zone, 1_800_000_000 * 10**9, 1_800_000_000 * 10**9)
        except ValueError:
            pass

    assert work_of(find) < LINES_MAX


@pytest.mark.parametrize(
    "text", ["1s" * 10**6, "1" * 10**6, "1." + "0" * 10**6 + "s", "1m" * 10**6 + "x"]
)
def test_a_long_duration_is_refused_at_once(text: str) -> None:
    def parse() -> None:
        with pytest.raises(ValueError, match="invalid duration"):
            parse_duration(text)

    assert work_of(parse) < 10_000


# Services.


SERVICE_HEADERS: dict[str, Make] = {
    "lines": lambda n: b"a:b\r\n" * (n // 5),
    "forged": lambda n: b"nats-request-info:x\r\n" * (n // 21),
    "a long one": lambda n: b"nats-request-info:" + b"x" * n + b"\r\n",
}


@pytest.mark.parametrize("name", SERVICE_HEADERS)
def test_a_request_to_a_service_is_passed_on_in_no_time(name: str) -> None:
    def pass_on(block: bytes) -> None:
        assert request_header(block, {"acc": "B"}).endswith(
            b'Nats-Request-Info: {"acc":"B"}\r\n\r\n'
        )

    check_work(
        lambda n: bounded(pass_on, b"NATS/1.0\r\n" + SERVICE_HEADERS[name](n) + b"\r\n"),
        HEADER_BYTES_MAX,
    )


# Monitoring.


@pytest.fixture(scope="module")
def crowded() -> peers.World:
    """A broker with many subscriptions of a few clients, and many remembered routes."""
    world = peers.World()
    publisher = world.peer()
    for number in range(4):
        peer = world.peer()
        peer.says(b"".join(b"SUB s.%d.%d %d\r\n" % (number, i, i) for i in range(10_000)))
        publisher.says(b"".join(b"PUB s.%d.%d 0\r\n\r\n" % (number, i) for i in range(5000)))
    return world


@pytest.mark.parametrize(
    "asked",
    [
        {"subs": "1"},
        {"subs": "detail"},
        {"subs": "1", "limit": "1000000000"},
        {"filter_subject": "s.0.1"},
        {"filter_subject": "*.*.7"},
        {"sort": "subs"},
    ],
    ids=str,
)
def test_connections_are_shown_in_no_time(crowded: peers.World, asked: dict[str, str]) -> None:
    def show() -> list[Any]:
        entries = connz(crowded.broker, asked)["connections"]
        return [list(each.get("subscriptions_list", ())) for each in entries]

    assert work_of(show) < LINES_MAX
    assert sum(map(len, show())) <= LISTED_MAX


def test_the_number_of_subscriptions_is_told_if_not_all_are_listed(crowded: peers.World) -> None:
    entries = list(connz(crowded.broker, {"subs": "1"})["connections"])

    assert sum(each["subscriptions"] for each in entries) == 40_000
    assert sum(len(list(each.get("subscriptions_list", ()))) for each in entries) == LISTED_MAX


def test_a_filter_that_overlaps_with_too_much_is_refused() -> None:
    world = peers.World()
    deep = b".a" * 1000
    world.peer().says(b"".join(b"SUB t.%d%b %d\r\n" % (i, deep, i) for i in range(101)))

    with pytest.raises(QueryError, match="too many subscriptions"):
        connz(world.broker, {"filter_subject": "*.>"})


@pytest.mark.parametrize(
    "asked",
    [
        {"subs": "1"},
        {"subs": "1", "offset": "39000"},
        {"subs": "1", "limit": "1000000000"},
        {"subs": "1", "test": "s.0.1"},
        {},
    ],
    ids=str,
)
def test_subscriptions_are_shown_in_no_time(crowded: peers.World, asked: dict[str, str]) -> None:
    def show() -> list[Any]:
        # What is listed is written out piece by piece, with time for others between them.
        return list(islice(subsz(crowded.broker, asked).get("subscriptions_list", ()), 1024))

    assert work_of(show) < LINES_MAX


def test_pages_of_subscriptions_join_up(crowded: peers.World) -> None:
    def page(offset: int, limit: int) -> list[Any]:
        asked = {"subs": "1", "offset": str(offset), "limit": str(limit)}
        return list(subsz(crowded.broker, asked).get("subscriptions_list", ()))

    every = page(0, 50_000)

    assert len(every) == 40_000
    assert page(9_990, 20) == every[9_990:10_010]
    assert page(19_995, 10_010) == every[19_995:30_005]
    assert page(40_000, 10) == []
