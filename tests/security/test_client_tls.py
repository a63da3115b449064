"""Our client and somebody on the way between it and a server that speaks TLS."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.certificates import Authority
from tests.conftest import Servers
from tests.security.meddler import Change, Meddler, followed_by, with_fields
from tests.servers import HOST, Program, RawClient, ServerProcess

import penstock
from penstock.client import Client
from penstock.errors import ConnectFailed
from penstock.spark.connection import Connection as TaskConnection
from penstock.spark.options import ConnectionOptions

FORGED = b"MSG orders 1 6\r\nforged\r\n"
INJECTIONS = {
    "an answer": b"PONG\r\n",
    "a message": b"PONG\r\n" + FORGED,
    "half a line": b"MSG orders 1",
    "half a payload": b"MSG orders 1 6\r\nfor",
    "another INFO": b'INFO {"connect_urls": ["192.0.2.1:4222"]}\r\n',
    "an error": b"-ERR 'Authorization Violation'\r\n",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def config(authority: Authority) -> str:
    pair = authority.server()
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", timeout: 20 }}'


@pytest.fixture
def server(program: Program, servers: Servers, config: str) -> ServerProcess:
    return servers(program, config)


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


async def connect(meddler: Meddler, **settings: Any) -> Client:
    settings = {"connect_timeout_s": 20.0, "reconnect_wait_s": 0.01} | settings
    return await penstock.connect(f"nats://{HOST}:{meddler.port}", **settings)


@pytest.mark.parametrize("injection", INJECTIONS.values(), ids=INJECTIONS)
@asynchronous
async def test_clear_text_behind_info_fails_the_first_connect(
    server: ServerProcess, context: ssl.SSLContext, injection: bytes
) -> None:
    async with Meddler(server.port, followed_by(injection)) as meddler:
        with pytest.raises(ConnectFailed, match="more than INFO before TLS"):
            await connect(meddler, tls=context)


@pytest.mark.parametrize("injection", INJECTIONS.values(), ids=INJECTIONS)
@asynchronous
async def test_clear_text_behind_info_fails_the_connection_of_a_spark_task(
    server: ServerProcess, authority: Authority, injection: bytes
) -> None:
    async with Meddler(server.port, followed_by(injection)) as meddler:
        options = ConnectionOptions(
            servers=f"nats://{HOST}:{meddler.port}", tls_ca=str(authority.ca), timeout_seconds=20.0
        )
        with pytest.raises(ConnectFailed, match="more than INFO before TLS"):
            await asyncio.to_thread(TaskConnection(options, "test").__enter__)
        meddler.change = with_fields()
        connection = await asyncio.to_thread(TaskConnection(options, "test").__enter__)
        assert connection.is_open
        connection.close()


@pytest.mark.parametrize("injection", INJECTIONS.values(), ids=INJECTIONS)
@asynchronous
async def test_clear_text_behind_info_never_counts_at_a_reconnect(
    server: ServerProcess, context: ssl.SSLContext, injection: bytes
) -> None:
    received: list[bytes] = []
    async with Meddler(server.port) as meddler, await connect(meddler, tls=context) as client:
        await client.subscribe("orders", callback=lambda message: received.append(message.payload))
        await client.flush()
        meddler.change = followed_by(injection)
        meddler.cut()
        # Three attempts have failed, and the client is still outside.
        await until(lambda: meddler.accepted >= 4)
        assert not client.connected

        meddler.change = with_fields()
        await until(lambda: client.connected)
        await client.publish("orders", b"true")
        await until(lambda: b"true" in received)
        assert [b"true"] == received


@pytest.mark.parametrize("scheme", ["nats", "tls"])
@asynchronous
async def test_tls_that_was_spoken_once_cannot_be_talked_away(
    server: ServerProcess, context: ssl.SSLContext, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The context that a client makes itself when the server asks for TLS.
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)
    async with Meddler(server.port) as meddler:
        url = f"{scheme}://{HOST}:{meddler.port}"
        async with await penstock.connect(
            url, connect_timeout_s=20.0, reconnect_wait_s=0.01, user="ann", password="s3cret"
        ) as client:
            meddler.change = with_fields(tls_required=False, tls_available=False)
            meddler.cut()
            await until(lambda: meddler.accepted >= 4)
            assert not client.connected
            assert b"s3cret" not in meddler.overheard


@pytest.mark.parametrize("offers_tls", [False, True])
@asynchronous
async def test_another_server_must_have_the_certificate(
    server: ServerProcess, context: ssl.SSLContext, tmp_path: Path, offers_tls: bool
) -> None:
    """A password goes to whom the certificate vouches for, whatever address INFO names."""
    said: list[bytes] = []
    info = b'INFO {"server_id": "x", "max_payload": 1024, "tls_required": %b}\r\n'
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = Authority(tmp_path, "stranger").server()
    own.load_cert_chain(pair.cert, pair.key)

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info % str(offers_tls).lower().encode())
        with suppress(OSError):
            if offers_tls:
                await writer.start_tls(own)
            said.append(await reader.read())
        said.append(b"")
        writer.close()

    thief = await asyncio.start_server(listen, HOST, 0)
    address = f"{HOST}:{thief.sockets[0].getsockname()[1]}"
    async with Meddler(server.port, with_fields(connect_urls=[address])) as meddler:
        urls = [f"nats://{HOST}:{meddler.port}", f"nats://{address}"]
        async with await penstock.connect(
            urls,
            randomize_servers=False,
            tls=context,
            user="ann",
            password="s3cret",
            connect_timeout_s=20.0,
        ) as client:
            meddler.cut()
            await until(lambda: said and client.connection.reconnects)
    thief.close()
    assert {b""} == set(said)


@pytest.mark.parametrize(
    "change",
    [with_fields(tls_required=False), with_fields(tls_required=False, tls_available=False)],
    ids=["not required", "not offered"],
)
@asynchronous
async def test_tls_that_the_caller_asks_for_is_never_left_out(
    server: ServerProcess, context: ssl.SSLContext, change: Change
) -> None:
    async with Meddler(server.port, change) as meddler:
        with pytest.raises(ConnectFailed, match="TLS is required"):
            await connect(meddler, tls=context)


@asynchronous
async def test_tls_first_takes_no_clear_text_at_all(
    program: Program, servers: Servers, config: str, context: ssl.SSLContext
) -> None:
    server = servers(program, config.replace(" }", ", handshake_first: true }"))

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "max_payload": 1024}\r\nPONG\r\n' + FORGED)
        await reader.read()
        writer.close()

    meddler = await asyncio.start_server(greet, HOST, 0)
    port = meddler.sockets[0].getsockname()[1]
    with pytest.raises(ConnectFailed):
        await penstock.connect(f"nats://{HOST}:{port}", tls=context, tls_handshake_first=True)
    meddler.close()
    async with await penstock.connect(
        server.url, tls=context, tls_handshake_first=True, connect_timeout_s=20.0
    ) as client:
        await client.flush()


def test_the_meddler_passes_on_what_it_does_not_change(servers: Servers, program: Program) -> None:
    server = servers(program)

    async def talk() -> dict[str, Any]:
        async with Meddler(server.port, with_fields(meddled=True)) as meddler:
            return await asyncio.to_thread(_info, meddler.port)

    assert asyncio.run(talk())["meddled"]


def _info(port: int) -> dict[str, Any]:
    with RawClient(port) as client:
        return client.connect().info
