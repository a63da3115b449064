"""Our client's ways in: token, password, nkey, creds file, TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.contract.credentials import (
    USER,
    Key,
    make_certificate,
    operator_config_and_creds,
)
from tests.servers import HOST, NATS_SERVER, Program, ServerProcess

import penstock
from penstock.errors import ConnectFailed, PermissionDenied

TOKEN = "authorization { token: s3cret }"
PASSWORD = 'authorization { users: [ { user: ann, password: "p@ss/w:rd" } ] }'
PERMISSIONS = """
authorization { users: [ { user: ann, password: pw, permissions: {
    publish: { deny: "secret.>" }, subscribe: { deny: "secret.>" } } } ] }
"""


@asynchronous
async def test_a_token_lets_us_in(program: Program, servers: Servers) -> None:
    server = servers(program, TOKEN)
    async with await penstock.connect(server.url, token="s3cret") as client:
        await client.flush()
    async with await penstock.connect(f"nats://s3cret@127.0.0.1:{server.port}") as client:
        await client.flush()


@asynchronous
async def test_a_user_and_password_let_us_in(program: Program, servers: Servers) -> None:
    server = servers(program, PASSWORD)
    async with await penstock.connect(server.url, user="ann", password="p@ss/w:rd") as client:
        await client.flush()
    url = f"nats://ann:p%40ss%2Fw%3Ard@127.0.0.1:{server.port}"
    async with await penstock.connect(url) as client:
        await client.flush()


@asynchronous
async def test_wrong_credentials_are_refused_by_name(program: Program, servers: Servers) -> None:
    with pytest.raises(ConnectFailed, match="Authorization Violation"):
        await penstock.connect(servers(program, PASSWORD).url, user="ann", password="wrong")


@asynchronous
async def test_a_denied_subscription_ends_with_the_reason(
    program: Program, servers: Servers
) -> None:
    errors: list[Exception] = []
    server = servers(program, PERMISSIONS)
    async with await penstock.connect(
        server.url, user="ann", password="pw", on_error=errors.append
    ) as client:
        allowed = await client.subscribe("open.>")
        denied = await client.subscribe("secret.plans")
        with pytest.raises(PermissionDenied, match=r"secret\.plans"):
            await denied.next(timeout_s=5)

        await client.publish("secret.plans")
        await client.publish("open.house")
        assert "open.house" == (await allowed.next(timeout_s=5)).subject
        assert [PermissionDenied, PermissionDenied] == [type(error) for error in errors]


@asynchronous
async def test_a_denied_request_fails_at_once(program: Program, servers: Servers) -> None:
    server = servers(program, PERMISSIONS)
    async with await penstock.connect(server.url, user="ann", password="pw") as client:
        async with await client.subscribe("open.house"):
            other = asyncio.ensure_future(client.request("open.house", timeout_s=3600))
            with pytest.raises(PermissionDenied, match=r"secret\.plans"):
                await client.request("secret.plans", timeout_s=3600)
            assert not other.done()
            other.cancel()


@asynchronous
async def test_an_nkey_signs_the_nonce(servers: Servers) -> None:
    key = Key(USER)
    server = servers(NATS_SERVER, f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    async with await penstock.connect(server.url, nkey_seed=key.seed) as client:
        await client.flush()
    with pytest.raises(ConnectFailed, match="Authorization Violation"):
        await penstock.connect(server.url, nkey_seed=Key(USER).seed)


@asynchronous
async def test_a_creds_file_lets_us_in(servers: Servers, tmp_path: Path) -> None:
    config, path = operator_config_and_creds(tmp_path)
    server = servers(NATS_SERVER, config)
    async with await penstock.connect(server.url, credentials=path) as client:
        await client.flush()
    with pytest.raises(ConnectFailed, match="Authorization Violation"):
        await penstock.connect(server.url)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def tls_config(certificate: tuple[Path, Path], extra: str = "") -> str:
    return f'tls {{ cert_file: "{certificate[0]}", key_file: "{certificate[1]}", {extra} }}'


@pytest.mark.parametrize("first", [False, True])
@asynchronous
async def test_tls_comes_after_info_or_before(
    servers: Servers, certificate: tuple[Path, Path], first: bool
) -> None:
    server = servers(NATS_SERVER, tls_config(certificate, f"handshake_first: {first}".lower()))
    context = ssl.create_default_context(cafile=str(certificate[0]))
    async with await penstock.connect(server.url, tls=context, tls_handshake_first=first) as client:
        subscription = await client.subscribe("secure")
        for number in range(5000):
            await client.publish("secure", b"%d" % number * 50)

        received = [(await subscription.next(timeout_s=5)).payload for _ in range(5000)]
        assert [b"%d" % number * 50 for number in range(5000)] == received


@asynchronous
async def test_a_certificate_nobody_vouches_for_is_refused(
    servers: Servers, certificate: tuple[Path, Path]
) -> None:
    server = servers(NATS_SERVER, tls_config(certificate))
    with pytest.raises(ConnectFailed, match="certificate verify failed"):
        await penstock.connect(server.url)


@asynchronous
async def test_a_server_that_wants_our_certificate_gets_it(
    servers: Servers, certificate: tuple[Path, Path]
) -> None:
    config = tls_config(certificate, f'verify: true, ca_file: "{certificate[0]}"')
    server = servers(NATS_SERVER, config)
    context = ssl.create_default_context(cafile=str(certificate[0]))
    context.load_cert_chain(*map(str, certificate))
    async with await penstock.connect(server.url, tls=context) as client:
        await client.flush()


@asynchronous
async def test_tls_is_never_given_up_silently(program: Program, servers: Servers) -> None:
    server = servers(program)
    with pytest.raises(ConnectFailed, match="does not offer it"):
        await penstock.connect(f"tls://127.0.0.1:{server.port}")


@asynchronous
async def test_a_server_that_keeps_refusing_us_is_given_up() -> None:
    closed: list[bool] = []
    with ServerProcess(NATS_SERVER, TOKEN) as server:
        client = await penstock.connect(
            server.url, token="s3cret", reconnect_wait_s=0.01, on_closed=lambda: closed.append(True)
        )
        port = server.port
        server.process.kill()
        server.process.wait()
        changed = TOKEN.replace("s3cret", "changed")
        with ServerProcess(NATS_SERVER, changed, "-p", str(port)):
            await until(lambda: closed)
        await client.close()


@asynchronous
async def test_a_server_that_never_shakes_hands_is_left_in_time() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required":true,"max_payload":1024}\r\n')
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectFailed, match="connect_timeout_s"):
        await penstock.connect(f"nats://{HOST}:{port}", connect_timeout_s=0.1)
    server.close()
    for writer in writers:
        writer.close()


@asynchronous
async def test_what_does_not_speak_nats_is_told_apart() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectFailed, match="does not speak NATS"):
        await penstock.connect(f"nats://{HOST}:{port}")
    server.close()
    for writer in writers:
        writer.close()
