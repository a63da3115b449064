"""`--signal`: to whom, and what."""

import signal
import subprocess
import sys

import pytest

from penstock.cli.serve.signals import SIGNALS, send
from penstock.errors import ConfigError

SLEEPER = [sys.executable, "-S", "-c", "import signal; print(flush=True); signal.pause()"]


@pytest.fixture
def sleeper():
    """Return a process that does nothing but wait for a signal."""
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("command", ["stop", "term", "reopen", "ldm", "reload"])
def test_a_command_is_a_signal(command, sleeper):
    send(f"{command}={sleeper.pid}", pid_file=None)

    assert -SIGNALS[command] == sleeper.wait()


def test_the_process_may_be_named_by_its_pid_file(sleeper, tmp_path):
    path = tmp_path / "pid"
    path.write_text(f"{sleeper.pid}\n")

    send(f"term={path}", pid_file=None)

    assert -signal.SIGTERM == sleeper.wait()


def test_the_configured_pid_file_is_the_default(sleeper, tmp_path):
    path = tmp_path / "pid"
    path.write_text(str(sleeper.pid))

    send("term", pid_file=str(path))

    assert -signal.SIGTERM == sleeper.wait()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("foo=1", "unknown signal `foo`; it is one of stop, quit, term, reopen, ldm, reload"),
        ("stop", "which server? hint: `--signal stop=PID` or `--signal stop=PIDFILE`"),
        ("stop=/nowhere", "`/nowhere` is neither a process id nor a pid file"),
        ("stop=0", "no process id in `0`"),
        ("stop=-1", "`-1` is neither a process id nor a pid file"),
        ("term=999999999", "signal `term` to 999999999: No such process"),
    ],
)
def test_an_error_says_what_is_missing(command, error):
    with pytest.raises(ConfigError) as caught:
        send(command, pid_file=None)

    assert error == str(caught.value)


def test_a_file_without_a_process_id_is_refused(tmp_path):
    path = tmp_path / "pid"
    path.write_text("-1")

    with pytest.raises(ConfigError, match="no process id in"):
        send(f"stop={path}", pid_file=None)
