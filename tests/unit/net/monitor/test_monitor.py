"""The endpoints of a running server, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest

import penstock
from penstock.core.broker import TURN_NS
from penstock.errors import ConfigError
from penstock.net.monitor import turns
from penstock.net.server import Server


def get(port: int | None, path: str) -> tuple[int, str, str]:
    """Return the status, the type and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_every_endpoint_answers_and_is_counted() -> None:
    with penstock.serve(http_port=0) as server:
        port = server.http_port
        for path in ("/connz", "/subsz", "/subscriptionsz", "/healthz", "/varz"):
            status, content_type, text = get(port, path)
            assert (status, content_type) == (200, "application/json")

        assert json.loads(text)["http_req_stats"] == {
            "/connz": 1,
            "/subsz": 2,
            "/healthz": 1,
            "/varz": 1,
        }
        assert get(port, "/metrics")[2].startswith("# HELP penstock_info")
        assert get(port, "/healthz")[2] == '{"status":"ok"}'
        assert get(port, "/nope") == (404, "text/plain; charset=utf-8", "404 page not found\n")
        assert get(port, "/connz?sort=bad")[0] == 400


def test_the_first_page_lists_the_others() -> None:
    with penstock.serve(http_port=0, server_name="<b>") as server:
        status, content_type, page = get(server.http_port, "/")

    assert (status, content_type) == (200, "text/html; charset=utf-8")
    assert 'href="varz"' in page
    assert "&lt;b&gt;" in page


def test_a_callback_gets_the_document_as_a_call() -> None:
    with penstock.serve(http_port=0) as server:
        _, content_type, text = get(server.http_port, "/connz?callback=my.show")
        refused = get(server.http_port, "/connz?callback=alert(1)//")

    assert content_type == "application/javascript"
    assert text.startswith("my.show({")
    assert text.endswith(");")
    assert refused[0] == 400


class Work:
    """A clock that runs with the pieces of pages, and their number in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, piece_ns: int) -> None:
        self.pieces = 0
        self.most = 0
        self.begun = asyncio.Event()
        self._piece_ns = piece_ns
        monkeypatch.setattr(turns, "monotonic_ns", self._clock_ns)

    def _clock_ns(self) -> int:
        self.pieces += 1
        self.begun.set()
        return self.pieces * self._piece_ns

    async def watch(self) -> None:
        while True:
            before = self.pieces
            await asyncio.sleep(0)
            self.most = max(self.most, self.pieces - before)


async def ask(port: int | None, path: str, times: int = 1) -> bytes:
    """Return all answers to pipelined requests."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = b"GET %b HTTP/1.1\r\nHost: x\r\n" % path.encode()
    writer.write((asked + b"\r\n") * (times - 1) + asked + b"Connection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(("connections", "subscriptions"), [(100, 1), (1, 1000)])
def test_all_pages_together_cost_clients_one_portion_per_turn(
    monkeypatch: pytest.MonkeyPatch, connections: int, subscriptions: int
) -> None:
    async def main() -> None:
        async with Server(http_port=0) as server:
            for port in range(connections):
                session = server.broker.open("127.0.0.1", port + 1)
                session.receive(b"CONNECT {}\r\n")
                for sid in range(subscriptions):
                    session.receive(b"SUB foo %d\r\n" % sid)
            server.broker.dirty.clear()
            work = Work(monkeypatch, piece_ns=100_000)
            watching = asyncio.create_task(work.watch())
            pages = [ask(server.http_port, "/connz?subs=detail", times=3) for _ in range(8)]
            answers = await asyncio.gather(*pages)
            watching.cancel()
            server.broker.sessions.clear()
            listed = 3 * connections * subscriptions
            assert all(answer.count(b'"sid"') == listed for answer in answers)
            # The clock is also read when a portion begins.
            assert 0 < work.most <= TURN_NS // 100_000 + 1

    asyncio.run(main())


def test_a_probe_is_answered_while_pages_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Server(http_port=0) as server:
            for port in range(1, 201):
                server.broker.open("127.0.0.1", port)
            server.broker.dirty.clear()
            work = Work(monkeypatch, piece_ns=TURN_NS)
            pages = [asyncio.create_task(ask(server.http_port, "/connz")) for _ in range(4)]
            await work.begun.wait()
            probed = await ask(server.http_port, "/healthz")
            assert probed.endswith(b'{"status":"ok"}')
            assert not any(page.done() for page in pages)
            assert all(page.count(b'"cid"') == 200 for page in await asyncio.gather(*pages))
            server.broker.sessions.clear()

    asyncio.run(main())


def test_a_short_page_does_not_wait_for_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Server(http_port=0) as server:
            for port in range(1, 201):
                server.broker.open("127.0.0.1", port)
            server.broker.dirty.clear()
            work = Work(monkeypatch, piece_ns=TURN_NS // 10)
            pages = [asyncio.create_task(ask(server.http_port, "/connz")) for _ in range(4)]
            await work.begun.wait()
            assert b'"server_id"' in await ask(server.http_port, "/accstatz")
            assert not any(page.done() for page in pages)
            assert all(page.count(b'"cid"') == 200 for page in await asyncio.gather(*pages))
            server.broker.sessions.clear()

    asyncio.run(main())


def test_a_page_ends_when_its_client_has_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Server(http_port=0) as server:
            for port in range(1, 2001):
                server.broker.open("127.0.0.1", port)
            server.broker.dirty.clear()
            work = Work(monkeypatch, piece_ns=TURN_NS)
            _, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
            writer.write(b"GET /connz?limit=2000 HTTP/1.1\r\nHost: x\r\n\r\n")
            await work.begun.wait()
            writer.close()
            made = -1
            while work.pieces > made:
                made = work.pieces
                await ask(server.http_port, "/healthz")
            assert made < 2000
            server.broker.sessions.clear()

    asyncio.run(main())


def test_no_monitoring_is_there_unless_it_is_asked_for() -> None:
    with penstock.serve() as server:
        assert server.http_port is None


def test_a_monitoring_port_in_use_stops_the_start_and_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Error listening on port: 127.0.0.1:{port}"):
            penstock.serve(http_port=port)


def test_a_stopped_server_hangs_up_on_those_who_watch_it() -> None:
    with penstock.serve(http_port=0) as server:
        watching = socket.create_connection(("127.0.0.1", server.http_port), timeout=10)
        watching.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert watching.recv(4096).startswith(b"HTTP/1.1 200")
    with watching:
        try:
            assert watching.recv(4096) == b""
        except ConnectionResetError:
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.http_port), timeout=10)


def test_a_client_that_leaves_with_messages_on_their_way_stops_nobody_else() -> None:
    async def main() -> bytes:
        async with Server() as server:
            connected = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            for reader, writer in connected:
                writer.write(b'CONNECT {"headers":true}\r\nSUB foo 1\r\nPING\r\n')
                await reader.readuntil(b"PONG\r\n")
            leaver, _ = server.broker.sessions.values()
            server.broker.default_account.send(b"foo", b"hi")
            leaver.transport.close("Client Closed")
            server.reactor.flush()
            received = await connected[1][0].readuntil(b"hi\r\n")
            for _, writer in connected:
                writer.close()
            return received

    assert asyncio.run(main()) == b"MSG foo 1 2\r\nhi\r\n"
