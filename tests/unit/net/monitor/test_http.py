"""The HTTP server, through a socket and on its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from penstock.net.monitor import http
from penstock.net.monitor.http import BadRequest, EventStream, HttpRequest, HttpServer, Response

HOST = b"Host: x\r\n"


async def greet(request: HttpRequest) -> Response:
    return Response(200, f"{request.path} {dict(sorted(request.query.items()))}".encode())


def talk(data: bytes, handler: http.Handler = greet, body_max: int = 0) -> bytes:
    """Return everything the server says to `data` until it hangs up."""

    async def play(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    return with_server(play, handler, body_max)


def with_server(
    play: Callable[[int], Awaitable[bytes]], handler: http.Handler = greet, body_max: int = 0
) -> bytes:
    async def main() -> bytes:
        server = HttpServer(handler, lambda request: body_max)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        await server.start(listener)
        try:
            return await asyncio.wait_for(play(port), 10)
        finally:
            await server.close()

    return asyncio.run(main())


def head_and_body(answer: bytes) -> tuple[list[str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_a_get_is_answered_with_path_and_parameters() -> None:
    request = b"GET /connz?subs=1&acc=%24G&subs=2&flag HTTP/1.1\r\nConnection: close\r\n"

    lines, body = head_and_body(talk(request + HOST + b"\r\n"))

    assert lines[0] == "HTTP/1.1 200 OK"
    assert f"Content-Length: {len(body)}" in lines
    assert "Connection: close" in lines
    assert body == b"/connz {'acc': '$G', 'flag': '', 'subs': '1'}"


def test_a_head_is_answered_without_the_body_but_with_its_size() -> None:
    lines, body = head_and_body(talk(b"HEAD / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"))

    assert "Content-Length: 4" in lines
    assert body == b""


def test_requests_may_follow_one_another_on_one_connection() -> None:
    first = b"GET /one HTTP/1.1\r\n" + HOST + b"\r\n"
    last = b"GET /two HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"

    answer = talk(first + first + last)

    assert [answer.count(b"/one {}"), answer.count(b"/two {}")] == [2, 1]


def test_a_request_waits_until_the_answer_before_it_is_taken() -> None:
    served: list[str] = []

    async def answer(request: HttpRequest) -> Response:
        served.append(request.path)
        return Response(200, b"x" * 500_000 if request.path == "/page" else b"ok")

    async def play(port: int) -> bytes:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=16 * 1024)
        asked = b"GET /page HTTP/1.1\r\n" + HOST
        writer.write(asked + b"\r\n" + asked + b"Connection: close\r\n\r\n")
        first = await reader.read(1)
        other, probe = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(50):
            probe.write(b"GET /probe HTTP/1.1\r\n" + HOST + b"\r\n")
            await other.readuntil(b"ok")
        assert served == ["/page"] + ["/probe"] * 50
        answers = first + await reader.read()
        for each in (writer, probe):
            each.close()
        return answers

    assert with_server(play, answer).count(b"HTTP/1.1 200") == 2
    assert served.count("/page") == 2


def test_pipelined_requests_are_served_one_per_turn() -> None:
    turns = 0
    served: list[int] = []

    async def answer(request: HttpRequest) -> Response:
        served.append(turns)
        return Response(200, b"ok")

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def play(port: int) -> bytes:
        counting = asyncio.create_task(count_turns())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = b"GET / HTTP/1.1\r\n" + HOST
        writer.write((asked + b"\r\n") * 20 + asked + b"Connection: close\r\n\r\n")
        answers = await reader.read()
        counting.cancel()
        writer.close()
        return answers

    assert with_server(play, answer).count(b"HTTP/1.1 200") == 21
    assert len(set(served)) == 21


def test_an_old_client_is_hung_up_on_unless_it_asks_otherwise() -> None:
    assert b"Connection: close" in talk(b"GET / HTTP/1.0\r\n\r\n")
    assert http.parse(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keeps_alive


def test_an_absolute_target_is_understood() -> None:
    assert http.parse(b"GET http://x/varz?a=1 HTTP/1.0\r\n\r\n").path == "/varz"


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"POST /varz HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"\r\nabc", 405),
        (b"garbage\r\n\r\n", 400),
        (b"GET /varz HTTP/1.1\r\n\r\n", 400),
        (b"GET /varz HTTP/1.1\r\nno colon\r\n" + HOST + b"\r\n", 400),
        (b"GET /varz HTTP/1.1\r\nName : x\r\n" + HOST + b"\r\n", 400),
        (b"GET //[ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /?" + b"a&" * 100 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /varz FTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /varz HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET /varz HTTP/1.1\r\nA: " + b"x" * http.HEAD_BYTES_MAX + b"\r\n\r\n", 431),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_ends_the_connection(
    request_bytes: bytes, expected: int
) -> None:
    assert status(talk(request_bytes)) == expected


def test_a_refused_method_is_told_which_ones_there_are() -> None:
    with pytest.raises(BadRequest) as refused:
        http.parse(b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n")

    assert refused.value.response.headers == {"Allow": "GET, HEAD"}


@pytest.mark.parametrize("header", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_get_with_a_body_is_the_last_of_its_connection(header: bytes) -> None:
    assert not http.parse(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % header).keeps_alive


def test_who_hangs_up_in_the_middle_gets_no_answer() -> None:
    async def play(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HT")
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    assert with_server(play) == b""


def test_who_sends_no_request_in_time_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)

    assert talk(b"GET / HTTP/1.1\r\n") == b""


def test_one_connection_too_many_costs_the_one_used_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def play(port: int) -> bytes:
        oldest, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(b"GET /first HTTP/1.1\r\n" + HOST + b"\r\n")
        await oldest.readuntil(b"/first {}")
        idle, second = await asyncio.open_connection("127.0.0.1", port)
        # Asking again is a use: now the second, which never asked, is the one that waits longest.
        first.write(b"GET /again HTTP/1.1\r\n" + HOST + b"\r\n")
        await oldest.readuntil(b"/again {}")
        reader, third = await asyncio.open_connection("127.0.0.1", port)
        assert b"" == await idle.read()
        third.write(b"GET /third HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        answer = await reader.read()
        for writer in (first, second, third):
            writer.close()
        return answer

    assert status(with_server(play)) == 200


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 0\r\nContent-Length: 0\r\n",
        b"content-length: 5\r\nCONTENT-LENGTH: 5\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: " + b"1" * 5000 + b"\r\n",
        b"Content-Length: " + b"0" * 5000 + b"\r\n",
        b"Content-Length: \xb2\r\n",
        b"Host: y\r\n",
    ],
)
def test_a_request_says_once_and_clearly_where_it_ends(lines: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        http.parse(b"GET / HTTP/1.1\r\n" + HOST + lines + b"\r\n")

    assert 400 == refused.value.response.status


def test_a_mistake_in_a_handler_costs_its_connection_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: HttpRequest) -> Response:
        raise ZeroDivisionError

    assert talk(b"GET / HTTP/1.0\r\n\r\n", fail) == b""
    assert "ZeroDivisionError" in caplog.text


def test_closing_drops_whoever_is_connected() -> None:
    async def main() -> bytes:
        server = HttpServer(greet)
        await server.close()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        await server.start(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await server.close()
        await server.close()
        try:
            rest = await reader.read()
        except ConnectionResetError:
            rest = b"/ {}"
        writer.close()
        return rest

    assert asyncio.run(main()) == b"/ {}"


async def two_events() -> AsyncGenerator[bytes, None]:
    for number in (1, 2):
        yield b"data: %d\n\n" % number


async def stream(request: HttpRequest) -> EventStream:
    return EventStream(two_events())


def test_events_are_sent_as_they_come_and_have_no_length() -> None:
    lines, body = head_and_body(talk(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", stream))

    assert "Content-Type: text/event-stream; charset=utf-8" in lines
    assert "Connection: close" in lines
    assert not any(line.startswith("Content-Length") for line in lines)
    assert body == b"data: 1\n\ndata: 2\n\n"


async def repeat(request: HttpRequest) -> Response:
    return Response(200, request.body)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"Content-Length: 3\r\n\r\nabc", 200),
        (b"Content-Length: 0\r\n\r\n", 200),
        (b"\r\n", 411),
        (b"Content-Length: 11\r\n\r\n", 413),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    ],
)
def test_a_post_is_read_up_to_a_bound(sent: bytes, expected: int) -> None:
    request = b"POST / HTTP/1.1\r\nConnection: close\r\n" + HOST + sent

    assert expected == status(talk(request, repeat, body_max=10))


def test_a_request_may_follow_a_post() -> None:
    post = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"\r\nabc"
    last = b"GET /two HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"

    assert 2 == talk(post + last, repeat, body_max=10).count(b"HTTP/1.1 200 OK")


def test_where_nothing_can_be_posted_the_body_is_not_read() -> None:
    post = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"\r\nabc"

    lines, _ = head_and_body(talk(post))

    assert lines[0].startswith("HTTP/1.1 405")
    assert "Allow: GET, HEAD" in lines
