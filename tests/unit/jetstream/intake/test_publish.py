"""What is stored, what is refused, and who is told."""

from pathlib import Path

import pytest
from tests.unit.jetstream.world import SECOND_NS, World, error

ACK = "_INBOX.ack"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_publish_is_acked_with_its_sequence(world: World) -> None:
    world.create("S", subjects=["s.>"])

    assert {"stream": "S", "seq": 1} == world.ask("s.a", "one")
    assert {"stream": "S", "seq": 2} == world.ask("s.b", "two")
    assert [(1, "s.a", b"one"), (2, "s.b", b"two")] == world.messages("S")


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_an_ack_leaves_only_after_the_commit_that_covers_it(world: World, storage: str) -> None:
    world.create("S", storage=storage)

    world.publish("S", "1", reply=ACK)
    assert [] == world.received()
    commit = world.shared.begin_commit()
    assert commit is not None
    world.publish("S", "2", reply=ACK)
    commit.run()
    assert [] == world.received()
    commit.finish()
    assert [{"stream": "S", "seq": 1}] == world.received()[:1]
    world.settle()


def test_what_arrives_during_a_commit_waits_for_the_next(world: World) -> None:
    world.create("S", storage="file")
    world.publish("S", "1", reply=ACK)
    commit = world.shared.begin_commit()
    assert commit is not None

    world.publish("S", "2", reply=ACK)
    commit.run()
    commit.finish()

    assert [{"stream": "S", "seq": 1}] == world.received()
    world.settle()
    assert [{"stream": "S", "seq": 2}] == world.received()


def test_a_batch_is_acked_in_order_whatever_its_inboxes(world: World) -> None:
    world.create("S")
    replies = ["_INBOX.a.1", "_INBOX.a.2", "_INBOX.b.1", "_INBOX.c", "_INBOX.a.3"]

    world.send("".join(f"PUB S {reply} 1\r\nx\r\n" for reply in replies).encode())
    world.settle()

    assert [1, 2, 3, 4, 5] == [ack["seq"] for ack in world.received()]


def test_publishes_without_a_reply_are_stored_and_not_acked(world: World) -> None:
    world.create("S")

    world.send(b"PUB S 1\r\na\r\nPUB S 1\r\nb\r\nPUB S 1\r\nc\r\n")
    world.settle()

    assert [] == world.received()
    assert [b"a", b"b", b"c"] == [payload for *_, payload in world.messages("S")]


def test_a_run_with_one_reply_is_acked_message_by_message(world: World) -> None:
    world.create("S")

    world.send(b"PUB S _INBOX.r 1\r\na\r\n" * 3)
    world.settle()

    assert [1, 2, 3] == [ack["seq"] for ack in world.received()]


def test_a_stream_without_acks_says_nothing(world: World) -> None:
    world.create("S", no_ack=True)

    world.publish("S", "x", reply=ACK)
    world.publish("S", "x", reply=ACK, Nats_Expected_Stream="other")
    world.settle()

    assert [] == world.received()
    assert 1 == world.state("S")["messages"]


def test_headers_are_stored_as_they_were_sent(world: World) -> None:
    world.create("S")

    world.ask("S", "x", Nats_Msg_Id="1", My_Own="yes")

    stored = world.engine.streams["S"].store.get(1)
    assert stored is not None
    assert b"NATS/1.0\r\nNats-Msg-Id: 1\r\nMy-Own: yes\r\n\r\n" == stored[3]


def test_a_stream_name_may_have_any_character_that_formats_or_json_care_about(
    world: World,
) -> None:
    name = 'a%d"b'
    world.create(name, subjects=["odd"])

    assert {"stream": name, "seq": 1} == world.ask("odd", "x")
    assert (10060, "expected stream does not match") == error(
        world.ask("odd", "x", Nats_Expected_Stream="S")
    )


def test_a_repeated_message_id_gets_the_first_sequence(world: World) -> None:
    world.create("S")
    world.ask("S", "x", Nats_Msg_Id="1")
    world.ask("S", "y")

    assert {"stream": "S", "seq": 1, "duplicate": True} == world.ask("S", "x", Nats_Msg_Id="1")
    assert 2 == world.state("S")["messages"]


def test_a_message_id_is_forgotten_after_the_window(world: World) -> None:
    world.create("S", duplicate_window=SECOND_NS)
    world.ask("S", "x", Nats_Msg_Id="1")

    world.advance(1.1)

    assert {"stream": "S", "seq": 2} == world.ask("S", "x", Nats_Msg_Id="1")


