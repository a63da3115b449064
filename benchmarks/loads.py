"""
The load generators: C programs in `load/`, compiled into `bin/` when their sources change.

They are in C so that two cores measure the server and not the client. Each prints one line of
`name=value` figures, and ends with 0 only if not one message was lost or repeated.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import PenstockError

SOURCES = Path(__file__).parent / "load"
BINARIES = Path(__file__).parent / "bin"
RUN_SECONDS_MAX = 90

Figures = dict[str, float]


class LoadFailed(PenstockError):
    """A load could not be built, or lost messages."""


def build() -> None:
    """Compile every load generator that is older than its source."""
    BINARIES.mkdir(exist_ok=True)
    shared_time = max(header.stat().st_mtime for header in SOURCES.glob("*.h"))
    for source in sorted(SOURCES.glob("*.c")):
        binary = BINARIES / source.stem
        source_time = max(source.stat().st_mtime, shared_time)
        if not binary.exists() or binary.stat().st_mtime < source_time:
            _compile(source, binary)


def run(
    program: str,
    arguments: Sequence[str],
    *,
    on_figures: Callable[[], None] = lambda: None,
    seconds_max: float = RUN_SECONDS_MAX,
) -> Figures:
    """Run a load; call `on_figures` when it has its figures, possibly while still connected."""
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            [str(BINARIES / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,  # We handle Ctrl-C, not the load
        )
        line = _figures_line(process, on_figures, seconds_max)
        if process.returncode == 0:
            return _parse(line)
        complaints.seek(0)
        reason = complaints.read().strip() or f"ended with {process.returncode}"
        raise LoadFailed(f"{program}: {reason}")


def _figures_line(
    process: subprocess.Popen[str], on_figures: Callable[[], None], seconds_max: float
) -> str:
    """Return the line that `process` prints, once it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    # A load waits for all its messages: without an alarm, it would wait forever for a lost
    # one.
    alarm = threading.Timer(seconds_max, process.kill)
    alarm.start()
    try:
        line = process.stdout.readline()
        if line:
            on_figures()
        process.stdin.close()
        process.wait()
        return line
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def _parse(line: str) -> Figures:
    pairs = (word.split("=", 1) for word in line.split())
    return {name: float(value) for name, value in pairs if not value.isalpha()}


def _compile(source: Path, binary: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise LoadFailed(
            "no C compiler found: the load generators are C programs\n"
            "hint: install gcc, or name a compiler in the environment variable `CC`"
        )
    command = [compiler, "-O2", "-pthread", "-o", str(binary), str(source), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise LoadFailed(f"{source.name} does not compile:\n{result.stderr}")
