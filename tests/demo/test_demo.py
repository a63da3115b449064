"""The demo, told with a few orders, and stopped in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import DEADLINE_S

pytestmark = pytest.mark.timeout(300)

ORDERS = 400


# In a process of its own: a process has one Spark session, and the demo stops it.
SHORT = f"""
import pathlib, sys
from penstock.cli.demo import demo
sys.exit(demo.show({ORDERS}, pathlib.Path("report.html")))
"""


# As a person calls it, with fewer orders.
CALLED = """
import sys
from penstock.cli import main
from penstock.cli.demo import demo
demo.ORDERS = int(sys.argv[1])
sys.exit(main.main(["demo"]))
"""

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def test_the_whole_story_is_told_and_checked(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SHORT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 0 == told.returncode, told.stderr

    said = told.stdout
    assert "\u2717" not in said
    for claim in (
        "1,600 published, 1,600 handled",
        "1,600 archived, 0 missing, 0 twice",
        "0 out of order, as Spark's audit of all 1,600 found",
        "1,600 events in the ",
    ):
        assert f"\u2713 {claim}" in said
    page = (tmp_path / "report.html").read_text()
    assert 4 <= page.count("<svg")
    assert not re.findall(r"(?:src|href)=", page), "the page must stand alone"


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("pyspark", 0, "without Spark: PySpark is missing; hint: pip install 'penstock[spark]'"),
        ("msgspec", 1, "the event bus needs msgspec\nhint: pip install 'penstock[bus]'"),
    ],
)
def test_what_is_not_installed_is_named(package: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(package=package))
    told = subprocess.run(
        [sys.executable, "-c", CALLED, str(ORDERS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (code, True) == (told.returncode, said in told.stdout + told.stderr), told.stderr


@pytest.mark.parametrize("act", ["broker", "service"])
def test_ctrl_c_leaves_nothing_behind(act: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    told = subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert told.stdout is not None
    while act not in told.stdout.readline():
        assert told.poll() is None
    told.send_signal(signal.SIGINT)
    _, complaints = told.communicate(timeout=6 * DEADLINE_S)

    assert 130 == told.returncode
    assert "stopped; everything is cleaned up" in complaints
    assert "Traceback" not in complaints
    assert [] == list(temporary.iterdir())
    assert [temporary] == list(tmp_path.iterdir())
    assert not _processes_in(temporary)


def _processes_in(directory: Path) -> list[str]:
    """Return the commands that still have something to do with a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(directory) in command or str(directory) in os.readlink(process / "cwd"):
                found.append(command)
        except OSError:
            continue  # it ended while we looked
    return found
