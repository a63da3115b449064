"""How long services of other accounts take, as the real server and ours tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.servers import NATS_SERVER, PENSTOCK, RawClient, ServerProcess

CONFIG = """
server_name: latency
accounts {
  EXPORTER {
    users: [ { user: service, password: x }, { user: watcher, password: x } ]
    exports: [
      { service: "always", latency: "metrics.always" }
      { service: "traced", latency: { subject: "metrics.traced", sampling: headers } }
      { service: "half", latency: { subject: "metrics.half", sampling: "50%" } }
      { service: "slow", latency: "metrics.slow", threshold: "100ms" }
      { service: "shared", latency: { subject: "metrics.shared", sampling: 100 } }
    ]
  }
  IMPORTER {
    users: [ { user: client, password: x } ]
    imports: [
      { service: { account: EXPORTER, subject: "always" } }
      { service: { account: EXPORTER, subject: "traced" } }
      { service: { account: EXPORTER, subject: "half" } }
      { service: { account: EXPORTER, subject: "slow" } }
      { service: { account: EXPORTER, subject: "shared" }, share: true }
    ]
  }
}
"""
VARIES = ("id", "timestamp", "start", "service", "system", "total", "rtt", "host")
TRACES = (
    {"X-B3-Sampled": "1", "X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7", "Other": "x"},
    {"X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7", "X-B3-SpanId": "e457b5a2e4d86bd1"},
    {"B3": "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1"},
    {"Uber-Trace-Id": "479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:1", "Uberctx-A": "b"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"},
)
UNTRACED = (
    {},
    {"X-B3-Sampled": "0", "X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7"},
    {"B3": "0"},
    {"Uber-Trace-Id": "479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:0"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"},
)


class Stage:
    """A service, who asks it, and who watches."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.service, self.watcher, self.client = (
            stack.enter_context(RawClient(server.port)).connect(
                user=user, name=user, **{"pass": "x"}
            )
            for user in ("service", "watcher", "client")
        )
        self.watcher.send(b"SUB metrics.> m\r\n")
        self.watcher.settle()
        self.client.send(b"SUB inbox i\r\n")
        self.client.settle()

    @contextmanager
    def served(self, subject: str) -> Iterator[None]:
        self.service.send(f"SUB {subject} s\r\n".encode())
        self.service.settle()
        yield
        self.service.send(b"UNSUB s\r\n")
        self.service.settle()

    def ask(
        self, subject: str, headers: dict[str, str] | None = None, reply: str = "inbox"
    ) -> None:
        if not headers:
            self.client.send(f"PUB {subject} {reply} 2\r\nhi\r\n".encode())
        else:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"NATS/1.0\r\n{lines}\r\n"
            size = len(head)
            self.client.send(f"HPUB {subject} {reply} {size} {size + 2}\r\n{head}hi\r\n".encode())

    def answer(self) -> None:
        line = next_message(self.service)
        self.service.read(int(line[-1]) + 2)
        reply = line[3].decode()
        self.service.send(f"PUB {reply} 5\r\nhello\r\n".encode())
        taken = next_message(self.client)
        self.client.read(int(taken[-1]) + 2)

    def metric(self) -> dict[str, Any]:
        line = next_message(self.watcher)
        document: dict[str, Any] = json.loads(self.watcher.read(int(line[-1]) + 2))
        return {"subject": line[1].decode(), **_constant(document)}


def next_message(client: RawClient) -> list[bytes]:
    while not (line := client.line()).startswith((b"MSG", b"HMSG")):
        if line == b"PING":
            client.send(b"PONG\r\n")
    return line.split()


def _constant(document: dict[str, Any]) -> dict[str, Any]:
    """Return what does not vary from one time to the next; of that, that it is there."""
    return {
        name: _constant(value) if isinstance(value, dict) else "…" if name in VARIES else value
        for name, value in document.items()
        if name != "rtt"
    }


@pytest.fixture(scope="module")
def stages() -> Iterator[list[Stage]]:
    with ExitStack() as stack:
        yield [
            Stage(stack.enter_context(ServerProcess(each, CONFIG)), stack)
            for each in (NATS_SERVER, PENSTOCK)
        ]


@pytest.mark.parametrize("subject", ["always", "shared"])
def test_each_answer_is_measured(subject: str, stages: list[Stage]) -> None:
    metrics = []
    for stage in stages:
        with stage.served(subject):
            stage.ask(subject)
            stage.answer()
            metrics.append(stage.metric())

    assert metrics[0] == metrics[1]
    assert metrics[1]["status"] == 200


def test_a_request_without_a_reply_is_bad(stages: list[Stage]) -> None:
    metrics = []
    for stage in stages:
        with stage.served("always"):
            stage.ask("always", reply="")
            metrics.append(stage.metric())

    assert metrics[0] == metrics[1]
    assert metrics[1]["status"] == 400


def test_a_service_that_is_not_there_is_told(stages: list[Stage]) -> None:
    metrics = []
    for stage in stages:
        stage.ask("always")
        metrics.append(stage.metric())
        next_message(stage.client)

    assert metrics[0] == metrics[1]
    assert metrics[1]["status"] == 503


def test_a_service_that_takes_too_long_is_told(stages: list[Stage]) -> None:
    metrics = []
    for stage in stages:
        with stage.served("slow"):
            stage.ask("slow")
            metrics.append(stage.metric())

    assert metrics[0] == metrics[1]
    assert metrics[1]["status"] == 504


@pytest.mark.parametrize("headers", TRACES)
def test_a_trace_has_its_requests_measured(headers: dict[str, str], stages: list[Stage]) -> None:
    metrics = []
    for stage in stages:
        with stage.served("traced"):
            stage.ask("traced", headers)
            stage.answer()
            metrics.append(stage.metric())

    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("headers", UNTRACED)
def test_other_requests_are_not_measured(headers: dict[str, str], stages: list[Stage]) -> None:
    for stage in stages:
        with stage.served("traced"):
            stage.ask("traced", headers)
            stage.answer()
        with stage.served("always"):
            stage.ask("always")
            stage.answer()
        assert stage.metric()["subject"] == "metrics.always"


def test_a_share_of_requests_is_measured(stages: list[Stage]) -> None:
    for stage in stages:
        with stage.served("half"):
            for _ in range(100):
                stage.ask("half")
                stage.answer()
        with stage.served("always"):
            stage.ask("always")
            stage.answer()
        measured = 0
        while stage.metric()["subject"] == "metrics.half":
            measured += 1
        assert 10 < measured < 90
