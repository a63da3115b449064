"""Processes as the kernel shows them: who started whom, and by what command."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.servers import wait_until

from penstock.net.process import family


def descendants(pid: int) -> list[int]:
    """Return a process and all it started, the youngest first."""
    return family(pid)[::-1]


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    """Kill a process, unless it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        """It went by itself."""


def executors(driver: int) -> list[int]:
    """Return the processes of a local cluster that run tasks."""
    return [
        each for each in descendants(driver) if b"CoarseGrainedExecutorBackend" in command_of(each)
    ]


def python_workers(driver: int) -> list[int]:
    """Return the processes in which the executors run Python."""
    return [
        each
        for executor in executors(driver)
        for each in descendants(executor)
        if b"pyspark.daemon" in command_of(each)
    ]


def kill_one_of(
    candidates: Callable[[], list[int]], chance: random.Random, timeout_s: float
) -> None:
    """Kill one of some processes, once there are any."""
    wait_until(lambda: bool(candidates()), timeout_s=timeout_s)
    kill(chance.choice(candidates()))


def kill_driver(driver: int, timeout_s: float) -> None:
    """Kill the driver, its JVM and its Python; wait until its executors have noticed."""
    left = executors(driver)
    theirs = {each for executor in left for each in descendants(executor)}
    for pid in set(descendants(driver)) - theirs:
        kill(pid)
    try:
        wait_until(lambda: not any(map(command_of, left)), timeout_s=timeout_s)
    finally:
        for pid in filter(command_of, theirs):
            kill(pid)
