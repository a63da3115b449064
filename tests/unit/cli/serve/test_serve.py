"""`penstock serve` as a process: what it prints, what it writes, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.main import main

READY = "Server is ready"
COMMAND = [sys.executable, "-m", "penstock", "serve", "-a", "127.0.0.1", "-p", "-1"]


class Running:
    """A server process, and the log lines it has written so far."""

    def __init__(self, process):
        self.process = process
        self.lines = []

    def read_until(self, text):
        """Read log lines up to the one that contains `text`, and return that."""
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"no {text!r} in {self.lines}")

    def signal(self, number):
        self.process.send_signal(number)

    @property
    def port(self):
        return int(re.search(r"client connections on \S+:(\d+)", "\n".join(self.lines))[1])


@contextmanager
def serve(*arguments, command=COMMAND):
    """Run a server until the block ends."""
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        running = Running(process)
        running.read_until(READY)
        yield running
    finally:
        process.kill()
        process.communicate()


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)


def test_log_lines_say_where_it_listens_and_then_that_it_is_ready():
    with serve() as server:
        pattern = r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[INF\] .*"
        assert all(re.fullmatch(pattern, line) for line in server.lines)
        listening = server.lines[-2].partition("[INF] ")[2]
        assert f"Listening for client connections on 127.0.0.1:{server.port}" == listening
        socket.create_connection(("127.0.0.1", server.port)).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number):
    with serve() as server:
        server.signal(number)

        server.read_until("Server Exiting")
        assert 0 == server.process.wait()


def test_pid_and_ports_files_live_as_long_as_the_server(tmp_path):
    with serve("-P", str(tmp_path / "pid"), "--ports_file_dir", str(tmp_path)) as server:
        server.signal(signal.SIGUSR1)
        # Both files were written before the first signal is answered.
        server.read_until("No log file to reopen")
        pid = server.process.pid
        ports = json.loads((tmp_path / f"penstock_{pid}.ports").read_text())

        assert {"nats": [f"nats://127.0.0.1:{server.port}"]} == ports
        assert str(pid) == (tmp_path / "pid").read_text()
        server.signal(signal.SIGTERM)
        server.process.wait()

    assert [] == list(tmp_path.iterdir())


def test_the_ports_file_bears_the_name_of_the_executable(tmp_path):
    script = tmp_path / "nats-server"
    script.write_text("import sys\nfrom penstock.cli.main import main\nsys.exit(main())\n")
    command = [sys.executable, str(script), "-p", "-1", "--ports_file_dir", str(tmp_path)]

    with serve(command=command) as server:
        server.signal(signal.SIGUSR1)
        server.read_until("No log file")
        ports = json.loads((tmp_path / f"nats-server_{server.process.pid}.ports").read_text())

        assert f"nats://127.0.0.1:{server.port}" == ports["nats"][0]


def test_a_port_in_use_is_fatal():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("-p", str(taken.getsockname()[1]))

    assert 1 == ended.returncode
    assert "[FTL] Error listening on port: 127.0.0.1:" in ended.stderr


def test_a_bad_configuration_is_fatal_line_by_line(tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("prot: 1\nmax_payload: x\n")

    ended = run("-c", str(path))

    assert 1 == ended.returncode
    first, second = ended.stderr.splitlines()
    assert f"[FTL] Parse error in {path}:1:1: unknown directive `prot`" in first
    assert f"[FTL] Parse error in {path}:2:1: `max_payload` expects a number" in second


def test_a_log_file_that_cannot_be_opened_is_fatal(tmp_path):
    ended = run("-l", str(tmp_path))

    assert 1 == ended.returncode
    assert f"[FTL] cannot open log file `{tmp_path}`: Is a directory" in ended.stderr


def test_a_ports_file_that_cannot_be_written_is_an_error_in_the_log(tmp_path):
    with serve("--ports_file_dir", str(tmp_path / "none")) as server:
        line = server.read_until("`ports_file_dir`: cannot write")

        assert "[ERR]" in line
        assert line.endswith("No such file or directory")
        assert server.process.poll() is None


def test_without_its_pid_file_a_server_does_not_start(tmp_path):
    path = tmp_path / "none" / "pid"

    ended = run("-P", str(path))

    assert 1 == ended.returncode
    assert f"[FTL] `pid_file`: cannot write {path}: No such file or directory" in ended.stderr
    assert READY not in ended.stderr


def test_the_log_file_is_reopened_on_demand(tmp_path):
    path, moved = tmp_path / "log", tmp_path / "moved"
    os.mkfifo(path)
    arguments = [*COMMAND, "-l", str(path)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE) as process:
        with path.open() as lines:
            assert any(READY in line for line in lines)
            path.rename(moved)
            os.mkfifo(path)
            process.send_signal(signal.SIGUSR1)
            with path.open() as reopened:
                assert "File log re-opened" in reopened.readline()
                process.kill()


def test_a_reload_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("debug: false")
    with serve("-c", str(path)) as server:
        path.write_text("debug: maybe")
        server.signal(signal.SIGHUP)

        line = server.read_until("Failed to reload")
        assert f"[ERR] Failed to reload server configuration: Parse error in {path}:1:1" in line
        assert server.process.poll() is None


def test_a_reload_is_confirmed(tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("debug: false")
    with serve("-c", str(path)) as server:
        path.write_text("logtime: false")
        server.signal(signal.SIGHUP)

        line = server.read_until("Reloaded server configuration")
        assert f"[{server.process.pid}] [INF] Reloaded server configuration" == line


def test_lame_duck_mode_ends_with_the_process(tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("lame_duck_grace_period: 0s\nlame_duck_duration: 30s")
    with serve("-c", str(path)) as server:
        server.signal(signal.SIGUSR2)

        server.read_until("lame duck mode")
        assert 0 == server.process.wait()


def test_signal_flag_reaches_the_server_through_its_pid_file(tmp_path):
    pid_file = str(tmp_path / "pid")
    with serve("-P", pid_file) as server:
        server.signal(signal.SIGUSR1)
        server.read_until("No log file to reopen")

        assert 0 == main(["serve", "--signal", f"quit={pid_file}"])

        assert 'Trapped "interrupt" signal' in server.read_until("Trapped")
        assert 0 == server.process.wait()


def test_a_valid_file_is_called_valid(tmp_path, capsys):
    path = tmp_path / "x.conf"
    path.write_text("port: 4222")

    assert 0 == main(["serve", "-t", "-c", str(path)])

    expected = f"penstock: configuration file {path} is valid (sha256:"
    assert capsys.readouterr().err.startswith(expected)


def test_an_invalid_file_is_not(tmp_path, capsys):
    path = tmp_path / "x.conf"
    path.write_text("port: [")

    assert 1 == main(["serve", "-t", "-c", str(path)])
    assert capsys.readouterr().err.startswith(f"penstock: Parse error in {path}:1:8: ")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-t"], 1, "penstock: -t checks a configuration file; hint: name one with -c"),
        (["-prot", "1"], 2, "flag provided but not defined: -prot; did you mean -port?"),
        (["-p"], 2, "flag needs an argument: -p"),
        (["what"], 2, "unrecognized command: `what`"),
        (
            ["--routes", "nats://x"],
            2,
            "flag -routes is not supported: Penstock runs on one machine",
        ),
        (["-ms", "8222"], 1, "`https_port` needs a `tls` block"),
        (["--signal", "foo=1"], 1, "unknown signal `foo`"),
    ],
)
def test_a_bad_command_line_says_what_and_where_to_look(arguments, code, text, capsys):
    assert code == main(["serve", *arguments])

    error = capsys.readouterr().err
    assert text in error
    assert ("penstock serve --help" in error) == (code == 2)


def test_help_lists_the_flags(capsys):
    assert 0 == main(["serve", "help"])

    text = capsys.readouterr().out
    assert "    -p, --port <number>" in text
    assert "    -DV, -DVV" in text


def test_starting_imports_nothing_that_is_not_needed():
    program = "import sys; from penstock.cli.serve import serve, process; print(*sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "src")}

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ
    )

    heavy = {"argparse", "difflib", "importlib.metadata", "urllib.request", "multiprocessing"}
    assert "penstock.cli.serve.process" in ended.stdout.split()
    assert set() == heavy & set(ended.stdout.split())
