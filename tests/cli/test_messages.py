"""`penstock pub`, `sub` and `request` against the real server and ours."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.conftest import Servers
from tests.contract.credentials import USER, Key, operator_config_and_creds
from tests.servers import NATS_SERVER, Program

from penstock.cli.main import main
from penstock.client import Message, connect

USERS = """
authorization { users: [
  { user: limited, password: secret, permissions: { publish: "a.>", subscribe: "a.>" } }
] }
"""
TOKEN = 'authorization { token: "open sesame" }'


@contextmanager
def subscriber(cli: Cli, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `penstock sub`, and go on once it listens."""
    with cli.start("sub", *words) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("listening on ")
            yield process
        finally:
            process.kill()


def test_what_is_published_reaches_a_subscriber(cli: Cli) -> None:
    with subscriber(cli, "news.*", "--count", "2") as process:
        result = cli("pub", "news.a", "hello", "-H", "Color: red")
        cli("pub", "news.b", "bye", "--reply", "answers")

        out, error = process.communicate(timeout=20)
    assert (result.out, result.err) == ("", "published 5 B to `news.a`\n")
    assert out == "[1] news.a\nColor: red\nhello\n[2] news.b  reply to answers\nbye\n"
    assert error == ""
    assert process.returncode == 0


def test_a_script_gets_a_line_for_each_message(cli: Cli) -> None:
    with subscriber(cli, "news", "--json", "--count", "1") as process:
        assert cli.json("pub", "news", "hello") == {"subject": "news", "bytes": 5, "count": 1}

        out, _ = process.communicate(timeout=20)
    assert json.loads(out) == {"subject": "news", "reply": "", "headers": {}, "payload": "hello"}


def test_a_message_can_be_published_many_times(cli: Cli) -> None:
    with subscriber(cli, "news", "--raw", "--count", "3") as process:
        assert "3 times" in cli("pub", "news", "x", "--count", "3").err

        out, _ = process.communicate(timeout=20)
    assert out == "x\nx\nx\n"


def test_the_payload_can_come_from_standard_input(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subscriber(cli, "news", "--raw", "--count", "1") as process:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
        cli("pub", "news")

        out, _ = process.communicate(timeout=20)
    assert out == "from a pipe\n"


def test_a_queue_group_shares_messages(cli: Cli) -> None:
    with subscriber(cli, "work", "--queue", "q", "--raw", "--count", "4") as process:
        cli("pub", "work", "x", "--count", "4")

        out, _ = process.communicate(timeout=20)
    assert out.split() == ["x"] * 4


def test_ctrl_c_ends_a_subscription_cleanly(cli: Cli) -> None:
    with subscriber(cli, "news") as process:
        process.send_signal(signal.SIGINT)

        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0


def test_jetstream_says_where_it_stored_a_message(cli: Cli) -> None:
    cli("stream", "create", "NEWS", "--subjects", "news.>", "--storage", "memory")

    assert cli("pub", "news.a", "1", "-J").err == "stored in `NEWS` as 1\n"
    acks = cli.lines("pub", "news.a", "2", "--jetstream", "--count", "2")
    assert [ack["seq"] for ack in acks] == [2, 3]
    words = ("pub", "news.a", "3", "-J", "-H", "Nats-Msg-Id: 3")
    cli(*words)
    assert cli(*words).err == "stored in `NEWS` as 4, a duplicate\n"
    assert cli.fails("pub", "olds", "4", "-J") == (
        "penstock: no stream stores `olds`\nhint: penstock stream create NAME --subjects olds\n"
    )


def test_a_request_prints_the_reply(cli: Cli) -> None:
    async def answer(message: Message) -> None:
        await message.respond(b"re: " + message.payload)

    async def requests() -> tuple[str, str]:
        async with await connect(cli.url) as client:
            for _ in range(2):
                await client.subscribe("service", callback=answer)
            await client.flush()
            one = await asyncio.to_thread(cli, "request", "service", "hi", "--raw")
            two = await asyncio.to_thread(
                cli, "request", "service", "hi", "--raw", "--replies", "2"
            )
            return one.out, two.out

    assert asyncio.run(requests()) == ("re: hi\n", "re: hi\nre: hi\n")


@pytest.mark.parametrize("replies", ["1", "2"])
def test_a_request_that_nobody_hears_is_an_error(replies: str, cli: Cli) -> None:
    error = cli.fails("request", "service", "hi", "--replies", replies)

    assert error == (
        "penstock: nobody listens on `service`\n"
        "hint: is the subject right, and is somebody subscribed?\n"
    )


@pytest.mark.parametrize("replies", ["1", "2"])
def test_a_request_that_nobody_answers_is_over_after_its_timeout(replies: str, cli: Cli) -> None:
    with subscriber(cli, "service"):
        words = ("request", "service", "hi", "--timeout", "50ms", "--replies", replies)
        error = cli.fails(*words)

    assert error.startswith("penstock: `service`: no ")
    assert error.endswith("hint: wait longer with --timeout\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("pub", "a b", "x"), "`a b` is not a valid subject to publish to"),
        (("sub", "a..b"), "`a..b` is not a valid subject to subscribe to"),
    ],
)
def test_a_subject_that_is_none_is_refused(
    words: tuple[str, ...], complaint: str, cli: Cli
) -> None:
    assert complaint in cli.fails(*words)


