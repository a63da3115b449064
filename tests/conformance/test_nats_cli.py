"""The `nats` command line tool, unchanged, on the real server and on ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.conformance.matrix import CONFIG
from tests.conformance.test_nats_go import UNREACHABLE
from tests.servers import NATS_SERVER, PENSTOCK, ServerProcess, wait_until

from penstock.cli.main import main

pytestmark = pytest.mark.timeout(900)
"""The first of them fetches and builds the client, which takes its time on a busy machine."""

SOURCE = Path(__file__).parent / "natscli"
PACKAGE = "github.com/nats-io/natscli/nats"
TIMEOUT_S = 60.0

OF_SYSTEM = """
server list 1
server info
server ping 1
server report connections
server report accounts
server report jetstream
server report health
server report cpu
server report mem
server request variables
server request connections
server request subscriptions
server request jetstream
server request jetstream-health
server request accounts
server request routes
server request gateways
server request leafnodes
server request ipqueue
server request raft
server account info A
server check server --name matrix
server check connection
"""
OF_ACCOUNT = """
account info
account report connections
account report statistics
rtt
stream add S --subjects s.> --defaults
pub s.1 hello --count 10
stream ls
stream info S
stream state S
stream subjects S
stream report
trace s.1 --deliver
trace s.1
trace nobody.there
stream state S
stream find --empty
stream get S 1
stream edit S --max-msgs 100 --force
server check stream --stream S
server check jetstream
consumer add S C --pull --defaults
consumer ls S
consumer info S C
consumer next S C --count 2 --ack
consumer report S
consumer find S
consumer pause S C 1h --force
consumer resume S C --force
consumer edit S C --max-pending 7 --force
consumer copy S C C2
consumer rm S C --force
stream backup S {home}/backup --no-progress
stream rmm S 1 --force
stream purge S --force
stream rm S --force
stream restore {home}/backup --no-progress
stream info S
account backup {home}/account --force
stream copy S T --subjects t.>
stream rm T --force
stream seal S --force
stream rm S --force
kv add K --history 5
kv put K a 1
kv get K a --raw
kv update K a 2 1
kv create K b 1
kv ls
kv ls K
kv history K a
kv info K
kv del K a --force
kv purge K b --force
kv compact K --force
kv rm K --force
object add O
object put O {home}/file --force --no-progress
object ls O
object info O {home}/file
object get O {home}/file --output {home}/again --force --no-progress
object seal O --force
object rm O --force
bench pub b --msgs 1000 --no-progress
bench js pub sync js.b --create --stream B --msgs 100 --no-progress
bench js pub async js.b --stream B --msgs 1000 --no-progress
bench js ordered --stream B --msgs 1000 --no-progress
bench js consume --stream B --msgs 500 --no-progress
bench js fetch --stream B --msgs 500 --no-progress
kv add BK
bench kv put --bucket BK --msgs 100 --no-progress
bench kv get --bucket BK --msgs 100 --no-progress
stream ls --names
"""
MICRO = """
micro list
micro info demo
micro stats demo
request demo.echo hello
"""
QUESTION = "request question hello"
DIFFERENT = ("server info", "server request ipqueue", "server account info A")
"""They work on both, and show how each server is built."""
FIGURES = re.compile(r"\S*\d\S*|\b[A-Za-z]{22}\b|\b[KMGTPE]iB\b|[█▏▎▍▌▋▊▉═─│╭╮╰╯├┤┬┴┼]+")


class Tool:
    """The command line tool at work on one server."""

    def __init__(self, program: Path, server: ServerProcess, home: Path) -> None:
        self._program = program
        self.server = server
        self.home = home
        (home / "file").write_text("what an object has\n" * 100)

    def start(self, user: str, line: str) -> subprocess.Popen[str]:
        """Start a command on behalf of a user."""
        environment = {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "NATS_URL": self.server.url,
            "NO_COLOR": "1",
        }
        return subprocess.Popen(
            [
                *(str(self._program), "--user", user, "--password", "x", "--timeout", "30s"),
                *line.format(home=self.home).split(),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], **environment},
        )

    def printed(self, user: str, line: str) -> str:
        """Run a command that may fail, and return what it prints."""
        return self.start(user, line).communicate(timeout=TIMEOUT_S)[0]

    def run(self, user: str, line: str) -> str:
        """Run a command that must succeed, and return what it prints."""
        process = self.start(user, line)
        printed, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{self.server.program.name}: nats {line}\n{printed}"
        return printed


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tool, compiled."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed here")
    built_to = tmp_path_factory.mktemp("natscli") / "nats"
    command = ["go", "build", "-ldflags=-s -w", "-o", str(built_to), PACKAGE]
    built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    if any(word in built.stderr for word in (*UNREACHABLE, "requires go >=")):
        pytest.skip("the Go module proxy cannot be reached from here, or Go is too old")
    assert built.returncode == 0, built.stderr
    return built_to


@pytest.fixture(scope="module")
def tools(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tool, Tool]]:
    """Return the tool for the real server, and for ours."""
    with ExitStack() as stack:
        real, ours = (
            Tool(
                program,
                stack.enter_context(ServerProcess(each, CONFIG)),
                tmp_path_factory.mktemp(each.name),
            )
            for each in (NATS_SERVER, PENSTOCK)
        )
        yield real, ours


def shape(printed: str, tool: Tool) -> list[str]:
    """Return the words of what was printed, without figures, units, times and frames."""
    text = printed.replace(str(tool.home), "HOME")
    return [" ".join(FIGURES.sub(" ", line).split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("user", "lines"),
    [("s", OF_SYSTEM), ("a", OF_ACCOUNT), ("s", "server account purge A --force")],
    ids=["system", "account", "purge"],
)
def test_commands_print_the_same_of_both_servers(
    user: str, lines: str, tools: tuple[Tool, Tool]
) -> None:
    for line in lines.strip().splitlines():
        expected, actual = (shape(tool.run(user, line), tool) for tool in tools)

        assert line in DIFFERENT or (line, expected) == (line, actual)


def test_a_service_is_found_and_asked(tools: tuple[Tool, Tool]) -> None:
    stories = []
    for tool in tools:
        service = tool.start("a", "micro serve demo")
        try:
            wait_until(lambda tool=tool: "demo" in tool.printed("a", "micro list"), TIMEOUT_S)
            lines = MICRO.strip().splitlines()
            # A client has headers in no order.
            story = [sorted(shape(tool.run("a", line), tool)) for line in lines]
        finally:
            service.send_signal(signal.SIGINT)
            service.communicate(timeout=TIMEOUT_S)
        stories.append(story)

    assert stories[0] == stories[1]


def test_who_subscribes_and_replies_is_heard(tools: tuple[Tool, Tool]) -> None:
    for tool in tools:
        responder = tool.start("a", "reply question answer --count 1")
        wait_until(lambda tool=tool: "answer" in tool.printed("a", QUESTION), TIMEOUT_S)
        printed, _ = responder.communicate(timeout=TIMEOUT_S)

        assert 'Received on subject "question"' in printed


def penstock(tool: Tool, *words: str) -> None:
    """Run our command on the server of a tool."""
    assert 0 == main([*words, "--server", tool.server.url, "--user", "a", "--password", "x"])


@pytest.mark.parametrize("by_us", [True, False], ids=["our backup", "its backup"])
def test_a_backup_of_either_command_is_restored_by_the_other(
    by_us: bool, tools: tuple[Tool, Tool], tmp_path: Path
) -> None:
    for tool in tools:
        folder = tmp_path / tool.server.program.name
        tool.run("a", "stream add SAVED --subjects saved.> --defaults")
        tool.run("a", "pub saved.1 hello --count 10 -J")
        tool.run("a", "consumer add SAVED C --pull --defaults")
        tool.run("a", "consumer next SAVED C --count 2 --ack")
        state = tool.run("a", "stream info SAVED --json")

        if by_us:
            penstock(tool, "stream", "backup", "SAVED", str(folder))
            tool.run("a", "stream rm SAVED --force")
            tool.run("a", f"stream restore {folder} --no-progress")
        else:
            tool.run("a", f"stream backup SAVED {folder} --consumers --no-progress")
            tool.run("a", "stream rm SAVED --force")
            penstock(tool, "stream", "restore", str(folder))

        assert shape(state, tool) == shape(tool.run("a", "stream info SAVED --json"), tool)
        assert "Unprocessed Messages: 8" in tool.run("a", "consumer info SAVED C")
        tool.run("a", "stream rm SAVED --force")


def test_both_commands_have_the_same_contexts(
    tools: tuple[Tool, Tool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in tools:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tool.home / "config"))
        monkeypatch.delenv("NATS_URL", raising=False)

        penstock(tool, "context", "save", "ours", "--description", "made by us")
        assert "made by us" in tool.printed("a", "context ls")
        tool.run("a", f"context save its --server {tool.server.url} --select")
        capsys.readouterr()
        assert 0 == main(["context", "ls", "--json"])
        listed = json.loads(capsys.readouterr().out)
        assert [(each["name"], each["selected"]) for each in listed] == [
            ("its", True),
            ("ours", False),
        ]
        assert 0 == main(["pub", "a", "x"])
        assert 0 == main(["context", "select", "ours"])
        assert 0 == main(["pub", "a", "x"])
        assert "ours" in tool.run("a", "context info")
