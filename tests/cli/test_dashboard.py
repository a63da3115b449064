"""The dashboard in a real browser, beside a server at work."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request

import pytest
from tests.browser import rendered
from tests.servers import PENSTOCK, ServerProcess

import penstock

pytestmark = pytest.mark.timeout(900)

CONFIG = """
server_name: "<b>bold</b>"
jetstream { store_dir: store }
http_port: -1
"""
REPORT = {
    "name": "orders-archive",
    "stream": "ORDERS",
    "batch": 7,
    "rows_per_s": 1234.5,
    "behind_messages": 42,
    "behind_s": 3.0,
}


async def work(url: str) -> None:
    async with await penstock.connect(url, name="a publisher") as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("ORDERS", subjects=["orders.>"])
        await jetstream.consumers.create("ORDERS", durable_name="billing", ack_policy="explicit")
        await jetstream.publish_batch([("orders.placed", b"x" * 100)] * 1500)
        for payload in (b"no report", json.dumps(REPORT).encode()):
            await client.publish("$PENSTOCK.PIPELINE", payload)
        await client.flush()


def text_of(page: str) -> str:
    """Return what a person reads."""
    body = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_dashboard_shows_what_the_server_does() -> None:
    with ServerProcess(PENSTOCK, CONFIG) as server:
        asyncio.run(work(server.url))

        shown = text_of(
            rendered(f"http://127.0.0.1:{server.http_port}/dashboard", shown_for_ms=5000)
        )

    assert "healthy" in shown
    assert re.search(r"ORDERS \$G 1,500 ", shown), shown
    assert re.search(r"billing ORDERS 1,500 0 0 ", shown)
    assert re.search(r"orders-archive ORDERS 42 3 s 1,235 7 ", shown)
    assert "&lt;b&gt;bold&lt;/b&gt;" in shown, "names are text, not markup"


def test_a_pipeline_is_known_by_its_last_report() -> None:
    with ServerProcess(PENSTOCK, CONFIG) as server:
        asyncio.run(work(server.url))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/pipelinez") as answer:
            (known,) = json.load(answer)["pipelines"]

    assert {"account": "$G", **REPORT} == {
        name: value for name, value in known.items() if name != "age_s"
    }
    assert 0 <= known["age_s"] < 60
