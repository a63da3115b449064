"""`/historyz` over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import penstock
from penstock.net.monitor.watch.history import POINTS


def ask(port: int | None, query: str = "") -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/historyz{query}", timeout=30) as answer:
        return json.load(answer)


async def fill(url: str) -> None:
    async with await penstock.connect(url) as client:
        js = client.jetstream()
        await js.streams.create("S", subjects=["s"])
        await js.consumers.create("S", durable_name="c", ack_policy="explicit")
        await js.publish("s", b"x")


def test_the_figures_of_the_server_have_an_hour() -> None:
    with penstock.serve(http_port=0) as server:
        found = ask(server.http_port)
        while not any(found["memory_bytes"]):
            found = ask(server.http_port)

    assert {POINTS} == {len(each) for each in found.values() if isinstance(each, list)}
    assert found["step_s"] * POINTS == 3600
    assert found["memory_bytes"][-1] > 1 << 20


def test_a_stream_has_what_was_stored_and_how_far_each_consumer_was() -> None:
    with penstock.serve(http_port=0, jetstream=True) as server:
        asyncio.run(fill(server.url))
        found = ask(server.http_port, "?account=$G&stream=S")
        while not found["consumers"] or found["consumers"][0]["pending"][-1] is None:
            found = ask(server.http_port, "?account=$G&stream=S")
        nothing = ask(server.http_port, "?account=$G&stream=T")

    assert ["c"] == [each["name"] for each in found["consumers"]]
    assert 1.0 == found["consumers"][0]["pending"][-1]
    assert ([None] * POINTS, []) == (nothing["stored"], nothing["consumers"])
