"""`penstock bench` as a process: real servers, real loads, and nothing left behind."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import pty
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import DEADLINE_S, NATS_SERVER, PENSTOCK, RawClient, ServerProcess, wait_until

from penstock.bench.scenarios.scenarios import SCENARIOS
from penstock.bus.testing.kafka import classpath
from penstock.client import connect
from penstock.errors import MissingExtra

RUN_S_MAX = 90.0
FOREVER = 200_000_000
"""More messages than a test has time for."""


class Bench:
    """Runs the command with a home of its own, and finds what it leaves behind."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        self._mark = f"penstock-bench-test-{secrets.token_hex(8)}"
        self._environment = {
            **os.environ,
            "XDG_DATA_HOME": str(home / "data"),
            "TMPDIR": str(self.temporary),
            "BENCH_TEST": self._mark,
        }

    def start(self, *arguments: str, **settings) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", "bench", *arguments],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | settings,
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=RUN_S_MAX)
        assert code == process.returncode, out + err
        assert "Traceback" not in err
        return out

    def outcomes(self, *arguments: str, code: int = 0) -> list[dict]:
        return json.loads(self.run(*arguments, "--json", code=code))["outcomes"]

    def left_behind(self) -> list[str]:
        """Return the processes that came from the command, and what lies in its temporary files."""
        found = [str(path) for path in self.temporary.iterdir()]
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._mark.encode() in path.read_bytes():
                    found.append(path.with_name("cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    assert bench.left_behind() == []


def assert_sound(outcome: dict) -> None:
    assert [] == outcome["errors"]
    assert (0, 0) == (outcome["lost"], outcome["out_of_order"])
    assert outcome["received"] == outcome["expected"] > 0


def assert_plausible(latency: dict | None) -> None:
    """Times are in order, and between what light and what patience allow."""
    if latency is not None:
        times = [latency[name] for name in ("min", "p50", "p99", "p100")]
        assert sorted(times) == times
        assert 1_000 < times[0]
        assert times[-1] < RUN_S_MAX * 1e9


def listen(port: int, subject: str) -> RawClient:
    """Return a client that gets what a run publishes."""
    client = RawClient(port).connect()
    client.send(b"SUB %b 1\r\n" % subject.encode())
    client.settle()
    return client


def wait_for_traffic(client: RawClient) -> None:
    while not client.line().startswith(b"MSG"):
        pass
    client.close()


def test_the_report_adds_up(bench):
    out = bench.run("-ns", "3", "-np", "2", "-ms", "100", "-n", "2000", "foo")

    lines = out.splitlines()
    assert "Starting benchmark [msgs=2000, msgsize=100, pubs=2, subs=3]" == lines[0]
    assert re.fullmatch(r"NATS Pub/Sub stats: [\d,]+ msgs/sec ~ [\d.]+ [KMG]?B/sec", lines[1])
    assert 2 == sum(line.endswith("(1000 msgs)") for line in lines)
    assert 3 == sum(line.endswith("(2000 msgs)") for line in lines)
    assert "Delivery: 6,000 of 6,000, 0 lost, 0 out of order" in lines


def test_servers_are_compared_in_one_run(bench):
    out = bench.run("--server", "penstock,nats", "--rounds", "2", "-n", "5000")

    assert out.count("the median of 2 rounds:") == 2
    assert re.search(r"\| pubsub 1 x 1 x 128 B \| .* \| .* \| +[\d.]+ \|", out)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_measured_soundly_on_both_servers(bench, scenario):
    outcomes = bench.outcomes(
        *("--server", "penstock,nats", "--rounds", "1", "--scenario", scenario),
        *("-np", "2", "-ns", "2", "-n", "400"),
    )

    assert ["penstock", "nats"] == [outcome["server"] for outcome in outcomes]
    for outcome in outcomes:
        assert_sound(outcome)
        assert 10 < outcome["rate"] < 100_000_000
        assert 1 << 20 < outcome["resident_bytes"] < 1 << 30
        assert_plausible(outcome["latency_ns"])


def test_the_clock_runs_from_the_first_publish_to_the_last_receive(bench):
    (outcome,) = bench.outcomes("-n", "2000", "--rate", "4000", "-np", "2")

    assert_sound(outcome)
    assert 0.5 == pytest.approx(outcome["duration_s"], rel=0.5)
    assert 2000 == outcome["latency_ns"]["count"]


def test_csv_and_history_are_written(bench):
    for _ in range(2):
        bench.run("-n", "1000", "-ns", "2", "--csv", "out.csv")

    rows = list(csv.DictReader((bench.home / "out.csv").read_text().splitlines()))
    assert ["S0", "S1", "P0"] == [row["ClientID"] for row in rows]
    # Its exit code says whether the second run was slower, which here is chance.
    with bench.start("history") as process:
        out, _ = process.communicate(timeout=RUN_S_MAX)
    assert re.search(r"\| pubsub +\| 1 x 2 x 128 B \| penstock \| +2 \|", out)


def test_a_result_can_be_kept_out_of_the_history(bench):
    bench.run("-n", "1000", "--no-history")

    assert not (bench.home / "data").exists()


def test_a_comparison_writes_a_page(bench):
    out = bench.run("compare", "--quick", "--only", "request", "--html", "page.html")

    assert "| request/reply 128 B: p50 |" in out
    assert "<svg" in (bench.home / "page.html").read_text()


def test_a_server_that_dies_is_a_loss(bench):
    with ServerProcess(PENSTOCK) as server:
        listener = listen(server.port, "doomed")
        process = bench.start("doomed", "-n", str(FOREVER), "--server", server.url)
        wait_for_traffic(listener)
        server.process.kill()
        out, err = process.communicate(timeout=RUN_S_MAX)

    assert 1 == process.returncode, out + err
    assert "FAILED: connection lost" in out
    assert re.search(r"Delivery: [\d,]+ of 200,000,000, [\d,]+ lost", out)
    assert "Traceback" not in err


def test_messages_of_others_do_not_count(bench):
    with ServerProcess(NATS_SERVER) as server:
        listener = listen(server.port, "shared")
        process = bench.start("shared", "-n", "20000", "-ms", "64", "--server", server.url)
        while not listener.line().startswith(b"MSG"):
            pass
        listener.send(b"PUB shared 5\r\nhello\r\n")
        out, err = process.communicate(timeout=RUN_S_MAX)
        listener.close()

    assert "Delivery: 20,000 of 20,000, 0 lost" in out, out + err


def test_a_server_that_is_not_there_is_said_to_be(bench):
    (outcome,) = bench.outcomes("--server", "nats://127.0.0.1:1", "-n", "10", code=1)

    assert "no server could be reached" in outcome["errors"][0]


def test_jetstream_on_a_server_without_it_is_an_error_with_a_reason(bench):
    with ServerProcess(NATS_SERVER) as server:
        (outcome,) = bench.outcomes(
            "--scenario", "js-pull", "--server", server.url, "-n", "10", code=1
        )

    assert "is JetStream enabled?" in outcome["errors"][0]


@pytest.mark.parametrize("server", ["penstock", "nats"])
def test_ctrl_c_prints_what_was_measured(bench, server):
    ours, theirs = pty.openpty()
    process = bench.start("-n", str(FOREVER), "-ns", "2", "-s", server, stderr=theirs)
    os.close(theirs)
    shown = ""
    while not re.search(r" [1-9][\d,]* msgs/s", shown):
        shown += os.read(ours, 65536).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    err = _read_all(ours)
    out, _ = process.communicate(timeout=RUN_S_MAX)

    assert 130 == process.returncode, out + err
    assert "Interrupted: the figures cover the run up to that point." in out
    assert re.search(r"NATS Pub/Sub stats: [1-9][\d,]+ msgs/sec", out)
    assert "Traceback" not in err


def test_ctrl_c_twice_is_once_and_ends_the_server_too(bench):
    process = bench.start("-n", str(FOREVER), "-ns", "2")
    # Two subscribers, a publisher, the server, the command, and a helper of Python's own.
    wait_until(lambda: len(bench.left_behind()) >= 6, RUN_S_MAX)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=RUN_S_MAX)

    assert 130 == process.returncode, out + err
    assert "Traceback" not in err


def test_ctrl_c_in_a_comparison_prints_the_table_so_far(bench):
    process = bench.start("compare", "--html", "page.html")
    # The command, two servers, a helper of Python's, and the load of a first run.
    wait_until(lambda: len(bench.left_behind()) >= 7, RUN_S_MAX)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=RUN_S_MAX)

    assert 130 == process.returncode, out + err
    assert "| 1 x 1 x 128 B " in out
    assert "<svg" in (bench.home / "page.html").read_text()
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_leave_nothing_behind_either(bench, number):
    with ServerProcess(NATS_SERVER) as server:
        listener = listen(server.port, "ended")
        process = bench.start("ended", "-n", str(FOREVER), "--server", server.url)
        wait_for_traffic(listener)
        process.send_signal(number)
        process.communicate(timeout=RUN_S_MAX)

    assert 128 + number == process.returncode


