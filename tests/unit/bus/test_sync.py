"""The bus without `await`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Servers
from tests.servers import PENSTOCK, wait_until

import penstock
from penstock.bus import Envelope
from penstock.bus.sync import SyncEventBus
from penstock.errors import BatchFailed, BusClosed, ConnectFailed


def event(number: int, payload: Any = None) -> Envelope[Any]:
    return Envelope(aggregate_id="a", event_type="t", payload=payload or {"number": number})


def test_a_script_publishes_handles_and_replays(tmp_path: Path) -> None:
    handled: list[int] = []
    bus = SyncEventBus(f"embedded:{tmp_path}")

    @bus.on("orders.*")
    def handle(envelope: Envelope[Any]) -> None:
        handled.append(envelope.payload["number"])

    with bus:
        assert "created" == bus.configure_topic("orders.a", max_msgs=100).action
        assert bus.check_topic("orders.a").in_sync
        first = bus.publish_envelope("orders.a", event(0))
        receipts = bus.publish_envelope_batch("orders.a", [event(n) for n in range(1, 10)])
        wait_until(lambda: len(handled) == 10)

        assert list(range(10)) == handled
        assert list(range(first.sequence + 1, first.sequence + 10)) == [
            receipt.sequence for receipt in receipts
        ]
        assert list(range(10)) == [one.payload["number"] for _, one in bus.replay("orders.a")]
        assert bus.health().connected
        wait_until(lambda: bus.backlog().messages == 0)


def test_a_replay_that_is_left_leaves_no_consumer(servers: Servers) -> None:
    server = servers(PENSTOCK, "jetstream { store_dir: store }")
    with SyncEventBus(server.url, namespace="left") as bus:
        bus.publish_envelope_batch("t", [event(n) for n in range(3)])
        for _, envelope in bus.replay("t"):
            assert 0 == envelope.payload["number"]
            break

        assert [] == asyncio.run(_consumers(server.url, "left"))


async def _consumers(url: str, stream: str) -> list[str]:
    async with await penstock.connect(url) as client:
        return await client.jetstream().consumers.names(stream)


def test_handlers_come_and_go_and_bytes_travel(tmp_path: Path) -> None:
    got: list[bytes] = []
    with SyncEventBus(f"embedded:{tmp_path}") as bus:
        subscription = bus.subscribe("raw", got.append)
        bus.publish("raw", b"1")
        wait_until(lambda: got == [b"1"])
        bus.unsubscribe(subscription)
        bus.publish("raw", b"2")
        bus.subscribe("raw", got.append)
        wait_until(lambda: got == [b"1", b"2"])


def test_errors_reach_the_caller(tmp_path: Path) -> None:
    with SyncEventBus(f"embedded:{tmp_path}") as bus:
        with pytest.raises(BatchFailed):
            bus.publish_envelope_batch("t", [event(1), event(2, object())])
    with pytest.raises(ConnectFailed), SyncEventBus("nats://127.0.0.1:1", connect_timeout=0.1):
        pass


def test_no_thread_is_left_and_closing_twice_is_once(tmp_path: Path) -> None:
    before = threading.active_count()
    with SyncEventBus(f"embedded:{tmp_path}") as bus:
        bus.publish_envelope("t", event(1))
        bus.close()

    assert before == threading.active_count()
    with pytest.raises(BusClosed):
        bus.publish_envelope("t", event(1))