def test_message_ids_survive_a_restart(world: World) -> None:
    world.create("S", storage="file")
    world.ask("S", "x", Nats_Msg_Id="1")

    world.restart()

    assert {"stream": "S", "seq": 1, "duplicate": True} == world.ask("S", "x", Nats_Msg_Id="1")


def test_a_duplicate_is_not_acked_before_its_original(world: World) -> None:
    world.create("S", storage="file")
    world.publish("S", "x", reply=ACK, Nats_Msg_Id="1")
    commit = world.shared.begin_commit()
    assert commit is not None

    world.publish("S", "x", reply=ACK, Nats_Msg_Id="1")

    assert [] == world.received()
    commit.run()
    commit.finish()
    world.settle()
    assert [None, True] == [ack.get("duplicate") for ack in world.received()]


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("Nats-Expected-Stream", "T", (10060, "expected stream does not match")),
        ("Nats-Expected-Last-Sequence", "1", (10071, "wrong last sequence: 2")),
        ("Nats-Expected-Last-Subject-Sequence", "1", (10071, "wrong last sequence: 2")),
        ("Nats-Expected-Last-Msg-Id", "a", (10070, "wrong last msg ID: b")),
        ("Nats-Rollup", "sub", (10111, "rollup not permitted")),
        ("Nats-TTL", "1s", (10166, "per-message TTL is disabled")),
        ("Nats-Incr", "1", (10168, "message counters is disabled")),
        ("Nats-Batch-Id", "1", (10174, "atomic publish is disabled")),
        ("Nats-Schedule", "@every 1s", (10188, "message schedules is disabled")),
        (
            "Nats-Expected-Last-Subject-Sequence-Subject",
            "S",
            (10193, "missing sequence for expected last sequence per subject"),
        ),
    ],
)
def test_a_message_with_a_header_that_does_not_hold_is_refused(
    world: World, header: str, value: str, expected: tuple[int, str]
) -> None:
    world.create("S")
    world.ask("S", "1", Nats_Msg_Id="a")
    world.ask("S", "2", Nats_Msg_Id="b")

    answer = world.ask("S", "3", **{header: value})

    assert expected == error(answer)
    assert ("S", 0) == (answer["stream"], answer["seq"])
    assert 2 == world.state("S")["messages"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Nats-Expected-Stream", "S"),
        ("Nats-Expected-Last-Sequence", "1"),
        ("Nats-Expected-Last-Subject-Sequence", "1"),
        ("Nats-Expected-Last-Msg-Id", "a"),
    ],
)
def test_a_message_with_a_header_that_holds_is_stored(
    world: World, header: str, value: str
) -> None:
    world.create("S")
    world.ask("S", "1", Nats_Msg_Id="a")

    assert {"stream": "S", "seq": 2} == world.ask("S", "2", **{header: value})


def test_an_expected_sequence_may_be_that_of_another_subject(world: World) -> None:
    world.create("S", subjects=["s.>"])
    world.ask("s.a", "1")
    expect = {
        "Nats_Expected_Last_Subject_Sequence": "1",
        "Nats_Expected_Last_Subject_Sequence_Subject": "s.*",
    }

    assert {"stream": "S", "seq": 2} == world.ask("s.b", "2", **expect)
    assert (10071, "wrong last sequence: 2") == error(world.ask("s.c", "3", **expect))


def test_an_expected_sequence_of_0_means_there_is_none_yet(world: World) -> None:
    world.create("S", subjects=["s.>"])
    none = {"Nats_Expected_Last_Subject_Sequence": "0"}

    assert {"stream": "S", "seq": 1} == world.ask("s.a", "1", **none)
    assert (10071, "wrong last sequence: 1") == error(world.ask("s.a", "2", **none))


