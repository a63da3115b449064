"""Commands about servers against the real server and ours."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from tests.cli.command import Cli
from tests.conftest import Servers
from tests.servers import PENSTOCK, Program, ServerProcess

CONFIG = """
server_name: box
jetstream { store_dir: "js" }
accounts {
  SYS: { users: [ { user: s, password: x } ] }
  A: { jetstream: enabled, users: [ { user: a, password: x } ] }
}
system_account: SYS
no_auth_user: a
"""
SYSTEM = ("--user", "s", "--password", "x")


@pytest.fixture
def box(program: Program, servers: Servers, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Return the command on a server with a system account; its other user is the default."""
    cli = Cli(servers(program, CONFIG).url, capsys)
    yield cli
    for name in cli.json("stream", "ls", "--names"):
        cli("stream", "rm", name, "-f")


def test_servers_are_listed_and_pinged(box: Cli) -> None:
    (server,) = box.json("server", "ls", *SYSTEM)
    assert server["server_name"] == "box"
    assert box("server", "ls", *SYSTEM).out.splitlines()[1].startswith("box ")
    (answer,) = box.json("server", "ping", *SYSTEM)
    assert answer["name"] == "box"
    assert 0 < answer["rtt_s"] < 60
    assert box("server", "ping", *SYSTEM).out.splitlines()[1].endswith(" ms")


def test_only_the_system_account_may_ask(box: Cli) -> None:
    error = box.fails("server", "ls", "--timeout", "300ms")

    assert error.startswith("penstock: the servers answer only users of the system account\nhint: ")


@pytest.mark.parametrize(
    ("report", "row"),
    [
        ("connections", ("box", "penstock server report")),
        ("accounts", ("box", "A")),
        ("jetstream", ("box", "on")),
        ("health", ("box", "ok")),
    ],
)
def test_reports_are_tables_of_all_servers(report: str, row: tuple[str, ...], box: Cli) -> None:
    printed = box("server", "report", report, *SYSTEM).out
    assert any(all(each in line for each in row) for line in printed.splitlines()[1:])
    assert isinstance(box.json("server", "report", report, *SYSTEM), list)


def test_a_connection_is_asked_to_move_and_closed(box: Cli) -> None:
    with box.start("sub", "a") as process:
        assert process.stderr is not None
        process.stderr.readline()
        (data,) = box.json("server", "report", "connections", *SYSTEM)
        (cid,) = [
            str(each["cid"]) for each in data["connections"] if each["name"] == "penstock sub"
        ]

        assert "to move" in box("server", "ldm", cid, *SYSTEM).err
        assert "hint: --force" in box.fails("server", "kick", cid, *SYSTEM)
        assert box("server", "kick", cid, "box", "--force", *SYSTEM).err == (
            f"closed connection {cid}\n"
        )
        assert "connection lost" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    error = box.fails("server", "kick", "1", "nobox", "-f", *SYSTEM)
    assert error == "penstock: which server?\nhint: one of `box`\n"


