"""A real PostgreSQL server from Debian's package, on a free loopback port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.net.process import free_ports

USER = "postgres"
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server; yield how to connect to it."""
    programs = _programs()
    home = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    if os.getuid() == 0:
        shutil.chown(home, USER)
    try:
        _run(programs / "initdb", "-D", str(home / "data"), "-U", "penstock", "-A", "trust", "-N")
        (port,) = free_ports(1)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {home} -c fsync=off"
        control = (programs / "pg_ctl", "-D", str(home / "data"), "-w")
        _run(*control, "-o", options, "-l", str(home / "log"), "start")
        try:
            yield f"host=127.0.0.1 port={port} user=penstock dbname=postgres"
        finally:
            _run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path:
    """Return where the server's programs are; install them if that can be done."""
    found = _installed()
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        subprocess.run(INSTALL, capture_output=True, timeout=300, check=False)
        found = _installed()
    if found is None:
        pytest.skip("PostgreSQL is not installed, and Debian's package cannot be installed here")
    return found


def _installed() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _run(program: Path, *arguments: str) -> None:
    # The server refuses to run as root.
    user = pwd.getpwnam(USER).pw_uid if os.getuid() == 0 else None
    ended = subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if program.name == "initdb" else subprocess.DEVNULL,
        user=user,
        cwd="/",
        timeout=60,
    )
    assert ended.returncode == 0, f"{program.name}: {ended.stderr!r}"