def test_a_rollup_replaces_its_subject(world: World) -> None:
    world.create("S", subjects=["s.>"], allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b", "s.a"):
        world.ask(subject, "old")

    world.ask("s.a", "new", Nats_Rollup="sub")

    assert [(2, "s.b", b"old"), (4, "s.a", b"new")] == world.messages("S")


@pytest.mark.parametrize(
    ("pattern", "left"),
    [("s.a.*", [(1, "s.a"), (5, "s.b.1")]), ("s.>", []), ("s.*.1", [(1, "s.a"), (4, "s.a.2")])],
)
def test_a_rollup_of_a_pattern_replaces_every_match(
    pattern: str, left: list[tuple[int, str]], world: World
) -> None:
    world.create("S", subjects=["s.>"], allow_rollup_hdrs=True)
    for subject in ("s.a", "s.a.1", "s.a.1", "s.a.2", "s.b.1"):
        world.ask(subject, "old")
    world.ask(pattern, "marker", Nats_Rollup="sub")

    world.ask(pattern, "new", Nats_Rollup="sub")

    assert [*left, (7, pattern)] == [each[:2] for each in world.messages("S")]


def test_a_rollup_of_all_replaces_everything(world: World) -> None:
    world.create("S", subjects=["s.>"], allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b"):
        world.ask(subject, "old")

    world.ask("s.c", "new", Nats_Rollup="all")

    assert [(3, "s.c", b"new")] == world.messages("S")


def test_a_rollup_of_anything_else_is_refused(world: World) -> None:
    world.create("S", allow_rollup_hdrs=True)

    assert (10111, 'rollup value invalid: "some"') == error(world.ask("S", "x", Nats_Rollup="some"))


def test_a_message_larger_than_the_stream_allows_is_refused(world: World) -> None:
    world.create("S", max_msg_size=40)

    assert 1 == world.ask("S", "x" * 40)["seq"]
    assert (10054, "message size exceeds maximum allowed") == error(world.ask("S", "x" * 41))
    assert 10054 == error(world.ask("S", "x" * 20, A="b" * 20))[0]


def test_headers_of_more_than_64_kb_are_refused(world: World) -> None:
    world.create("S")

    answer = world.ask("S", "x", A="b" * 65536)

    assert (10097, "header size exceeds maximum allowed of 64k") == error(answer)


def test_a_full_stream_that_discards_new_refuses(world: World) -> None:
    world.create("S", max_msgs=2, discard="new")
    world.ask("S", "1")
    world.ask("S", "2")

    assert (10077, "maximum messages exceeded") == error(world.ask("S", "3"))


def test_a_full_subject_makes_room_for_itself_also_where_new_ones_are_refused(
    world: World,
) -> None:
    world.create("S", subjects=["s.>"], max_msgs=2, max_msgs_per_subject=1, discard="new")
    world.ask("s.a", "1")
    world.ask("s.b", "1")

    assert 3 == world.ask("s.a", "2")["seq"]
    assert (10077, "maximum messages exceeded") == error(world.ask("s.c", "1"))


def test_a_full_subject_refuses_if_it_is_told_to(world: World) -> None:
    world.create(
        "S",
        subjects=["s.>"],
        max_msgs_per_subject=1,
        discard="new",
        discard_new_per_subject=True,
    )
    world.ask("s.a", "1")

    assert (10077, "maximum messages per subject exceeded") == error(world.ask("s.a", "2"))
    assert 2 == world.ask("s.b", "1")["seq"]


def test_a_stream_full_of_bytes_refuses(world: World) -> None:
    world.create("S", max_bytes=200, discard="new")
    world.ask("S", "x" * 100)

    assert (10077, "maximum bytes exceeded") == error(world.ask("S", "x" * 100))


@pytest.mark.parametrize(("storage", "own_bytes"), [("file", 30), ("memory", 16)])
def test_a_stream_that_refuses_never_has_more_than_max_bytes(
    world: World, storage: str, own_bytes: int
) -> None:
    """What nats-server stores and refuses: the size of a message is that of its record."""
    world.create("S", max_bytes=300, discard="new", storage=storage)
    room = 300 - 2 * (own_bytes + 1)

    assert 1 == world.ask("S", "x" * 100)["seq"]
    refused = world.ask("S", "x" * (room - 99))
    assert (10077, "maximum bytes exceeded") == error(refused)
    assert 2 == world.ask("S", "x" * (room - 100))["seq"]
    assert 300 == world.call("STREAM.INFO.S")["state"]["bytes"]
    assert (10077, "maximum bytes exceeded") == error(world.ask("S", ""))


def test_a_message_that_is_replaced_makes_room_for_one_of_its_size(world: World) -> None:
    world.create("S", subjects=["s.*"], max_bytes=600, max_msgs_per_subject=1, discard="new")
    world.ask("s.a", "x" * 200)
    world.ask("s.b", "x" * 200)

    assert (10077, "maximum bytes exceeded") == error(world.ask("s.a", "x" * 201))
    assert 3 == world.ask("s.a", "x" * 200)["seq"]
    assert 4 == world.ask("s.b", "x" * 20)["seq"]
    assert 5 == world.ask("s.b", "x" * 30)["seq"]


def test_a_batch_that_has_no_room_as_a_whole_is_refused(world: World) -> None:
    world.create("S", subjects=["s"], max_bytes=250, discard="new", allow_atomic=True)
    first = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "1"}
    last = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}

    world.publish("s", "x" * 50, **first)

    assert (10077, "maximum bytes exceeded") == error(world.ask("s", "x" * 50, **last))
    assert 0 == world.call("STREAM.INFO.S")["state"]["messages"]


