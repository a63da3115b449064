"""`penstock consumer` against the real server and ours."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cli.command import Cli


@pytest.fixture
def stream(cli: Cli) -> Cli:
    """Return the command on a server that has a stream with three messages."""
    cli("stream", "create", "ORDERS", "--subjects", "orders.>", "--storage", "memory")
    cli.publish(("orders.a", b"1"), ("orders.b", b"2"), ("orders.a", b"3"))
    return cli


def test_a_consumer_that_is_created_is_listed(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "worker", "--filter", "orders.a")

    header, row = stream("consumer", "ls", "ORDERS").out.splitlines()
    assert header.split()[:5] == ["NAME", "MODE", "FILTER", "ACK", "PENDING"]
    assert row.split()[:5] == ["worker", "pull", "orders.a", "explicit", "2"]
    assert stream("consumer", "list", "ORDERS", "--names").out == "worker\n"
    assert [each["name"] for each in stream.json("consumer", "ls", "ORDERS")] == ["worker"]


def test_where_there_are_no_consumers_only_the_person_hears_of_it(stream: Cli) -> None:
    result = stream("consumer", "ls", "ORDERS")

    assert result.out == ""
    assert result.err == "no consumers\nhint: penstock consumer create ORDERS NAME\n"


def test_a_pull_consumer_takes_every_kind_of_setting(stream: Cli) -> None:
    created = stream.json(
        *("consumer", "add", "ORDERS", "C", "--filter", "orders.a,orders.b", "--max-deliver", "5"),
        *("--backoff", "1s,5s", "--backoff", "1m", "--max-ack-pending", "10", "--headers-only"),
        *("--max-pull-batch", "7", "--max-pull-expires", "30s", "--inactive-threshold", "1h"),
        *("--deliver", "2", "--memory", "--metadata", "team=a", "--description", "all of them"),
    )

    expected = {
        "durable_name": "C",
        "filter_subjects": ["orders.a", "orders.b"],
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 2,
        "ack_policy": "explicit",
        "max_deliver": 5,
        "backoff": [1_000_000_000, 5_000_000_000, 60_000_000_000],
        "ack_wait": 1_000_000_000,
        "max_ack_pending": 10,
        "headers_only": True,
        "max_batch": 7,
        "max_expires": 30_000_000_000,
        "inactive_threshold": 3_600_000_000_000,
        "mem_storage": True,
        "description": "all of them",
    }
    config = created["config"]
    assert {name: config.get(name) for name in expected} == expected
    text = stream("consumer", "info", "ORDERS", "C").out
    assert text.startswith("Consumer ORDERS > C, durable pull, created 20")
    assert "  backoff             1s, 5s, 1m\n" in text


def test_a_push_consumer_delivers_to_its_subject(stream: Cli) -> None:
    created = stream.json(
        *("consumer", "create", "ORDERS", "P", "--push", "deliver.here", "--queue", "q"),
        *("--ack", "none", "--heartbeat", "5s", "--flow-control", "--deliver", "last-per-subject"),
        *("--filter", "orders.>"),
    )

    config = created["config"]
    assert config["deliver_subject"] == "deliver.here"
    assert config["deliver_group"] == "q"
    assert config["deliver_policy"] == "last_per_subject"
    assert "subscribed   no" in stream("consumer", "info", "ORDERS", "P").out
    assert stream.fails("consumer", "next", "ORDERS", "P") == (
        "penstock: `P` is a push consumer\nhint: penstock sub deliver.here\n"
    )


def test_without_a_name_or_if_told_so_a_consumer_is_ephemeral(stream: Cli) -> None:
    unnamed = stream.json("consumer", "create", "ORDERS")
    named = stream.json("consumer", "create", "ORDERS", "E", "--ephemeral")

    assert "durable_name" not in unnamed["config"]
    assert "durable_name" not in named["config"]
    assert named["name"] == "E"


def test_what_info_prints_creates_and_changes_others(stream: Cli, tmp_path: Path) -> None:
    stream("consumer", "create", "ORDERS", "A", "--filter", "orders.a", "--ack-wait", "1m")
    stream("consumer", "create", "ORDERS", "B", "--filter", "orders.b")
    file = tmp_path / "consumer.json"
    file.write_text(stream("consumer", "info", "ORDERS", "A", "--json").out)

    copy = stream.json("consumer", "create", "ORDERS", "C", "--config", str(file))
    assert (copy["name"], copy["config"]["durable_name"]) == ("C", "C")
    assert copy["config"]["ack_wait"] == 60_000_000_000
    passing = ("consumer", "create", "ORDERS", "D", "--ephemeral", "--config", str(file))
    assert "durable_name" not in stream.json(*passing)["config"]
    changed = stream.json("consumer", "edit", "ORDERS", "B", "--config", str(file), "--force")
    assert (changed["name"], changed["config"]["filter_subject"]) == ("B", "orders.a")
    assert stream.json("consumer", "ls", "ORDERS", "--names") == ["A", "B", "C", "D"]


def test_names_that_are_not_there_bring_the_nearest_one(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "worker")

    for verb in ("info", "edit", "rm", "next", "watch"):
        error = stream.fails("consumer", verb, "ORDERS", "wroker")
        assert error == "penstock: no consumer `wroker`\nhint: did you mean `worker`?\n"
    error = stream.fails("consumer", "info", "ORDER", "worker")
    assert error == "penstock: no stream `ORDER`\nhint: did you mean `ORDERS`?\n"


def test_the_same_again_is_no_error_and_another_is_one(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "worker")
    stream("consumer", "create", "ORDERS", "worker")

    error = stream.fails("consumer", "create", "ORDERS", "worker", "--filter", "orders.a")
    assert "consumer already exists" in error
    assert "hint: penstock consumer edit changes an existing consumer" in error


def test_an_edit_shows_what_it_changes(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "worker", "--filter", "orders.a")

    words = ("consumer", "edit", "ORDERS", "worker", "--filter", "orders.b", "--ack-wait", "1m")
    assert "cannot ask without a terminal" in stream(*words, code=1).err
    result = stream(*words, "--force")
    assert "  filter_subject  orders.a → orders.b\n" in result.err
    assert "  ack_wait        30s → 1m\n" in result.err
    config = stream.json("consumer", "info", "ORDERS", "worker")["config"]
    assert (config["filter_subject"], config["ack_wait"]) == ("orders.b", 60_000_000_000)
    assert "needs no change" in stream(*words).err


def test_an_edit_the_server_refuses_is_an_error(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "worker")

    words = ("consumer", "edit", "ORDERS", "worker", "--ack", "none", "--force")
    assert "ack policy can not be updated" in stream(*words, code=1).err


def test_messages_are_pulled_printed_and_acked(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C")

    assert stream("consumer", "next", "ORDERS", "C").out == "[1] orders.a\n1\n"
    assert stream("consumer", "next", "ORDERS", "C", "--raw").out == "2\n"
    (message,) = stream.lines("consumer", "next", "ORDERS", "C", "--count", "5", "--wait", "100ms")
    assert message.pop("time").endswith("Z")
    assert message == {
        "stream": "ORDERS",
        "consumer": "C",
        "subject": "orders.a",
        "sequence": 3,
        "deliveries": 1,
        "pending": 0,
        "headers": {},
        "payload": "3",
    }
    info = stream.json("consumer", "info", "ORDERS", "C")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    error = stream.fails("consumer", "next", "ORDERS", "C", "--wait", "50ms")
    assert error == "penstock: no message for `C` within 50ms\n"


def test_what_is_not_acked_comes_again(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C", "--ack-wait", "50ms", "--max-ack-pending", "1")

    assert stream("consumer", "next", "ORDERS", "C", "--no-ack").out == "[1] orders.a\n1\n"
    again = stream("consumer", "next", "ORDERS", "C").out
    assert again == "[1] orders.a  delivery 2\n1\n"


def test_a_consumer_without_acks_can_be_pulled(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C", "--ack", "none")

    assert stream("consumer", "next", "ORDERS", "C", "--raw", "--count", "3").out == "1\n2\n3\n"


def test_a_consumer_is_removed(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C")

    error = stream.fails("consumer", "rm", "ORDERS", "C")
    assert "Delete consumer `C` with 3 messages pending?" in error
    assert stream.json("consumer", "rm", "ORDERS", "C", "--force") == {"deleted": "C"}
    assert stream.json("consumer", "ls", "ORDERS") == []


def test_a_consumer_is_paused_and_resumed(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C")

    assert stream("consumer", "pause", "ORDERS", "C", "1h").err.startswith(
        "paused consumer `C` until 20"
    )
    assert stream.json("consumer", "info", "ORDERS", "C")["paused"]
    assert "paused" in stream("consumer", "report", "ORDERS").out
    assert stream("consumer", "resume", "ORDERS", "C").err == "resumed consumer `C`\n"
    assert not stream.json("consumer", "info", "ORDERS", "C").get("paused")
    error = stream.fails("consumer", "pause", "ORDERS", "C", "soon", code=2)
    assert "`soon` is not a time\nhint: 10m, or " in error


def test_a_report_has_the_consumers_that_are_behind_first(stream: Cli) -> None:
    stream("stream", "create", "OTHER", "--subjects", "other")
    stream("consumer", "create", "OTHER", "IDLE", "--push", "nobody")
    stream("consumer", "create", "ORDERS", "SLOW", "--max-ack-pending", "1")
    stream("consumer", "next", "ORDERS", "SLOW", "--no-ack")

    rows = [line.split() for line in stream("consumer", "report").out.splitlines()[1:]]
    assert rows[0][:7] == ["ORDERS", "SLOW", "pull", "2", "1", "0", "0"]
    assert rows[0][-4:] == ["unacked", "at", "its", "bound"]
    assert rows[1][:3] == ["OTHER", "IDLE", "push"]
    assert rows[1][-2:] == ["nobody", "subscribes"]
    assert [info["name"] for info in stream.json("consumer", "report", "OTHER")] == ["IDLE"]


def test_a_watch_has_a_line_for_each_look(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C")
    words = ("consumer", "watch", "ORDERS", "C", "--count", "2", "--interval", "10ms")

    lines = stream(*words).out.splitlines()
    assert len(lines) == 2
    assert "ORDERS > C  pending 3  unacked 0  redelivered 0" in lines[0]
    looks = stream.lines(*words)
    assert [(look["pending"], look["ack_pending"]) for look in looks] == [(3, 0), (3, 0)]


def test_ctrl_c_ends_a_watch_cleanly(stream: Cli) -> None:
    stream("consumer", "create", "ORDERS", "C")

    with stream.start("consumer", "watch", "ORDERS", "C", "--interval", "10ms") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--deliver", "sometime"), "`--deliver`: `sometime` is not a start position"),
        (("--ack", "explicitly"), "`--ack`: `explicitly` is unknown\nhint: did you mean"),
        (("--backoff", "1s,soon"), "`--backoff`: `soon` is not a duration"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    words: tuple[str, ...], complaint: str, stream: Cli
) -> None:
    assert complaint in stream.fails("consumer", "create", "ORDERS", "C", *words, code=2)