def test_a_bench_under_nohup_outlives_its_terminal(bench):
    with ServerProcess(NATS_SERVER) as server:
        listener = listen(server.port, "kept")
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = bench.start("kept", "-n", "300000", "--server", server.url)
        finally:
            signal.signal(signal.SIGHUP, before)
        wait_for_traffic(listener)
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=RUN_S_MAX)

    assert 0 == process.returncode, out + err


def test_ctrl_c_leaves_no_stream_behind(bench, tmp_path):
    with ServerProcess(NATS_SERVER, f'jetstream {{ store_dir: "{tmp_path / "js"}" }}') as server:
        listener = listen(server.port, "stored")
        process = bench.start(
            *("stored", "--scenario", "js-publish-async", "-n", str(FOREVER)),
            *("--server", server.url),
        )
        wait_for_traffic(listener)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=RUN_S_MAX)

        assert 130 == process.returncode, out + err
        assert [] == asyncio.run(_streams(server.url))


async def _streams(url: str) -> list[str]:
    async with await connect(url) as client:
        return await client.jetstream().streams.names()


def test_a_terminal_sees_progress(bench):
    ours, theirs = pty.openpty()
    process = bench.start("-n", "300000", stderr=theirs)
    os.close(theirs)
    shown = _read_all(ours)
    process.communicate(timeout=DEADLINE_S)

    assert "penstock pubsub 1 x 1 x 128 B" in shown
    assert "msgs/s" in shown