def test_a_sealed_stream_takes_nothing(world: World) -> None:
    world.create("S")
    world.call("STREAM.UPDATE.S", name="S", storage="memory", sealed=True)

    assert (10109, "invalid operation on sealed stream") == error(world.ask("S", "x"))


def test_an_interest_stream_gives_sequences_to_what_nobody_wants_and_keeps_nothing(
    world: World,
) -> None:
    world.create("S", retention="interest")

    assert 1 == world.ask("S", "x")["seq"]
    assert 2 == world.ask("S", "x")["seq"]
    assert 0 == world.state("S")["messages"]


def test_an_ack_names_the_domain(tmp_path: Path) -> None:
    world = World(tmp_path, domain="hub")
    world.create("S")

    assert {"stream": "S", "domain": "hub", "seq": 1} == world.ask("S", "x")


def test_a_server_without_room_refuses(tmp_path: Path) -> None:
    world = World(tmp_path, max_mem=1000)
    world.create("S")
    world.ask("S", "x" * 800)

    assert (10023, "insufficient resources") == error(world.ask("S", "x" * 800))


def test_a_clock_that_is_set_back_does_not_unsort_the_stream(world: World) -> None:
    world.create("S")
    world.ask("S", "1")
    world.now_ns -= SECOND_NS
    world.ask("S", "2")

    store = world.engine.streams["S"].store
    times = [message[1] for sequence in (1, 2) if (message := store.get(sequence))]
    assert sorted(times) == times
    assert 2 == len(times)


def with_id(subject: str, message_id: str, payload: str) -> bytes:
    """Return the bytes of a publish with a message id and a reply of its own."""
    header = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n"
    sizes = f"{len(header)} {len(header) + len(payload)}"
    return f"HPUB {subject} _INBOX.{payload} {sizes}\r\n{header}{payload}\r\n".encode()


def test_message_ids_of_one_batch_are_remembered_under_their_own_sequences(world: World) -> None:
    world.create("S", subjects=["s.>"])

    world.send(with_id("s.a", "1", "a") + b"PUB s.b 1\r\nb\r\n" + with_id("s.c", "2", "c"))
    world.settle()

    assert [1, 3] == [ack["seq"] for ack in world.received()]
    assert 3 == world.ask("s.x", "x", Nats_Msg_Id="2")["seq"]
    assert 1 == world.ask("s.x", "x", Nats_Msg_Id="1")["seq"]
    assert [b"a", b"b", b"c"] == [payload for *_, payload in world.messages("S")]


def test_a_message_id_that_comes_twice_in_one_batch_is_stored_once(world: World) -> None:
    world.create("S", subjects=["s.>"])

    world.send(with_id("s.a", "1", "a") + with_id("s.b", "1", "b") + with_id("s.c", "2", "c"))
    world.settle()

    acks = [(ack["seq"], ack.get("duplicate", False)) for ack in world.received()]
    assert [(1, False), (1, True), (2, False)] == acks
    assert [b"a", b"c"] == [payload for *_, payload in world.messages("S")]


def test_the_last_message_id_is_that_of_the_last_message_of_a_batch(world: World) -> None:
    world.create("S", subjects=["s.>"])

    world.send(with_id("s.a", "1", "a") + with_id("s.b", "2", "b"))
    world.settle()

    assert [1, 2] == [ack["seq"] for ack in world.received()]
    assert "error" in world.ask("s.x", "x", Nats_Expected_Last_Msg_Id="1")
    assert 3 == world.ask("s.x", "x", Nats_Expected_Last_Msg_Id="2")["seq"]
