"""JetStream in the monitoring: both servers, given the same work, say the same of it."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conformance.test_monitoring import TIME
from tests.servers import HOST, PENSTOCK, PROGRAMS, ServerProcess

from penstock.client import connect
from penstock.errors import JetStreamError

CONFIG = """
http: "127.0.0.1:-1"
server_name: one
jetstream {{ store_dir: "{}", max_mem: 100MB, max_file: 1GB, sync_interval: 30s }}
"""
DIFFERENT = {"server_id", "store_dir", "level", "compress_ok"}
"""We compress nothing, and our API level says what we have."""
ANSWER = tuple[int, Any]

JSZ = [
    *("", "accounts=1", "streams=1", "consumers=1", "config=1", "streams=1&config=1"),
    *("consumers=1&config=1", "acc=$G", "acc=$G&streams=1&consumers=1&config=1", "acc=NOPE"),
    *("acc=$SYS&streams=1", "accounts=1&offset=1", "accounts=1&limit=0", "accounts=1&offset=-1"),
    *("streams=1&limit=1", "acc=$G&streams=1&offset=1", "leader-only=1", "direct-consumers=1"),
    "stream-leader-only=true&streams=true",
]
HEALTHZ = [
    *("", "js-enabled-only=1", "js-enabled=1", "js-server-only=1", "details=1", "account=$G"),
    *("account=NOPE", "account=$SYS", "account=$G&stream=S", "account=$G&stream=X"),
    *("account=$G&stream=S&consumer=C", "account=$G&stream=S&consumer=X", "account=NOPE&details=1"),
    *("account=$G&stream=X&details=1", "account=$G&stream=S&consumer=X&details=1"),
    *("stream=S", "stream=S&details=1", "account=$G&consumer=C"),
]


@pytest.fixture(scope="module")
def both() -> Iterator[list[ServerProcess]]:
    """Return both servers after the same work."""
    with ExitStack() as stack:
        servers = []
        for program in PROGRAMS:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            servers.append(stack.enter_context(ServerProcess(program, CONFIG.format(directory))))
            asyncio.run(work(servers[-1].url))
        yield servers


async def work(url: str) -> None:
    async with await connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("S", subjects=["s.>"], max_bytes=1_000_000)
        await jetstream.streams.create("M", subjects=["m.>"], storage="memory")
        await jetstream.publish_batch([("s.a", b"x")] * 5 + [("m.a", b"yy")] * 2)
        await jetstream.streams.delete_message("S", 3)
        await jetstream.consumers.create("S", durable_name="C", ack_policy="explicit")
        await jetstream.consumers.create("S", durable_name="D", filter_subject="s.b")
        async with jetstream.pull_consumer("S", "C") as consumer:
            first, _ = await consumer.fetch(2, no_wait=True)
            await first.ack_sync()
        with pytest.raises(JetStreamError):
            await jetstream.streams.info("NOPE")


def get(server: ServerProcess, path: str) -> ANSWER:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{path}") as answer:
            return answer.status, _comparable(json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _comparable(json.load(error))


def _comparable(value: Any) -> Any:
    """Return a document without what may differ: times, ids, and the order of streams."""
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items() if name not in DIFFERENT}
    if isinstance(value, list):
        return sorted(map(_comparable, value), key=lambda each: json.dumps(each))
    return "TIME" if isinstance(value, str) and TIME.fullmatch(value) else value


@pytest.mark.parametrize("query", JSZ)
def test_jsz_says_the_same(both: list[ServerProcess], query: str) -> None:
    ours, theirs = (get(server, f"/jsz?{query}") for server in both)

    assert ours == theirs


@pytest.mark.parametrize("query", HEALTHZ)
def test_healthz_says_the_same(both: list[ServerProcess], query: str) -> None:
    ours, theirs = (get(server, f"/healthz?{query}") for server in both)

    assert ours == theirs


def test_varz_says_the_same_of_jetstream(both: list[ServerProcess]) -> None:
    ours, theirs = (get(server, "/varz")[1]["jetstream"] for server in both)

    assert ours == theirs


@pytest.mark.parametrize("path", ["/jsz?accounts=x", "/jsz?limit=x", "/jsz?raft=x"])
def test_an_option_that_makes_no_sense_is_a_bad_request(
    both: list[ServerProcess], path: str
) -> None:
    for server in both:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{HOST}:{server.http_port}{path}")
        with caught.value as error:
            assert error.code == 400


@pytest.mark.parametrize("path", ["/jsz", "/jsz?accounts=1", "/healthz?account=$G&stream=S"])
def test_a_server_without_jetstream_says_that_it_has_none(path: str) -> None:
    answers = []
    for program in PROGRAMS:
        with ServerProcess(program, 'http: "127.0.0.1:-1"') as server:
            answers.append(get(server, path))

    assert answers[0] == answers[1]


def test_metrics_tell_of_streams_and_consumers(both: list[ServerProcess]) -> None:
    ours = next(server for server in both if server.program is PENSTOCK)
    with urllib.request.urlopen(f"http://{HOST}:{ours.http_port}/metrics") as answer:
        text = answer.read().decode()

    for line in (
        "penstock_jetstream_streams 2",
        "penstock_jetstream_consumers 2",
        'penstock_stream_messages{stream="S"} 4',
        'penstock_stream_failed{stream="S"} 0',
        'penstock_stream_last_sequence{stream="M"} 2',
        'penstock_consumer_ack_pending_messages{stream="S",consumer="C"} 1',
        'penstock_consumer_pending_messages{stream="S",consumer="C"} 2',
        "penstock_jetstream_api_errors_total 1",
    ):
        assert f"\n{line}\n" in text
    assert re.search(r"\npenstock_jetstream_commit_seconds_total \d", text)