def _read_all(descriptor: int) -> str:
    pieces = []
    try:
        while data := os.read(descriptor, 65536):
            pieces.append(data)
    except OSError:
        pass  # What Linux says when the other end of a terminal is closed.
    os.close(descriptor)
    return b"".join(pieces).decode()


@pytest.mark.slow
def test_engines_of_the_bus_are_compared_on_a_page(bench):
    try:
        classpath()
        engines = ["embedded", "nats", "kafka"]
    except MissingExtra:
        engines = ["embedded", "nats"]
    out = bench.run(
        "compare", "--engine", ",".join(engines), "--quick", "--json", "--html", "e.html"
    )
    found = json.loads(out)["engines"]
    page = (bench.home / "e.html").read_text()

    assert [(engine, count) for count in (500, 2000) for engine in engines] == [
        (one["engine"], one["messages"]) for one in found
    ]
    assert all(one["rate"] > 0 and one["latency_ns_99"] > 0 for one in found)
    assert f"<title>The event bus on {' and '.join(engines)}</title>" in page


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["history", "-h"]])
def test_help_names_every_flag(bench, arguments):
    out = bench.run(*arguments)

    assert all(flag in out for flag in ("-ns, --num-subs", "--msg-size", "--server", "--html"))


def test_scenarios_are_listed(bench):
    out = bench.run("scenarios")

    assert all(f"| {name} " in out for name in SCENARIOS)


def test_a_wrong_flag_is_a_usage_error(bench):
    with bench.start("--num-pub", "3") as process:
        _, err = process.communicate(timeout=DEADLINE_S)

    assert (2, True) == (process.returncode, "did you mean -num-pubs?" in err)
