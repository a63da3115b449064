"""A clock that is set back goes on; one that is set forward is followed."""

from __future__ import annotations

import time

import pytest
from tests.aio import asynchronous

from penstock.client import connect
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import ServerConfig
from penstock.net.clock import SteadyClock
from penstock.net.server import Server

HOUR_NS = 3600 * 10**9


class Clocks:
    """The two clocks of a machine."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * 10**9
        self.monotonic_ns = 1000 * 10**9

    def pass_time(self, seconds: float) -> None:
        self.wall_ns += round(seconds * 10**9)
        self.monotonic_ns += round(seconds * 10**9)

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall_ns, lambda: self.monotonic_ns)


def test_it_is_the_time_of_day() -> None:
    clocks = Clocks()
    steady = clocks.steady()
    clocks.pass_time(5)
    assert steady.now_ns() == clocks.wall_ns


def test_set_back_it_goes_on_by_the_monotonic_clock() -> None:
    clocks = Clocks()
    steady = clocks.steady()
    before = steady.now_ns()
    clocks.wall_ns -= HOUR_NS
    clocks.pass_time(2)
    assert steady.now_ns() == before + 2 * 10**9


def test_set_forward_it_follows() -> None:
    clocks = Clocks()
    steady = clocks.steady()
    steady.now_ns()
    clocks.wall_ns += HOUR_NS
    assert steady.now_ns() == clocks.wall_ns
    clocks.wall_ns -= 2 * HOUR_NS
    clocks.pass_time(1)
    assert steady.now_ns() == clocks.wall_ns + 2 * HOUR_NS


@asynchronous
async def test_a_server_whose_clock_is_set_back_still_redelivers_and_forgets(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift = [0]
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + shift[0])
    config = ServerConfig(port=0, jetstream=JetStreamConfig(store_dir=str(tmp_path)))
    async with Server(config) as server, await connect(server.url) as client:
        jetstream = client.jetstream()
        second = 10**9
        await jetstream.streams.create(
            "S", subjects=["s"], max_age=3 * second, duplicate_window=second
        )
        await jetstream.consumers.create(
            "S", durable_name="C", ack_policy="explicit", ack_wait=second
        )
        await jetstream.publish("s", b"1", message_id="one")
        consumer = jetstream.pull_consumer("S", "C")
        (first,) = await consumer.fetch(1)

        shift[0] = -HOUR_NS

        (again,) = await consumer.fetch(1, expires_s=30)
        assert (first.payload, again.payload) == (b"1", b"1")
        assert not (await jetstream.publish("s", b"2", message_id="one")).duplicate
        while (await jetstream.streams.info("S"))["state"]["messages"]:
            await consumer.fetch(1, expires_s=0.1)
