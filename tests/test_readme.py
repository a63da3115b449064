"""The programs of the README run as they stand."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import PENSTOCK, ServerProcess

import penstock

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, tmp_path: Path, *, warnings: str = "error") -> str:
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", warnings, path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_serves_and_talks_to_itself(tmp_path: Path) -> None:
    assert run(PROGRAMS[0], tmp_path) == "orders.created b'{\"id\": 1}'\n"


def test_the_second_program_handles_what_it_publishes(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")

    assert run(PROGRAMS[1], tmp_path) == "customer-1 ordered\n" * 3


def test_the_third_program_counts_a_stream_by_subject(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with ServerProcess(PENSTOCK, "jetstream { store_dir: store }") as server:
        asyncio.run(fill(server.url))
        here = f'.option("stream", "ORDERS").option("servers", "{server.url}")'
        program = PROGRAMS[2].replace('.option("stream", "ORDERS")', here)

        shown = run(program, tmp_path, warnings="default")

    assert re.search(r"\|\s*orders\.created\|\s*3\|", shown), shown


async def fill(url: str) -> None:
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("ORDERS", subjects=["orders.>"])
        await jetstream.publish_batch([("orders.created", b"{}")] * 3)
