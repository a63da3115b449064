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
from penstock.bus import Envelope, EventBus
from penstock.bus.sync import SyncEventBus
from penstock.errors import BatchFailed, BusClosed, ConnectFailed, NoResponders


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


def test_a_key_is_reopened_and_a_topic_forgotten(tmp_path: Path) -> None:
    is_broken, got = True, list[int]()
    bus = SyncEventBus(
        {
            "embedded": {"store_dir": str(tmp_path)},
            "subscriber": {"max_attempts": 1, "on_exhausted": "block"},
        }
    )

    @bus.upcaster("t", from_version=1)
    def upcast(payload: Any) -> Any:
        return payload | {"is_new": True}

    def handle(envelope: Envelope[Any]) -> None:
        if is_broken:
            raise ValueError
        assert envelope.payload["is_new"]
        got.append(envelope.payload["number"])

    with bus:
        subscription = bus.subscribe_envelope("orders", handle)
        bus.publish_envelope("orders", event(1))
        bus.drain()
        assert ([], 1) == (got, bus.snapshot().parked_keys)
        is_broken = False
        assert bus.reopen("a")
        bus.drain()
        assert ([1], 1) == (got, bus.snapshot().handled_total)
        assert not bus.reopen("a")

        bus.unsubscribe(subscription)
        assert ("orders",) == bus.health().unhandled
        bus.forget("orders")
        assert () == bus.health().unhandled
        stop = bus.respond("double", lambda number: 2 * number)
        assert 8 == bus.request("double", 4)
        stop()
        with pytest.raises(NoResponders):
            bus.request("double", 4)


WITHOUT = {
    "open": "the class itself takes the arguments",
    "flush on_published publish_envelope_sync results": "each publish waits until it is stored",
    "beat on_backlog on_health on_reconnected": "its callbacks would run on the other thread",
    "instrument": "the same",
    "messages": "an asynchronous iterator",
    "run": "a whole service, without a caller",
    "features is_open left_behind": "for engines and runners",
}


def test_what_the_bus_can_do_scripts_can_do() -> None:
    left_out = {name for names in WITHOUT for name in names.split()}
    public = {name for name in vars(EventBus) if not name.startswith("_")}

    assert public - vars(SyncEventBus).keys() == left_out


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