def test_a_configuration_is_read_again(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(program, CONFIG) as server:
        two = "{ user: a, password: x }, { user: b, password: x }"
        server.write_config(CONFIG.replace("{ user: a, password: x }", two))
        cli = Cli(server.url, capsys)

        assert cli("server", "reload", *SYSTEM).err == "reloaded `box`\n"
        cli("rtt", "--user", "b", "--password", "x")


def test_an_account_is_described(box: Cli) -> None:
    box("stream", "create", "S", "--subjects", "s")

    found = box.json("account", "info")
    assert (found["user"]["user"], found["user"]["account"]) == ("a", "A")
    assert found["jetstream"]["streams"] == 1
    text = box("account", "info").out
    assert "  account      A\n" in text
    assert "  streams    1 of unlimited\n" in text
    assert "JetStream" not in box("account", "info", *SYSTEM).out


def test_checks_speak_to_nagios(box: Cli) -> None:
    box("stream", "create", "S", "--subjects", "s", "--max-msgs", "10", "--discard", "new")
    box("consumer", "create", "S", "C", "--max-ack-pending", "2")
    box.publish(*[("s", b"x")] * 9)

    def check(*words: str, code: int = 0) -> str:
        return box("server", "check", *words, code=code).out

    assert check("connection").startswith("OK connection | rtt_s=")
    assert check("connection", "--critical", "0s", code=2).startswith("CRITICAL connection: rtt_s")
    assert check("stream", "S", code=1).startswith("WARNING stream: full_percent is 90, and should")
    assert check("stream", "S", "--critical-percent", "90", code=2).startswith("CRITICAL")
    assert check("stream", "NO", code=2) == "CRITICAL stream: stream not found (404/10059)\n"
    assert check("consumer", "S", "C") == "OK consumer | pending=9 unacked=0\n"
    assert check("consumer", "S", "C", "--warn-lag", "9", code=1).startswith("WARNING consumer")
    box("consumer", "next", "S", "C", "--count", "2", "--no-ack")
    assert "2 messages are unacked" in check("consumer", "S", "C", code=2)
    assert check("jetstream").startswith("OK jetstream | streams=1 consumers=1 ")
    assert check("server", *SYSTEM) == "OK server | servers=1\n"
    assert check("server", "--timeout", "300ms", code=3).startswith("UNKNOWN server: ")
    document = json.loads(check("stream", "S", "--json", code=1))
    assert (document["status"], document["figures"]["messages"]) == ("WARNING", 9)
    assert "missing: NAME of the stream" in box.fails("server", "check", "stream", code=2)


def test_a_server_that_is_not_there_is_critical(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = Cli("nats://127.0.0.1:1", capsys)

    line = nowhere("server", "check", "connection", code=2).out
    assert line.startswith("CRITICAL connection: no server could be reached: 127.0.0.1:1: ")


def test_the_busiest_connections_are_watched(box: Cli) -> None:
    words = ("top", "--count", "2", "--interval", "10ms", *SYSTEM)

    assert box(*words).out.startswith("box  2.")
    looks = box.lines(*words)
    assert looks[1]["connections"][0]["name"] == "penstock top"


def test_the_way_to_the_server_is_measured(box: Cli) -> None:
    found = box.json("rtt", "--count", "3")
    assert found["pings"] == 3
    assert 0 < found["min_s"] <= found["median_s"] <= found["max_s"]
    for words in ((), ("--to", box.url)):
        measured = box.json("latency", "--count", "20", "--size", "1KB", *words)
        assert (measured["messages"], measured["bytes"]) == (20, 1024)
        assert 0 < measured["seconds"]["p50"] <= measured["seconds"]["p100"]
    assert "`--size` must be at least 8" in box.fails("latency", "--size", "1", code=2)


def test_events_are_told_as_they_happen(box: Cli) -> None:
    with box.start("events", "$JS.EVENT.ADVISORY.STREAM.>", "--count", "1") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("listening for events")
        box("stream", "create", "S", "--subjects", "s")
        out, _ = process.communicate(timeout=20)
    assert "stream action" in out
    assert "stream S  action create" in out
    with box.start("events", "--json", "--count", "1", *SYSTEM) as process:
        assert process.stderr is not None
        process.stderr.readline()
        box("rtt")
        out, _ = process.communicate(timeout=20)
    assert json.loads(out)["subject"].startswith("$SYS.")


def test_a_doctor_finds_nothing_where_all_is_well(box: Cli) -> None:
    findings = {each["topic"]: each for each in box.json("doctor")}

    assert {"versions", "connection", "clock", "streams"} <= set(findings)
    assert "bad" not in {each["level"] for each in findings.values()}
    assert "nothing is wrong with 0 streams" in box("doctor").out


def test_a_doctor_finds_what_loses_messages(box: Cli) -> None:
    box("stream", "create", "LOSES", "--subjects", "loses", "--max-msgs", "5")
    box("consumer", "create", "LOSES", "SLOW", "--max-ack-pending", "1")
    box("stream", "create", "FULL", "--subjects", "full", "--max-msgs", "1", "--discard", "new")
    box.publish(*[("loses", b"x")] * 9, ("full", b"x"))
    box("consumer", "next", "LOSES", "SLOW", "--no-ack")

    printed = box("doctor", code=1).out
    assert "bad      streams      `FULL` is full to 100%, and refuses messages then\n" in printed
    assert "`LOSES` > `SLOW` is 5 behind: the stream's limit has reached it" in printed
    assert "`LOSES` > `SLOW` gets no more: 1 message is unacked" in printed


def test_a_doctor_looks_at_a_configuration(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("doctor") / "server.conf"
    file.write_text(f'cluster {{ name: c }}\njetstream {{ store_dir: "{file.parent}/js" }}')
    nowhere = Cli("nats://127.0.0.1:1", capsys)

    found = json.loads(nowhere("doctor", "-c", str(file), "--json", code=1).out)
    by_topic = {each["topic"]: each for each in found}
    assert by_topic["configuration"]["level"] == "warning"
    assert "free at `" in by_topic["disk"]["text"]
    assert by_topic["connection"]["level"] == "bad"
    assert by_topic["connection"]["remedy"].startswith("start one with `penstock serve -js`")
    file.write_text("prot: 1")
    assert (
        "bad      configuration"
        in Cli(servers(PENSTOCK, CONFIG).url, capsys)("doctor", "-c", str(file), code=1).out
    )
