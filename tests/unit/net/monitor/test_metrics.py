"""The text that Prometheus reads."""

from __future__ import annotations

import asyncio
import re

from penstock.net.monitor.metrics import Metric, metrics, render
from penstock.net.server import Server

SAMPLE = re.compile(r'([a-z_]+)(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? (\S+)')


def scrape() -> str:
    async def main() -> str:
        async with Server() as server:
            client = server.broker.open("127.0.0.1", 1)
            client.receive(b'CONNECT {"headers":true}\r\nSUB a 1\r\nPUB a 3\r\nabc\r\n')
            server.http_requests.update({"/varz": 2, "/connz": 1})
            text = metrics(server)
            server.broker.dirty.clear()
            return text

    return asyncio.run(main())


def test_a_metric_has_help_a_type_and_its_samples() -> None:
    found = [
        Metric("a_total", "How many.", [({"path": "/"}, 1), ({"path": 'q"\\\n', "b": "c"}, 2)]),
        Metric("b", "How much.", [({}, 0.5)]),
        Metric("c", "Nothing known.", []),
    ]

    assert render(found).splitlines() == [
        "# HELP a_total How many.",
        "# TYPE a_total counter",
        'a_total{path="/"} 1',
        r'a_total{path="q\"\\\n",b="c"} 2',
        "# HELP b How much.",
        "# TYPE b gauge",
        "b 0.5",
    ]


def test_every_line_is_one_that_prometheus_can_read() -> None:
    lines = scrape().splitlines()

    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    announced = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert announced == {re.split(r"[{ ]", line)[0] for line in samples}
    assert len(announced) == sum(line.startswith("# TYPE") for line in lines)


def test_the_figures_are_those_of_the_server() -> None:
    lines = scrape().splitlines()

    assert {
        "penstock_connections 1",
        "penstock_connections_accepted_total 1",
        "penstock_in_messages_total 1",
        "penstock_out_bytes_total 3",
        "penstock_slow_consumers_total 0",
        'penstock_http_requests_total{path="/varz"} 2',
    } <= set(lines)