def test_a_header_that_is_none_is_refused(cli: Cli) -> None:
    error = cli.fails("pub", "a", "x", "-H", "Color", code=2)

    assert error == "penstock: `--header`: `Color` is not a header\nhint: 'Name: value'\n"


def test_what_a_user_may_not_do_is_an_error(
    program: Program, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = Cli(servers(program, USERS).url, capsys)
    who = ("--user", "limited", "--password", "secret")

    limited("pub", "a.b", "x", *who)
    for words in (("pub", "b", "x"), ("sub", "b"), ("request", "b", "x", "--timeout", "200ms")):
        error = limited.fails(*words, *who)
        assert error.lower().startswith("penstock: permissions violation for ")
    error = limited.fails("pub", "a.b", "x")
    assert "authorization violation" in error.lower()
    assert "hint: log in with " in error


def test_an_nkey_and_a_creds_file_say_who_we_are(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = Key(USER)
    seed = tmp_path / "user.nk"
    seed.write_text(key.seed + "\n")
    nkeys = f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}"
    operator, creds = operator_config_and_creds(tmp_path)

    Cli(servers(NATS_SERVER, nkeys).url, capsys)("pub", "a", "x", "--nkey", str(seed))
    Cli(servers(NATS_SERVER, operator).url, capsys)("pub", "a", "x", "--creds", str(creds))


@pytest.mark.parametrize("option", ["creds", "nkey"])
def test_a_file_that_is_not_there_is_named(option: str, cli: Cli) -> None:
    error = cli.fails("pub", "a", "x", f"--{option}", "/nowhere", code=2)

    assert error == f"penstock: `--{option}`: cannot read `/nowhere`: No such file or directory\n"


def test_the_environment_says_who_we_are(
    program: Program, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", servers(program, TOKEN).url)
    monkeypatch.setenv("NATS_TOKEN", "open sesame")

    assert main(["pub", "a", "x"]) == 0


def test_templates_make_each_message_another(cli: Cli) -> None:
    with subscriber(cli, "news.>", "--json", "--count", "3") as process:
        words = (
            "pub",
            "news.{{Count}}",
            "{{Count}} {{ID}} {{ Random 3 5 }} {{no}}",
            "--count",
            "3",
        )
        cli(*words, "-H", "Number: {{Count}}", "--sleep", "1ms")

        messages = [json.loads(line) for line in process.communicate(timeout=20)[0].splitlines()]
    assert [message["subject"] for message in messages] == ["news.1", "news.2", "news.3"]
    assert [message["headers"]["Number"] for message in messages] == [["1"], ["2"], ["3"]]
    parts = [message["payload"].split() for message in messages]
    assert [part[0] for part in parts] == ["1", "2", "3"]
    assert len({part[1] for part in parts}) == 3
    assert all(3 <= len(part[2]) <= 5 and part[3] == "{{no}}" for part in parts)


def test_text_in_braces_can_stay(cli: Cli) -> None:
    with subscriber(cli, "news", "--raw", "--count", "1") as process:
        cli("pub", "news", "{{Count}}", "--no-templates")

        assert process.communicate(timeout=20)[0] == "{{Count}}\n"


def test_a_subscription_ends_after_a_silence(cli: Cli) -> None:
    with subscriber(cli, "news", "--raw", "--wait", "2s") as process:
        cli("pub", "news", "x")
        assert process.communicate(timeout=20) == ("x\n", "")
        assert process.returncode == 0

    error = cli.fails("sub", "news", "--wait", "10ms")
    assert error.endswith("penstock: `news`: no message\nhint: wait longer with --wait\n")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--echo",), "hi\n"),
        (("{{Request}} number {{Count}}",), "hi number 1\n"),
        (("--command", "tr a-z A-Z"), "HI\n"),
    ],
    ids=["echo", "template", "command"],
)
def test_requests_are_answered(words: tuple[str, ...], answer: str, cli: Cli) -> None:
    with cli.start("reply", "service", *words, "--count", "1") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("answering on `service`")

        assert cli("request", "service", "hi", "--raw").out == answer
        out, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (0, "")
    assert out.splitlines()[1] == "hi"


def test_an_answer_must_be_named(cli: Cli) -> None:
    assert cli.fails("reply", "service", code=2) == (
        "penstock: which answer?\nhint: a payload, --echo or --command\n"
    )
