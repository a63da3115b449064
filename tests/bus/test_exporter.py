"""Metrics and probes over HTTP say what the bus knows."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until

from penstock.bus import Envelope, EventBus
from penstock.bus.operate.exporter import Exporter
from penstock.bus.testing import PenstockServer

SAMPLE = re.compile(r"[a-z_]+(\{[^}]*\})? -?[0-9.]+")


async def answered(exporter: Exporter, request: bytes) -> tuple[bytes, bytes]:
    """Return head and body of an answer as they come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


def get(exporter: Exporter, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@asynchronous
async def test_metrics_are_prometheus_text_and_count_what_happened(tmp_path: Path) -> None:
    async with EventBus.open(f"embedded:{tmp_path}") as bus, Exporter(bus) as exporter:

        async def handle(_: Envelope[Any]) -> None:
            pass

        await bus.subscribe_envelope("orders", handle)
        for number in range(3):
            event = Envelope(aggregate_id="k", event_type="t", payload=number)
            await bus.publish_envelope_sync("orders", event)
        await until(lambda: bus.metrics.handled_total == 3)
        status, text = await asyncio.to_thread(get, exporter, "/metrics")

    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert 200 == status
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert "penstock_bus_handled_total 3" in samples
    assert "penstock_bus_connected 1" in samples
    assert any(line.startswith("penstock_bus_backlog_messages ") for line in samples)
    assert "penstock_bus_backlog_unhandled_messages 0" in samples
    assert {"penstock_bus_active 0", "penstock_bus_active 1"} & set(samples)


@asynchronous
async def test_ready_is_whether_the_broker_can_be_reached(tmp_path: Path) -> None:
    with PenstockServer(tmp_path) as server:
        async with EventBus.open(server.url) as bus, Exporter(bus) as exporter:
            assert (200, "ready\n") == await asyncio.to_thread(get, exporter, "/ready")
            server.kill()
            await until(lambda: not bus.health().connected)
            status, text = await asyncio.to_thread(get, exporter, "/ready")
            assert (503, True) == (status, text.startswith("not connected"))
            assert (200, "alive\n") == await asyncio.to_thread(get, exporter, "/live")
            assert b"" == (await answered(exporter, b"HEAD /live HTTP/1.1\r\n\r\n"))[1]
            assert "penstock_bus_connected 0" in (await exporter.answer("/metrics"))[1]


@pytest.mark.parametrize("garbage", [b"", b"nothing\r\n\r\n", b"x" * 20_000])
def test_who_sends_no_request_gets_no_answer(tmp_path: Path, garbage: bytes) -> None:
    @asynchronous
    async def work() -> None:
        async with EventBus.open(f"embedded:{tmp_path}") as bus, Exporter(bus) as exporter:
            reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
            writer.write(garbage)
            if not garbage:
                writer.write_eof()
            try:
                assert b"" == await reader.read()
            except ConnectionResetError:
                pass
            writer.close()
            assert 404 == (await asyncio.to_thread(get, exporter, "/other"))[0]

    work()
