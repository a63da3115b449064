"""Other versions of PySpark, each in an environment of its own that is kept for the next time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

INSTALL_S = 900
VERSIONS = ("4.0.5", "4.1.4", "4.2.1")
"""One of each minor version before the one that all other tests run on."""


def python_with(version: str) -> Path:
    """Return a Python that has this PySpark, and all else that this one has; skip without it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = cache / "penstock" / "sparks" / f"{version}-python{tag}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "installed").exists():
            _install(version, home)
    _share_packages(home, tag)
    return home / "bin" / "python"


def _install(version: str, home: Path) -> None:
    venv.create(home, with_pip=True, clear=True)
    command = [home / "bin" / "python", "-m", "pip", "install", "-q", f"pyspark=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"PySpark {version} cannot be fetched: {done.stderr.strip()[-300:]}")
    (home / "installed").touch()


def _share_packages(home: Path, tag: str) -> None:
    """Let it find behind its own what is installed here, this package as well."""
    here = sysconfig.get_paths()["purelib"]
    own = home / "lib" / f"python{tag}" / "site-packages"
    (own / "shared.pth").write_text(f"import site; site.addsitedir({here!r})\n")
