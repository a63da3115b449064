"""What a message demands of its stream, examined before it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.errors import JetStreamError
from penstock.jetstream.config.rules import checked_create
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.intake.checks import Duplicate, Prepared, PublishChecks, Staged
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import StoreLimits
from penstock.protocol import headers

NOW_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


@dataclass
class Room:
    quota: Any


@dataclass
class Target:
    """Only what the checks ask of a stream."""

    config: StreamConfig
    store: Store = field(default_factory=open_memory_store)
    context: Room = field(default_factory=lambda: Room(Unlimited()))


class Unlimited:
    """An account with room for everything."""

    def check_room(self, storage: str, size_bytes: int) -> None:
        pass


def block(**pairs: str) -> bytes:
    """Return headers; names are written with `_` in place of `-`."""
    return headers.encode([(name.replace("_", "-"), value) for name, value in pairs.items()])


class Intake:
    """A stream with its checks; what passes them is stored."""

    def __init__(self, **options: Any) -> None:
        config = checked_create(
            StreamConfig(**({"name": "S", "subjects": ("s.>",)} | options)), lambda name: None
        )
        limits = StoreLimits(messages_per_subject_max=max(config.max_msgs_per_subject, 0))
        self.target = Target(config, open_memory_store(limits=limits))
        self.checks = PublishChecks(self.target)  # type: ignore[arg-type]
        self.now_ns = NOW_NS

    def examine(
        self,
        subject: str = "s.a",
        payload: bytes = b"x",
        staged: Staged | None = None,
        **pairs: str,
    ) -> Prepared:
        header = block(**pairs) if pairs else b""
        return self.checks.examine(subject.encode(), header, payload, self.now_ns, staged=staged)

    def store(self, subject: str = "s.a", payload: bytes = b"x", **pairs: str) -> int:
        entry, message_id, _, _ = self.examine(subject, payload, **pairs)
        sequence = self.target.store.append([entry])
        if message_id:
            self.checks.window(self.now_ns).remember(message_id, sequence, self.now_ns)
        self.checks.last_message_id = message_id or b""
        return sequence

    def refusal(self, subject: str = "s.a", payload: bytes = b"x", **options: Any) -> str:
        with pytest.raises(JetStreamError) as caught:
            self.examine(subject, payload, **options)
        return caught.value.description


def test_examining_changes_nothing() -> None:
    intake = Intake()

    for _ in range(2):
        entry, message_id, rollup, ttl_ns = intake.examine(Nats_Msg_Id="1")
        assert (b"1", None, None) == (message_id, rollup, ttl_ns)

    assert (b"s.a", b"x", NOW_NS) == (entry[0], entry[2], entry[3])
    assert 0 == intake.target.store.messages


def test_an_id_is_refused_under_the_sequence_it_has() -> None:
    intake = Intake()
    intake.store(Nats_Msg_Id="1")

    with pytest.raises(Duplicate) as caught:
        intake.examine(Nats_Msg_Id="1")
    assert 1 == caught.value.sequence
    intake.now_ns += intake.target.config.duplicate_window
    assert b"1" == intake.examine(Nats_Msg_Id="1")[1]


def test_ids_that_were_taken_back_may_come_again() -> None:
    intake = Intake()
    for number in (1, 2):
        intake.store(Nats_Msg_Id=str(number))
    intake.target.store.remove([2])

    intake.checks.go_back(1)

    assert (b"2", b"1") == (intake.examine(Nats_Msg_Id="2")[1], intake.checks.last_message_id)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"Nats_Expected_Stream": "T"}, "expected stream does not match"),
        ({"Nats_Expected_Last_Sequence": "7"}, "wrong last sequence: 2"),
        ({"Nats_Expected_Last_Sequence": "x"}, "wrong last sequence: 2"),
        ({"Nats_Expected_Last_Subject_Sequence": "2"}, "wrong last sequence: 1"),
        (
            {
                "Nats_Expected_Last_Subject_Sequence": "1",
                "Nats_Expected_Last_Subject_Sequence_Subject": "s.b",
            },
            "wrong last sequence: 2",
        ),
        (
            {"Nats_Expected_Last_Subject_Sequence_Subject": "s.b"},
            "missing sequence for expected last sequence per subject",
        ),
        ({"Nats_Expected_Last_Msg_Id": "zz"}, "wrong last msg ID: id-2"),
        ({"Nats_TTL": "1s"}, "per-message TTL is disabled"),
        ({"Nats_Incr": "1"}, "message counters is disabled"),
        ({"Nats_Rollup": "sub"}, "rollup not permitted"),
        ({"Nats_Stream_Source": "O 1 > >"}, "message stream source header is not allowed"),
    ],
    ids=repr,
)
def test_a_demand_that_does_not_hold_is_refused(pairs: dict[str, str], said: str) -> None:
    intake = Intake()
    intake.store("s.a", Nats_Msg_Id="id-1")
    intake.store("s.b", Nats_Msg_Id="id-2")

    assert said in intake.refusal("s.a", **pairs)


@pytest.mark.parametrize(
    "pairs",
    [
        {"Nats_Expected_Stream": "S"},
        {"Nats_Expected_Last_Sequence": "2"},
        {"Nats_Expected_Last_Subject_Sequence": "1"},
        {"Nats_Expected_Last_Msg_Id": "id-2"},
    ],
    ids=repr,
)
def test_a_demand_that_holds_is_let_through(pairs: dict[str, str]) -> None:
    intake = Intake()
    intake.store("s.a", Nats_Msg_Id="id-1")
    intake.store("s.b", Nats_Msg_Id="id-2")

    assert b"s.a" == intake.examine("s.a", **pairs)[0][0]


def test_facts_of_the_server_about_a_requester_are_not_stored() -> None:
    (_, header, _, _), *_ = Intake().examine(Nats_Request_Info="{}", Nats_Msg_Id="1")

    assert (None, b"1") == (
        headers.get(header, b"Nats-Request-Info"),
        headers.get(header, b"Nats-Msg-Id"),
    )


def test_a_rollup_says_what_it_replaces() -> None:
    intake = Intake(allow_rollup_hdrs=True)

    assert b"all" == intake.examine(Nats_Rollup="ALL")[2]
    assert b"sub" == intake.examine(Nats_Rollup="sub")[2]
    assert 'rollup value invalid: "x"' in intake.refusal(Nats_Rollup="x")


def test_a_time_to_live_is_not_shorter_than_that_of_a_marker() -> None:
    intake = Intake(subject_delete_marker_ttl=10 * SECOND_NS)

    (_, header, _, _), _, _, ttl_ns = intake.examine(Nats_TTL="1s")

    assert (10 * SECOND_NS, b"10") == (ttl_ns, headers.get(header, b"Nats-TTL"))
    assert 60 * SECOND_NS == intake.examine(Nats_TTL="1m")[3]
    assert None is intake.examine(Nats_TTL="never")[3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_msg_size": 3}, "message size exceeds maximum allowed"),
        ({"discard": "new", "max_msgs": 2}, "maximum messages exceeded"),
        ({"discard": "new", "max_bytes": 50}, "maximum bytes exceeded"),
        (
            {
                "discard": "new",
                "max_msgs_per_subject": 1,
                "discard_new_per_subject": True,
            },
            "maximum messages per subject exceeded",
        ),
    ],
    ids=repr,
)
def test_what_has_no_room_is_refused(options: dict[str, Any], said: str) -> None:
    intake = Intake(**options)
    intake.store("s.a", b"abc")
    intake.store("s.b", b"abc")

    assert said == intake.refusal("s.a", b"a" * 10)


def test_a_full_subject_makes_room_for_its_own_next_message() -> None:
    intake = Intake(discard="new", max_msgs=2, max_msgs_per_subject=1)
    intake.store("s.a")
    intake.store("s.b")

    assert 3 == intake.store("s.a")
    assert "maximum messages exceeded" == intake.refusal("s.c")


FULL_SUBJECTS = {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True}


@pytest.mark.parametrize("rollup", ["sub", "all"])
def test_a_rollup_is_not_one_too_many_for_its_subject(rollup: str) -> None:
    intake = Intake(allow_rollup_hdrs=True, **FULL_SUBJECTS)
    intake.store("s.a")

    assert rollup.encode() == intake.examine("s.a", Nats_Rollup=rollup)[2]


def test_a_rollup_is_one_too_many_for_a_full_stream() -> None:
    intake = Intake(allow_rollup_hdrs=True, discard="new", max_msgs=1)
    intake.store("s.a")

    assert "maximum messages exceeded" == intake.refusal("s.a", Nats_Rollup="sub")


def test_a_sealed_stream_takes_nothing() -> None:
    intake = Intake()
    intake.target.config = StreamConfig(name="S", sealed=True)

    assert "invalid operation on sealed stream" == intake.refusal()


def staged(intake: Intake, *subjects: str, **pairs: str) -> Staged:
    """Return a batch that has one message for each subject."""
    batch = Staged()
    for subject in subjects:
        batch.add(intake.examine(subject, staged=batch, **pairs), 20)
    return batch


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"Nats_Expected_Last_Sequence": "0"}, "wrong last sequence: 1"),
        ({"Nats_Expected_Last_Sequence": "1"}, "wrong last sequence"),
        ({"Nats_Expected_Last_Subject_Sequence": "0"}, "wrong last sequence"),
        ({"Nats_Rollup": "sub"}, "batch rollup sub invalid"),
        ({"Nats_Rollup": "all"}, "batch rollup all invalid"),
    ],
    ids=repr,
)
def test_a_message_of_a_batch_sees_those_before_it(pairs: dict[str, str], said: str) -> None:
    intake = Intake(allow_rollup_hdrs=True, allow_atomic=True)

    assert said in intake.refusal("s.a", staged=staged(intake, "s.a"), **pairs)


def test_an_id_comes_once_in_a_batch() -> None:
    intake = Intake(allow_atomic=True)
    batch = staged(intake, "s.a", Nats_Msg_Id="1")

    assert "duplicate" in intake.refusal("s.b", staged=batch, Nats_Msg_Id="1")


def test_a_batch_has_room_as_a_whole_or_not() -> None:
    intake = Intake(discard="new", max_msgs=2)
    batch = staged(intake, "s.a", "s.b")

    assert (2, 40, {b"s.a", b"s.b"}) == (batch.messages, batch.size_bytes, {*batch.subjects})
    assert "maximum messages exceeded" == intake.refusal("s.c", staged=batch)


def test_messages_of_a_batch_fill_their_subject() -> None:
    intake = Intake(allow_rollup_hdrs=True, allow_atomic=True, **FULL_SUBJECTS)
    batch = staged(intake, "s.a")

    assert "maximum messages per subject exceeded" == intake.refusal("s.a", staged=batch)


def test_nothing_makes_room_for_a_batch() -> None:
    intake = Intake(allow_atomic=True, discard="new", max_msgs=1, max_msgs_per_subject=1)
    intake.store("s.a")

    assert "maximum messages exceeded" == intake.refusal("s.a", staged=Staged())
