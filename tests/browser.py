"""A real browser: Debian's Chromium, installed if it is not there and we may."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
TIMEOUT_S = 120


@functools.cache
def find_browser() -> str | None:
    """Return the program; install it first if need be and if that can be done."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], INSTALL):
            subprocess.run(command, env=quiet, capture_output=True, timeout=600, check=False)
        found = next(filter(None, map(shutil.which, NAMES)), None)
    return found


def rendered(url: str, *, shown_for_ms: int) -> str:
    """Return the page as it is after its scripts have run for a while."""
    browser = find_browser()
    if browser is None:
        pytest.skip("there is no Chromium here, and it could not be installed with apt-get")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ended = subprocess.run(
            [
                *(browser, *FLAGS, f"--user-data-dir={profile}"),
                *(f"--virtual-time-budget={shown_for_ms}", "--dump-dom", url),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout
