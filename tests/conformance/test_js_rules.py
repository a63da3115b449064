"""What a transcript of JetStream cannot say: rules with time or order in them, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Servers
from tests.servers import Program, RawClient, wait_until

CONFIG = 'jetstream { store_dir: "./js" }'
MS = 1_000_000
PLACES = ("delivered", "ack_floor")


def header_of(pairs: dict[str, str]) -> bytes:
    """Return headers; names are written with `_` in place of `-`."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in pairs.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


class ApiClient(RawClient):
    """A client that asks, with an answer at a time."""

    def ask(self, subject: str, body: object = None, header: bytes = b"") -> dict[str, Any]:
        """Return the answer to a request."""
        data = header + (b"" if body is None else json.dumps(body).encode())
        sizes = b"%d %d" % (len(header), len(data)) if header else b"%d" % len(data)
        verb = b"HPUB" if header else b"PUB"
        self.send(b"%b %b api.x %b\r\n%b\r\n" % (verb, subject.encode(), sizes, data))
        while not self.line().startswith(b"MSG api.x "):
            pass
        answer: dict[str, Any] = json.loads(self.line())
        return answer

    def publish(self, subject: str, **pairs: str) -> int | str:
        """Publish a message with headers; return its sequence, or why it was refused."""
        answer = self.ask(subject, header=header_of(pairs))
        return str(answer["error"]["description"]) if "error" in answer else int(answer["seq"])

    def make(self, stream: str, **config: Any) -> None:
        """Make a stream."""
        document = {"name": stream, "subjects": [f"{stream}.>"]} | config
        assert "error" not in self.ask(f"$JS.API.STREAM.CREATE.{stream}", document)

    def consume(self, stream: str, name: str, **config: Any) -> None:
        """Make a consumer."""
        document = {"stream_name": stream, "config": {"name": name} | config}
        answer = self.ask(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", document)
        assert "error" not in answer, answer


@pytest.fixture
def client(program: Program, servers: Servers) -> Iterator[ApiClient]:
    with ApiClient(servers(program, CONFIG).port) as client:
        client.connect()
        client.send(b"SUB api.* 1\r\n")
        yield client


@pytest.mark.parametrize("policy", ["explicit", "all", "none"])
def test_a_push_consumer_ends_at_its_threshold_whatever_waits_for_an_ack(
    policy: str, client: ApiClient
) -> None:
    stream = f"push_{policy}"
    client.make(stream)
    assert client.ask(f"{stream}.a", 1)["seq"] == 1
    client.send(b"SUB deliver.here 2\r\n")
    client.consume(
        stream, "C", ack_policy=policy, deliver_subject="deliver.here", inactive_threshold=50 * MS
    )
    client.settle()
    wait_until(lambda: client.ask(f"$JS.API.CONSUMER.INFO.{stream}.C")["delivered"]["stream_seq"])

    client.send(b"UNSUB 2\r\n")

    wait_until(lambda: "error" in client.ask(f"$JS.API.CONSUMER.INFO.{stream}.C"))


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_rollup_of_a_pattern_replaces_every_match(storage: str, client: ApiClient) -> None:
    stream = f"rolled_{storage}"
    client.make(stream, allow_rollup_hdrs=True, storage=storage)
    for subject in ("a", "a.1", "a.2", "a.1", "b.1"):
        client.ask(f"{stream}.{subject}", 1)
    header = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n"

    answers = [client.ask(f"{stream}.a.*", header=header) for _ in range(2)]

    assert [each["seq"] for each in answers] == [6, 7]
    state = client.ask(f"$JS.API.STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"]
    assert state["subjects"] == {f"{stream}.{each}": 1 for each in ("a", "a.*", "b.1")}
    assert (state["messages"], state["last_seq"]) == (3, 7)


@pytest.mark.parametrize("order", [(1, 0), (0, 1), (9, 4)])
def test_requests_that_come_together_are_served_by_priority(
    order: tuple[int, int], client: ApiClient
) -> None:
    stream = f"prioritized_{order[0]}{order[1]}"
    client.make(stream)
    for _ in range(10):
        client.ask(f"{stream}.a", 1)
    client.consume(
        stream, "C", ack_policy="none", priority_policy="prioritized", priority_groups=["g"]
    )
    requests = b""
    for priority in order:
        wish = b'{"batch":5,"expires":5000000000,"group":"g","priority":%d}' % priority
        request = b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.C in.%d %d\r\n%b\r\n"
        requests += request % (stream.encode(), priority, len(wish), wish)
        client.send(b"SUB in.%d 1%d\r\n" % (priority, priority))
    client.settle()

    client.send(requests)

    received = [client.line().split() for _ in range(20)][::2]
    served: dict[int, list[int]] = {}
    for _, _, sid, reply, _ in received:
        served.setdefault(int(sid) - 10, []).append(int(reply.split(b".")[5]))
    first, second = sorted(order)
    assert served == {first: [1, 2, 3, 4, 5], second: [6, 7, 8, 9, 10]}


FULL = {"discard": "new", "allow_rollup_hdrs": True, "allow_atomic": True}
FULL_SUBJECTS = {**FULL, "max_msgs_per_subject": 1, "discard_new_per_subject": True}
NO_ROOM = "maximum messages exceeded"
NO_ROOM_IN_SUBJECT = "maximum messages per subject exceeded"


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize(
    ("name", "config", "answers"),
    [
        ("subjects", FULL_SUBJECTS, [1, NO_ROOM_IN_SUBJECT, 2]),
        ("messages", {**FULL, "max_msgs": 1}, [1, NO_ROOM, NO_ROOM]),
        ("replacing", {**FULL, "max_msgs": 1, "max_msgs_per_subject": 1}, [1, 2, 3]),
        ("both", {**FULL_SUBJECTS, "max_msgs": 1}, [1, NO_ROOM_IN_SUBJECT, 2]),
    ],
)
def test_a_rollup_needs_no_room_in_its_subject(
    name: str, config: dict[str, Any], answers: list[Any], storage: str, client: ApiClient
) -> None:
    stream = f"full_{name}_{storage}"
    client.make(stream, storage=storage, **config)

    told = [client.publish(f"{stream}.a"), client.publish(f"{stream}.a")]
    told.append(client.publish(f"{stream}.a", Nats_Rollup="sub"))

    assert told == answers


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize(
    ("name", "config", "batch", "told"),
    [
        ("rolled", FULL_SUBJECTS, [("b", {}), ("a", {"Nats_Rollup": "sub"})], 3),
        ("plain", FULL_SUBJECTS, [("b", {}), ("a", {})], NO_ROOM_IN_SUBJECT),
        ("alike", {**FULL_SUBJECTS, "max_msgs": 2}, [("b", {}), ("b", {})], NO_ROOM),
        ("one", {**FULL, "max_msgs": 1, "max_msgs_per_subject": 1}, [("a", {})], NO_ROOM),
        ("both", {**FULL_SUBJECTS, "max_msgs": 1}, [("a", {"Nats_Rollup": "sub"})], NO_ROOM),
    ],
)
def test_a_batch_needs_room_beside_what_is_there(
    name: str,
    config: dict[str, Any],
    batch: list[tuple[str, dict[str, str]]],
    told: object,
    storage: str,
    client: ApiClient,
) -> None:
    stream = f"batch_{name}_{storage}"
    client.make(stream, storage=storage, **config)
    client.publish(f"{stream}.a")
    *first, (subject, pairs) = batch
    for sequence, (each, its) in enumerate(first, 1):
        place = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": str(sequence)}
        header = header_of(its | place)
        client.send(
            b"HPUB %b.%b %d %d\r\n%b\r\n"
            % (stream.encode(), each.encode(), len(header), len(header), header)
        )

    last = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": str(len(batch)), "Nats_Batch_Commit": "1"}

    assert client.publish(f"{stream}.{subject}", **pairs, **last) == told


def test_a_request_that_may_not_wait_ends_at_its_heartbeat_where_acks_are_due(
    client: ApiClient,
) -> None:
    client.make("held")
    for _ in range(3):
        client.ask("held.a", 1)
    client.consume("held", "C", ack_policy="explicit", max_ack_pending=2)
    client.send(b"SUB in.held 2\r\n")
    wish = b'{"batch":9,"expires":9000000000,"idle_heartbeat":100000000,"no_wait":true}'

    client.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.held.C in.held %d\r\n%b\r\n" % (len(wish), wish))

    lines = [client.line() for _ in range(6)]
    assert [line.split()[1] for line in lines[:4:2]] == [b"held.a"] * 2
    assert lines[4:] == [b"HMSG in.held 2 28 28", b"NATS/1.0 404 No Messages"]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_deleting_a_message_that_is_not_there_is_refused(storage: str, client: ApiClient) -> None:
    stream = f"deleted_{storage}"
    client.make(stream, storage=storage)
    for _ in range(4):
        client.ask(f"{stream}.a", 1)
    client.ask(f"$JS.API.STREAM.PURGE.{stream}", {"seq": 2})
    client.ask(f"$JS.API.STREAM.MSG.DELETE.{stream}", {"seq": 3})

    refused = [
        client.ask(f"$JS.API.STREAM.MSG.DELETE.{stream}", {"seq": sequence})["error"]
        for sequence in (1, 3, 9)
    ]

    def not_found(sequence: int) -> dict[str, Any]:
        return {"code": 400, "err_code": 10043, "description": f"sequence {sequence} not found"}

    outside = {"code": 500, "err_code": 10057}
    expected = [not_found(1), not_found(3), not_found(9)]
    if storage == "file":
        expected[0] = outside | {"description": "no message found"}
        expected[2] = outside | {"description": "stream store EOF"}
    assert refused == expected


def _places(client: ApiClient, stream: str, name: str = "C") -> list[tuple[int, int]]:
    """Return how far a consumer has delivered and settled: its own sequence, and the stream's."""
    info = client.ask(f"$JS.API.CONSUMER.INFO.{stream}.{name}")
    return [(info[name]["consumer_seq"], info[name]["stream_seq"]) for name in PLACES]


@pytest.mark.parametrize("acked", [0, 3])
@pytest.mark.parametrize(
    ("purge", "last_purged"), [({}, 10), ({"seq": 5}, 4), ({"seq": 7}, 6), ({"keep": 2}, 8)]
)
def test_what_was_purged_counts_as_delivered_and_settled(
    purge: dict[str, int], last_purged: int, acked: int, client: ApiClient
) -> None:
    stream = f"floor_{acked}_{last_purged}"
    client.make(stream)
    client.consume(stream, "C", ack_policy="explicit")
    for _ in range(10):
        client.ask(f"{stream}.a", 1)
    for _ in range(acked):
        client.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.C api.next 0\r\n\r\n" % stream.encode())
        while b"$JS.ACK." not in (line := client.line()):
            pass
        client.send(b"PUB %b 4\r\n+ACK\r\n" % line.split()[3])
    wait_until(lambda: _places(client, stream)[1] == (acked, acked))

    client.ask(f"$JS.API.STREAM.PURGE.{stream}", purge)

    # nats-server answers the purge before its consumers have followed.
    wait_until(lambda: _places(client, stream) == [(acked, last_purged)] * 2)


FILTERS = {
    "none": {},
    "a": {"filter_subject": "a"},
    "b": {"filter_subject": "b"},
    "every": {"filter_subject": ">"},
    "both": {"filter_subjects": ["a", "b"]},
    "a_or_more": {"filter_subjects": ["a", "a.more"]},
}
"""Of the consumers below; of the subjects, the name of the stream is left out."""
A, B, SOME = "a", "b", "*"


@pytest.mark.parametrize(
    ("taken", "purge", "moved"),
    [
        (0, {"filter": A}, {"none": 2, "a": 10, "b": 0, "every": 2, "both": 2, "a_or_more": 2}),
        (0, {"filter": A, "keep": 2}, {"none": 2, "a": 5, "b": 0, "every": 2, "both": 2}),
        (0, {"filter": A, "seq": 6}, {"none": 2, "a": 5, "b": 0, "every": 2, "both": 2}),
        (0, {"filter": B}, {"none": 0, "a": 0, "b": 10, "every": 0, "both": 0, "a_or_more": 0}),
        (0, {"filter": SOME}, {"none": 10, "a": 10, "b": 10, "every": 10, "both": 10}),
        (0, {"filter": SOME, "keep": 2}, {"none": 8, "a": 8, "b": 8, "every": 8, "both": 8}),
        (0, {"filter": "c"}, {"none": 0, "a": 0, "b": 0, "every": 0, "both": 0}),
        (2, {"filter": A}, {"none": 2, "a": 10, "every": 2, "both": 2, "a_or_more": 2}),
        (2, {"filter": A, "keep": 2}, {"none": 2, "a": 5, "every": 2, "both": 2}),
        (2, {"filter": B}, {"b": 10}),
        (5, {"filter": A}, {"a": 10}),
        (5, {"filter": SOME}, {"none": 10, "a": 10, "b": 10, "every": 10, "both": 10}),
    ],
)
def test_a_purge_by_subject_moves_whom_it_concerns(
    taken: int, purge: dict[str, Any], moved: dict[str, int], client: ApiClient
) -> None:
    stream = f"by_{taken}_{'_'.join(map(str, purge.values()))}".translate({42: "x"})
    client.make(stream)
    for name, filters in FILTERS.items():
        client.consume(stream, name, ack_policy="explicit", **_of(stream, filters))
    for subject in "aabbaabbab":
        client.ask(f"{stream}.{subject}", 1)
    for name in moved if taken else ():
        _take(client, stream, name, taken)

    client.ask(f"$JS.API.STREAM.PURGE.{stream}", _of(stream, purge))

    for name, sequence in moved.items():
        # nats-server answers the purge before its consumers have followed.
        expected = [(taken, sequence)] * 2
        wait_until(lambda name=name, expected=expected: _places(client, stream, name) == expected)


def _of(stream: str, options: dict[str, Any]) -> dict[str, Any]:
    """Put the name of a stream before the subjects in options."""
    return {
        name: f"{stream}.{value}"
        if isinstance(value, str)
        else [f"{stream}.{each}" for each in value]
        if isinstance(value, list)
        else value
        for name, value in options.items()
    }


def _take(client: ApiClient, stream: str, name: str, count: int) -> None:
    """Pull messages without acking them."""
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
    client.send(b"PUB %b api.next %d\r\n%d\r\n" % (subject, len(str(count)), count))
    for _ in range(count):
        while b"$JS.ACK." not in client.line():
            pass
