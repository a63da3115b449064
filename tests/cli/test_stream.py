"""`penstock stream` against the real server and ours."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from tests.aio import asynchronous
from tests.cli.command import CONFIG, PENSTOCK, Cli
from tests.conftest import Servers
from tests.servers import Program

from penstock.bus.testing import FaultProxy


def create(cli: Cli, *words: str, name: str = "ORDERS") -> None:
    cli("stream", "create", name, "--subjects", "orders.>", "--storage", "memory", *words)


def test_a_stream_that_is_created_is_listed(cli: Cli) -> None:
    create(cli)
    cli.publish(("orders.new", b"1"))

    header, row = cli("stream", "ls").out.splitlines()
    assert header.split() == [
        *("NAME", "SUBJECTS", "STORAGE", "MESSAGES", "SIZE", "CONSUMERS", "LAST")
    ]
    assert row.split()[:4] == ["ORDERS", "orders.>", "memory", "1"]
    assert cli("stream", "list", "--names").out == "ORDERS\n"
    assert [info["config"]["name"] for info in cli.json("stream", "ls")] == ["ORDERS"]


def test_streams_are_listed_by_subject(cli: Cli) -> None:
    create(cli)
    cli("stream", "add", "OTHER", "--subjects", "a", "--subjects", "b,c")

    assert cli.json("stream", "ls", "--names", "--subject", "b") == ["OTHER"]


def test_where_there_are_no_streams_only_the_person_hears_of_it(cli: Cli) -> None:
    result = cli("stream", "ls")

    assert result.out == ""
    assert result.err == "no streams\nhint: penstock stream create NAME --subjects SUBJECT\n"
    assert cli.json("stream", "ls") == []


def test_limits_and_rules_are_written_for_people(cli: Cli) -> None:
    created = cli.json(
        *("stream", "create", "LIMITS", "--subjects", "limits.>", "--max-msgs", "10k"),
        *("--max-bytes", "64MB", "--max-age", "1h30m", "--max-msgs-per-subject", "-1"),
        *("--max-msg-size", "1KiB", "--discard", "new", "--dupe-window", "30s"),
        *("--retention", "interest", "--allow-direct", "--deny-delete", "--no-deny-purge"),
        *("--metadata", "team=a", "--metadata", "tier=1", "--consumer-limits", "max_ack_pending=5"),
    )

    config = created["config"]
    expected = {
        "max_msgs": 10_000,
        "max_bytes": 64 * 1024 * 1024,
        "max_age": 5_400_000_000_000,
        "max_msgs_per_subject": -1,
        "max_msg_size": 1024,
        "discard": "new",
        "duplicate_window": 30_000_000_000,
        "retention": "interest",
        "allow_direct": True,
        "deny_delete": True,
        "deny_purge": False,
        "consumer_limits": {"max_ack_pending": 5},
    }
    assert {name: config[name] for name in expected} == expected
    assert {"team": "a", "tier": "1"}.items() <= config["metadata"].items()
    text = cli("stream", "info", "LIMITS").out
    assert "  max_bytes             64 MiB\n" in text
    assert "  max_age               1h30m\n" in text
    assert "_nats" not in text


def test_the_same_again_is_no_error_and_another_is_one(cli: Cli) -> None:
    create(cli)
    create(cli)

    error = cli.fails("stream", "create", "ORDERS", "--subjects", "other")
    assert error == (
        "penstock: stream name already in use with a different configuration (400/10058)\n"
        "hint: penstock stream edit changes an existing stream\n"
    )


def test_who_has_the_subjects_already_is_named(cli: Cli) -> None:
    create(cli)

    error = cli.fails("stream", "create", "OTHER", "--subjects", "orders.new")
    assert "hint: `orders.new` is stored by stream `ORDERS`\n" in error


def test_what_info_prints_creates_another_stream(cli: Cli, tmp_path: Path) -> None:
    create(cli, "--max-age", "1h", "--metadata", "a=b")
    file = tmp_path / "stream.json"
    file.write_text(cli("stream", "info", "ORDERS", "--json").out)

    copy = cli.json("stream", "create", "COPY", "--config", str(file), "--subjects", "copy.>")
    assert copy["config"]["name"] == "COPY"
    assert copy["config"]["max_age"] == 3_600_000_000_000
    assert copy["config"]["metadata"]["a"] == "b"


def test_a_file_may_name_the_stream(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "stream.json"
    file.write_text('{"name": "FILE", "subjects": ["file.>"]}')

    assert cli.json("stream", "create", "--config", str(file))["config"]["name"] == "FILE"
    assert "missing: NAME" in cli.fails("stream", "create", code=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "is not JSON"), ("[]", "must contain a JSON object"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_refused(
    content: str | None, reason: str, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "stream.json"
    if content is not None:
        file.write_text(content)

    assert reason in cli.fails("stream", "create", "X", "--config", str(file), code=2)


@pytest.mark.parametrize("verb", ["info", "edit", "purge", "rm", "watch"])
def test_a_name_that_is_not_there_brings_the_nearest_one(verb: str, cli: Cli) -> None:
    create(cli)

    error = cli.fails("stream", verb, "ordrs")
    assert error == "penstock: no stream `ordrs`\nhint: did you mean `ORDERS`?\n"


def test_info_counts_by_subject(cli: Cli) -> None:
    create(cli)
    cli.publish(("orders.a", b"1"), ("orders.b", b"2"), ("orders.b", b"3"))

    rows = cli("stream", "info", "ORDERS", "--subjects", ">").out.splitlines()[-2:]
    assert [row.split() for row in rows] == [["orders.a", "1"], ["orders.b", "2"]]


def test_an_edit_shows_what_it_changes(cli: Cli) -> None:
    create(cli)

    words = ("stream", "edit", "ORDERS", "--max-age", "24h", "--subjects", "orders.>,more")
    result = cli(*words, "--force")
    assert result.out == ""
    assert "  max_age   0s → 24h\n" in result.err
    assert "  subjects  orders.> → orders.>, more\n" in result.err
    config = cli.json("stream", "info", "ORDERS")["config"]
    assert config["max_age"] == 86_400_000_000_000
    assert config["storage"] == "memory"
    assert "needs no change" in cli(*words).err


def test_an_edit_with_the_file_of_another_stream_keeps_the_name(cli: Cli, tmp_path: Path) -> None:
    create(cli)
    file = tmp_path / "stream.json"
    file.write_text('{"name": "OTHER", "description": "from a file"}')

    result = cli("stream", "edit", "ORDERS", "--config", str(file), "--force")
    assert result.err == "  description  - → from a file\nchanged stream `ORDERS`\n"


def test_an_edit_the_server_refuses_is_an_error(cli: Cli) -> None:
    create(cli)

    error = cli("stream", "edit", "ORDERS", "--storage", "file", "--force", code=1).err
    assert "can not change storage type" in error


@pytest.mark.parametrize(
    "words",
    [("rm", "ORDERS"), ("purge", "ORDERS"), ("msg-rm", "ORDERS", "1")],
    ids=lambda words: words[0],
)
def test_nothing_is_deleted_where_nobody_can_be_asked(words: tuple[str, ...], cli: Cli) -> None:
    create(cli)
    cli.publish(("orders.a", b"1"))

    error = cli.fails("stream", *words)
    assert error.startswith("penstock: cannot ask without a terminal: Delete ")
    assert error.endswith("\nhint: --force does not ask\n")
    assert cli.json("stream", "info", "ORDERS")["state"]["messages"] == 1


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, []), ("n", 1, ["ORDERS"])])
def test_on_a_terminal_one_is_asked(answer: str, code: int, left: list[str], cli: Cli) -> None:
    create(cli)
    terminal, stdin = pty.openpty()

    with cli.start("stream", "rm", "ORDERS", stdin=stdin) as process:
        os.write(terminal, f"{answer}\n".encode())
        _, error = process.communicate(timeout=20)
    os.close(terminal)
    os.close(stdin)

    assert error.startswith("Delete stream `ORDERS` with 0 messages and 0 consumers? [y/N] ")
    assert process.returncode == code
    assert cli.json("stream", "ls", "--names") == left


def test_a_purge_can_leave_some(cli: Cli) -> None:
    create(cli)
    cli.publish(*[(f"orders.{n % 2}", b"%d" % n) for n in range(10)])

    def purge(*words: str) -> int:
        purged = cli.json("stream", "purge", "ORDERS", "--force", *words)["purged"]
        assert isinstance(purged, int)
        return purged

    assert purge("--seq", "3") == 2
    assert purge("--subject", "orders.0", "--keep", "1") == 3
    assert purge("--keep", "2") == 3
    assert cli("stream", "purge", "ORDERS", "-f").err == "purged 2 messages\n"
    both = ("stream", "purge", "ORDERS", "-f", "--keep", "1", "--seq", "2")
    assert "only one of `--keep` and `--seq`" in cli.fails(*both, code=2)


def test_a_stream_is_removed(cli: Cli) -> None:
    create(cli)

    assert cli.json("stream", "rm", "ORDERS", "--force") == {"deleted": "ORDERS"}
    assert cli.json("stream", "ls", "--names") == []


def test_a_message_is_printed(cli: Cli) -> None:
    create(cli)
    cli("pub", "orders.a", "one", "-H", "Color: red")
    cli.publish(("orders.b", b"two\n"), ("orders.a", b"\xff\x00"))

    title, header, payload = cli("stream", "get", "ORDERS", "1").out.splitlines()
    assert title.startswith("[1] orders.a  20")
    assert (header, payload) == ("Color: red", "one")
    assert cli("stream", "get", "ORDERS", "--last-for", "orders.b", "--raw").out == "two\n"
    assert cli.json("stream", "get", "ORDERS", "2", "--next-for", "orders.a")["sequence"] == 3
    message = cli.json("stream", "get", "ORDERS", "1")
    assert message.pop("time").endswith("Z")
    assert message == {
        "stream": "ORDERS",
        "subject": "orders.a",
        "sequence": 1,
        "headers": {"Color": ["red"]},
        "payload": "one",
    }
    assert cli.json("stream", "get", "ORDERS", "3")["payload_base64"] == "/wA="
    assert "2 B of binary data" in cli("stream", "get", "ORDERS", "3").out


def test_a_message_that_is_not_there_is_an_error(cli: Cli) -> None:
    create(cli)

    error = cli.fails("stream", "get", "ORDERS", "7")
    assert error == (
        "penstock: no such message in stream `ORDERS`\nhint: penstock stream info ORDERS\n"
    )
    assert "which message?" in cli.fails("stream", "get", "ORDERS", code=2)
    assert "`0` is not positive" in cli.fails("stream", "get", "ORDERS", "0", code=2)
    both = ("stream", "get", "ORDERS", "1", "--last-for", "orders.a")
    assert "`--last-for` cannot be used with a sequence" in cli.fails(*both, code=2)


def test_a_message_is_deleted(cli: Cli) -> None:
    create(cli)
    cli.publish(("orders.a", b"1"), ("orders.a", b"2"), ("orders.a", b"3"))

    assert cli.json("stream", "msg-rm", "ORDERS", "2", "--force") == {"deleted": 2}
    cli("stream", "rmm", "ORDERS", "1", "--force", "--erase")
    cli.fails("stream", "get", "ORDERS", "2")
    assert cli.json("stream", "info", "ORDERS")["state"]["messages"] == 1


def test_a_watch_has_a_line_for_each_look(cli: Cli) -> None:
    create(cli)
    cli("consumer", "create", "ORDERS", "C")
    cli.publish(("orders.a", b"1"), ("orders.a", b"2"))
    words = ("stream", "watch", "ORDERS", "--count", "2", "--interval", "10ms")

    lines = cli(*words).out.splitlines()
    assert len(lines) == 2
    assert "ORDERS  2 messages  +0/s" in lines[0]
    assert "1 consumer  lag 2" in lines[1]
    looks = cli.lines(*words)
    assert [look["messages"] for look in looks] == [2, 2]
    assert looks[0]["consumers"] == {"C": 2}


def test_a_watch_on_a_terminal_redraws_in_place(cli: Cli) -> None:
    create(cli)
    terminal, stdout = pty.openpty()

    words = ("stream", "watch", "ORDERS", "--count", "2", "--interval", "10ms")
    with cli.start(*words, stdout=stdout) as process:
        assert process.wait(timeout=20) == 0
    screen = os.read(terminal, 65536).decode()
    os.close(terminal)
    os.close(stdout)

    assert screen.count("ORDERS  0 messages  +0/s  0 B  0 consumers") == 2
    assert screen.count("\x1b[3A\x1b[J") == 1


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_ctrl_c_ends_a_watch_cleanly(words: tuple[str, ...], cli: Cli) -> None:
    create(cli)

    with cli.start("stream", "watch", "ORDERS", "--interval", "10ms", *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 0


@asynchronous
async def test_a_watch_survives_a_lost_connection(
    program: Program, servers: Servers, cli: Cli
) -> None:
    await asyncio.to_thread(create, cli)
    async with FaultProxy(servers(program, CONFIG).url) as proxy:
        words = ("stream", "watch", "ORDERS", "--interval", "10ms", "--server", proxy.url)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(PENSTOCK, *words, **pipes)
        assert process.stdout is not None
        assert process.stderr is not None
        await process.stdout.readline()
        proxy.cut()
        assert b"penstock: connection lost" in await process.stderr.readline()
        assert b"penstock: connected again\n" == await process.stderr.readline()
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = await process.communicate()

    assert (process.returncode, error) == (0, b"")


def test_a_reader_that_has_enough_is_no_disaster(cli: Cli) -> None:
    create(cli)

    with cli.start("stream", "watch", "ORDERS", "--interval", "10ms") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 1


def test_an_option_that_is_unknown_brings_the_nearest_one(cli: Cli) -> None:
    error = cli.fails("stream", "create", "X", "--max-mesgs", "1", code=2)
    assert error == "penstock: unknown option `--max-mesgs`\nhint: did you mean `--max-msgs`?\n"


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = Cli("nats://127.0.0.1:1", capsys)

    assert nowhere.fails("stream", "ls") == (
        "penstock: no server could be reached: 127.0.0.1:1: connection refused\n"
        "hint: start one with `penstock serve -js`, name one with --server or use --context\n"
    )


def test_the_environment_names_the_server(cli: Cli) -> None:
    create(cli)

    process = subprocess.run(
        [PENSTOCK, "stream", "ls", "--names", "--json"],
        env={**os.environ, "NATS_URL": cli.url},
        capture_output=True,
        check=True,
    )
    assert json.loads(process.stdout) == ["ORDERS"]


def test_messages_are_viewed_from_anywhere(cli: Cli) -> None:
    create(cli)
    for numbers in (range(1, 4), range(4, 8)):
        cli.publish(*[(f"orders.{n % 2}", b"%d" % n) for n in numbers])
    cli("stream", "msg-rm", "ORDERS", "6", "-f")

    def view(*words: str) -> list[str]:
        return cli("stream", "view", "ORDERS", "--raw", *words).out.split()

    assert view() == ["1", "2", "3", "4", "5", "7"]
    assert view("--start", "4", "--count", "2") == ["4", "5"]
    assert view("--last", "3") == ["5", "7"]
    assert view("--subject", "orders.0") == ["2", "4"]
    assert view("--since", "1h") == view()
    assert cli("stream", "view", "ORDERS", "--since", "2030-01-01").err == "no messages\n"
    times = [line["time"] for line in cli.lines("stream", "view", "ORDERS")]
    assert view("--since", times[3]) == ["4", "5", "7"]
    both = ("stream", "view", "ORDERS", "--start", "1", "--last", "1")
    assert "only one of `--start`, `--since` and `--last`" in cli.fails(*both, code=2)


@pytest.mark.parametrize(("answer", "shown"), [("\n", 15), ("q\n", 10)])
def test_a_terminal_gets_messages_page_by_page(answer: str, shown: int, cli: Cli) -> None:
    create(cli)
    cli.publish(*[("orders.a", b"m") for _ in range(15)])
    terminal, slave = pty.openpty()

    with cli.start("stream", "view", "ORDERS", "--raw", stdin=slave, stdout=slave) as process:
        os.write(terminal, answer.encode())
        assert process.stderr is not None
        assert process.stderr.read() == "-- Enter for more, q ends -- "
    os.close(slave)
    out = os.read(terminal, 65536).decode()
    os.close(terminal)

    assert out.split().count("m") == shown


def test_streams_are_compared_in_a_report(cli: Cli) -> None:
    create(cli, "--max-msgs", "4")
    cli("stream", "create", "BIG", "--subjects", "big")
    cli.publish(*[("big", b"x" * 1000)] * 2, ("orders.a", b"1"))

    header, *rows = cli("stream", "report").out.splitlines()
    assert header.split()[-2:] == ["FULL", "BEHIND"]
    assert [row.split()[0] for row in rows] == ["BIG", "ORDERS"]
    assert rows[1].split()[-2:] == ["25%", "-"]
    for column in ("full", "consumers", "messages", "bytes"):
        first = cli.json("stream", "report", "--sort", column)[0]["config"]["name"]
        assert first == ("ORDERS" if column == "full" else "BIG")
    error = cli.fails("stream", "report", "--sort", "colour", code=2)
    assert "`colour` is unknown\nhint: one of name, messages, bytes, consumers, full\n" in error


def test_the_subjects_of_a_stream_are_counted(cli: Cli) -> None:
    create(cli)
    cli.publish(("orders.a", b"1"), ("orders.b", b"2"), ("orders.b", b"3"))

    assert cli.json("stream", "subjects", "ORDERS") == {"orders.a": 1, "orders.b": 2}
    assert cli("stream", "subjects", "ORDERS", "--sort", "messages", "--names").out == (
        "orders.b\norders.a\n"
    )
    assert cli.json("stream", "subjects", "ORDERS", "orders.a") == {"orders.a": 1}


def test_streams_are_found_by_what_they_are(cli: Cli) -> None:
    create(cli, "--max-msgs", "1")
    cli("stream", "create", "EMPTY", "--subjects", "empty")
    cli("stream", "create", "MIRROR", "--mirror", "EMPTY")
    cli("stream", "create", "SOURCED", "--source", "EMPTY")
    cli("consumer", "create", "ORDERS", "C")
    cli.publish(("orders.a", b"1"))

    def find(*words: str) -> list[str]:
        return list(cli.json("stream", "find", *words))

    assert find("--empty") == ["EMPTY", "MIRROR", "SOURCED"]
    assert find("--empty", "--invert") == ["ORDERS"]
    assert find("--unconsumed", "--subject", "empty") == ["EMPTY"]
    assert find("--mirrored") == ["MIRROR"]
    assert find("--sourced") == ["SOURCED"]
    assert find("--full", "90") == ["ORDERS"]
    assert find("--created", "1h", "--idle", "0s") == ["EMPTY", "MIRROR", "ORDERS", "SOURCED"]
    assert find("--idle", "1h") == []


def test_a_stream_is_copied_with_its_configuration(cli: Cli) -> None:
    create(cli, "--max-age", "1h")

    copied = cli.json("stream", "copy", "ORDERS", "COPY", "--subjects", "copy.>")["config"]
    assert (copied["name"], copied["subjects"]) == ("COPY", ["copy.>"])
    assert copied["max_age"] == 3_600_000_000_000
    assert "add --subjects" in cli.fails("stream", "cp", "ORDERS", "C2", code=2)
