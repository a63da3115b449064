"""Signals to a running server: the signal of each `--signal` command, and its target."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock.errors import ConfigError

SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "ldm": signal.SIGUSR2,
    "reload": signal.SIGHUP,
}
"""The signal of each command, as in nats-server: `stop` is SIGKILL."""


def send(command_and_target: str, *, pid_file: str | None) -> None:
    """Send `command=target`. The target is a process id or a file that holds one."""
    command, _, target = command_and_target.partition("=")
    if command not in SIGNALS:
        raise ConfigError(f"unknown signal `{command}`; it is one of {', '.join(SIGNALS)}")
    target = target or pid_file or ""
    if not target:
        raise ConfigError(
            f"which server? hint: `--signal {command}=PID` or `--signal {command}=PIDFILE`"
        )
    pid = _read_pid(target)
    try:
        os.kill(pid, SIGNALS[command])
    except OSError as error:
        raise ConfigError(f"signal `{command}` to {pid}: {error.strerror}") from None


def _read_pid(target: str) -> int:
    text = target
    if not target.isdecimal():
        try:
            text = Path(target).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"`{target}` is neither a process id nor a pid file") from None
    # Zero or a negative number would address whole process groups.
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"no process id in `{target}`")
    return int(text)
