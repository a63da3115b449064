"""The endpoints of a running server, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest

import penstock
from penstock.errors import ConfigError
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


def test_a_long_list_leaves_the_server_time_for_its_clients() -> None:
    async def main() -> int:
        async with Server(http_port=0) as server:
            for port in range(1, 1001):
                server.broker.open("127.0.0.1", port)
            server.broker.dirty.clear()
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
            counting = asyncio.create_task(count_turns())
            writer.write(b"GET /connz HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            counting.cancel()
            writer.close()
            assert answer.count(b'"cid"') == 1000
            server.broker.sessions.clear()
            return turns

    assert asyncio.run(main()) > 1000 / 64


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
