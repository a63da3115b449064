"""What either server writes in its log, where others read it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.servers import START_S, Program, RawClient, ServerProcess, wait_until

OPTIONS = {"verbose": False, "headers": True, "lang": "python", "version": "1.2", "name": "nm"}
SAID = (
    b"SUB foo 1\r\nSUB bar grp 2\r\nPUB foo 5\r\nhello\r\nPUB foo rep 2\r\nhi\r\n"
    b"HPUB foo 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\nPUB foo 0\r\n\r\nUNSUB 2 5\r\n"
)
RECEIVED = [
    "[SUB foo 1]",
    "[SUB bar grp 2]",
    "[PUB foo 5]",
    'MSG_PAYLOAD: ["hello"]',
    "[PUB foo rep 2]",
    'MSG_PAYLOAD: ["hi"]',
    "[HPUB foo 18 20]",
    r'MSG_PAYLOAD: ["NATS/1.0\r\nA: b\r\n\r\nhi"]',
    "[PUB foo 0]",
    "[UNSUB 2 5]",
    "[PING]",
]
SENT = [
    "[MSG foo 1 5]",
    'MSG_PAYLOAD: ["hello"]',
    "[MSG foo 1 rep 2]",
    'MSG_PAYLOAD: ["hi"]',
    "[HMSG foo 1 18 20]",
    r'MSG_PAYLOAD: ["NATS/1.0\r\nA: b\r\n\r\nhi"]',
    "[MSG foo 1 0]",
    "[PONG]",
]
LINE = re.compile(r"\[TRC\] 127\.0\.0\.1:\d+ - cid:\d+ - \"v1\.2:python:nm\" - (<<-|->>) (.*)")


def test_what_is_said_is_traced_in_the_same_words(program: Program) -> None:
    with ServerProcess(program, "", "-V") as server, RawClient(server.port) as client:
        client.send(b"CONNECT %b\r\n" % json.dumps(OPTIONS).encode())
        client.settle()
        seen = len(LINE.findall(server.log))
        client.send(SAID)
        client.settle()
        wait_until(lambda: server.log.count("[PONG]") == 2 and server.log.endswith("\n"))

        lines = LINE.findall(server.log)[seen:]
        assert [line for way, line in lines if way == "<<-"] == RECEIVED
        assert [line for way, line in lines if way == "->>"] == SENT


def test_what_a_server_answers_is_traced_in_the_same_words(program: Program) -> None:
    with ServerProcess(program, "", "-V") as server, RawClient(server.port) as client:
        client.send(b"CONNECT %b\r\n" % json.dumps(OPTIONS | {"verbose": True}).encode())
        client.send(b"SUB a..b 1\r\nPING\r\nFOO\r\n")
        client.rest()
        wait_until(lambda: "[-ERR Unknown" in server.log and server.log.endswith("\n"))

        assert [line for way, line in LINE.findall(server.log) if way == "->>"] == [
            *("[OK]", "[-ERR Invalid Subject]", "[PONG]", "[-ERR Unknown Protocol Operation]")
        ]


def test_no_secret_is_traced(program: Program) -> None:
    with ServerProcess(program, "", "-V") as server, RawClient(server.port) as client:
        client.connect(user="u", auth_token="s3cret", **{"pass": "s3cret"})
        wait_until(lambda: "[PONG]" in server.log)

        assert "<<- [CONNECT {" in server.log
        assert '"user":"u"' in server.log.replace(": ", ":")
        assert "s3cret" not in server.log


@pytest.mark.parametrize("place", ["", "jetstream"])
def test_a_store_directory_that_is_a_file_is_named_as_the_reason(
    place: str, program: Program, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    if place:
        store.mkdir()
    (store / place).write_text("x")

    done = subprocess.run(
        [*program.command, "-p", "-1", "-js", "-sd", str(store)],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )

    assert done.returncode == 1
    assert "[FTL] Can't start JetStream: storage directory is not a directory" in done.stderr
