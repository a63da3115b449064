"""TLS on the real server and on ours: foreign clients, raw sockets, files read again."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from tests.aio import until
from tests.certificates import Authority, Pair, public_key_sha256
from tests.conformance.natspy import settle
from tests.conftest import Servers
from tests.servers import DEADLINE_S, HOST, PENSTOCK, Program, RawClient, ServerProcess, wait_until

LARGE = 200_000
LARGE_COUNT = 60


class Keys:
    """The files of these tests, and contexts for clients that use them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.server()
        self.client = self.authority.client("ann", dns_names=("ann.example",))
        self.stranger = Authority(directory, "stranger").client("bob")

    def config(self, **settings: object) -> str:
        """Return the configuration of a server with TLS."""
        tls = {
            "cert_file": str(self.server.cert),
            "key_file": str(self.server.key),
            "ca_file": str(self.authority.ca),
        } | settings
        return "tls " + json.dumps(tls) + "\n"

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return what a client trusts, and what it shows."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("tls"))


async def _connect(
    server: ServerProcess, context: ssl.SSLContext, *, first: bool = False
) -> Client:
    return await nats.connect(
        f"tls://localhost:{server.port}",
        tls=context,
        tls_handshake_first=first,
        allow_reconnect=False,
        connect_timeout=DEADLINE_S,
    )


async def _echo_large(client: Client) -> int:
    """Return how many bytes come back of many large messages."""
    subscription = await client.subscribe("large")
    for number in range(LARGE_COUNT):
        await client.publish("large", bytes([number]) * LARGE)
    received = [await subscription.next_msg(DEADLINE_S) for _ in range(LARGE_COUNT)]
    assert [message.data[0] for message in received] == list(range(LARGE_COUNT))
    await client.close()
    return sum(len(message.data) for message in received)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, False),
        ({"verify": True}, False),
        ({"min_version": "1.3"}, False),
        ({"handshake_first": True}, True),
        ({"handshake_first": "auto"}, True),
        ({"handshake_first": "auto"}, False),
        ({"handshake_first": "300ms"}, False),
    ],
    ids=repr,
)
def test_a_foreign_client_sends_and_receives_over_tls(
    settings: dict[str, object], first: bool, keys: Keys, program: Program, servers: Servers
) -> None:
    server = servers(program, keys.config(**settings))

    async def scenario() -> int:
        return await _echo_large(await _connect(server, keys.context(keys.client), first=first))

    assert asyncio.run(scenario()) == LARGE * LARGE_COUNT


@pytest.mark.parametrize(
    ("settings", "more", "fields"),
    [
        ({}, "", {"tls_required": True}),
        ({"verify": True}, "", {"tls_required": True, "tls_verify": True}),
        ({}, "allow_non_tls: true", {"tls_available": True}),
    ],
    ids=repr,
)
def test_info_says_what_is_asked_for(
    settings: dict[str, object],
    more: str,
    fields: dict[str, bool],
    keys: Keys,
    program: Program,
    servers: Servers,
) -> None:
    with RawClient(servers(program, keys.config(**settings) + more).port) as client:
        assert {k: v for k, v in client.info.items() if k.startswith("tls")} == fields


def test_clients_without_tls_are_served_beside_those_with_it(
    keys: Keys, program: Program, servers: Servers
) -> None:
    server = servers(program, keys.config() + "allow_non_tls: true")

    async def scenario() -> None:
        secured = await _connect(server, keys.context())
        subscription = await secured.subscribe("news")
        await settle(secured)
        with RawClient(server.port) as plain:
            plain.connect().send(b"PUB news 2\r\nhi\r\n")
            assert (await subscription.next_msg(DEADLINE_S)).data == b"hi"
        await secured.close()

    asyncio.run(scenario())


def test_clear_text_where_tls_is_required_ends_the_connection(
    keys: Keys, program: Program, servers: Servers
) -> None:
    with RawClient(servers(program, keys.config()).port) as client:
        client.send(b"CONNECT {}\r\nPING\r\n")

        assert b"PONG" not in client.rest()


@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_a_client_without_a_valid_certificate_is_refused(
    who: str, keys: Keys, program: Program, servers: Servers
) -> None:
    server = servers(program, keys.config(verify=True))
    context = keys.context(keys.stranger if who == "stranger" else None)

    with pytest.raises((OSError, nats.errors.Error)):
        asyncio.run(_connect(server, context))


def test_only_pinned_keys_may_connect(keys: Keys, program: Program, servers: Servers) -> None:
    pinned = [public_key_sha256(keys.client.cert).upper()]
    server = servers(program, keys.config(verify=True, pinned_certs=pinned))
    other = keys.authority.client("other")

    async def scenario() -> None:
        client = await _connect(server, keys.context(keys.client))
        await client.flush()
        await client.close()
        with pytest.raises((OSError, nats.errors.Error)):
            await (await _connect(server, keys.context(other))).flush()

    asyncio.run(scenario())


@pytest.mark.parametrize("begins", [b"", b"\x16\x03"], ids=["silent", "begins and stops"])
def test_a_handshake_that_does_not_come_about_ends_in_time(
    begins: bytes, keys: Keys, program: Program, servers: Servers
) -> None:
    with RawClient(servers(program, keys.config(timeout="200ms")).port) as client:
        client.send(begins)

        assert client.rest() == []


def test_too_many_handshakes_in_a_second_are_turned_away(keys: Keys, program: Program) -> None:
    config = keys.config(connection_rate_limit=2, timeout="200ms")
    with ServerProcess(program, config) as server:
        clients = [RawClient(server.port) for _ in range(12)]
        answers = [client.rest() for client in clients]
        for client in clients:
            client.close()

    throttled = b"-ERR 'Connection throttling is active. Please try again later.'"
    # Each second lets two through, and twelve do not take three seconds to connect.
    assert answers.count([throttled]) >= 6


def test_pieces_of_tls_may_come_a_byte_at_a_time(
    keys: Keys, program: Program, servers: Servers
) -> None:
    with _HandMade(servers(program, keys.config()).port, keys.context()) as client:
        client.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n')

        assert client.read_until(b"PONG\r\n").endswith(b"MSG a 1 2\r\nhi\r\nPONG\r\n")


def test_monitoring_is_offered_over_tls(keys: Keys, program: Program, servers: Servers) -> None:
    server = servers(program, keys.config() + f"https: {HOST}:-1")
    port = _https_port(server)

    with urllib.request.urlopen(f"https://localhost:{port}/varz", context=keys.context()) as answer:
        shown = json.load(answer)
    assert shown["port"] == server.port
    assert shown["http_port"] == 0
    # The real one repeats what it was asked for.
    assert shown["https_port"] in (port, -1)


def _https_port(server: ServerProcess) -> int:
    return int(server.log.split(f"https monitor on {HOST}:")[1].split()[0])


def test_a_reload_gives_the_monitoring_its_new_certificate_too(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with ServerProcess(PENSTOCK, keys.config() + f"https: {HOST}:-1") as server:
        address = (HOST, _https_port(server))
        before = ssl.get_server_certificate(address)
        keys.server = keys.authority.server()
        server.signal(signal.SIGHUP)

        wait_until(lambda: ssl.get_server_certificate(address) != before)


def test_connz_tells_of_the_handshake(keys: Keys, program: Program, servers: Servers) -> None:
    server = servers(program, keys.config(verify=True) + "http_port: -1\n")

    async def scenario() -> None:
        client = await _connect(server, keys.context(keys.client))
        await client.flush()
        (connection,) = (await asyncio.to_thread(_connz, server))["connections"]
        await client.close()
        shown = {name: value for name, value in connection.items() if name.startswith("tls")}
        certificate, *_ = shown.pop("tls_peer_certs")
        assert certificate["subject"] == "CN=ann"
        assert shown == {"tls_version": "1.3", "tls_cipher_suite": shown["tls_cipher_suite"]}
        assert shown["tls_cipher_suite"].startswith("TLS_")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "cipher", "more"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "ECDHE-ECDSA-AES256-SHA", {}),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
            "ECDHE-ECDSA-AES128-SHA256",
            {"allow_insecure_cipher_suites": True},
        ),
    ],
)
def test_an_old_client_and_its_cipher_suite_are_let_in(
    name: str, cipher: str, more: dict[str, object], program: Program, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    context = keys.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(cipher)
    with (
        ServerProcess(program, keys.config(cipher_suites=[name], **more)) as server,
        RawClient(server.port) as client,
        context.wrap_socket(client.sock, server_hostname="localhost") as secured,
    ):
        assert (secured.version(), secured.cipher()[0]) == ("TLSv1.2", cipher)
        secured.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert b"PONG" in secured.recv(4096)


def test_a_list_with_suites_of_tls_1_3_alone_lets_in_no_older_version(
    keys: Keys, program: Program, servers: Servers
) -> None:
    suites = ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]
    server = servers(program, keys.config(cipher_suites=suites, handshake_first=True))

    def is_let_in(version: ssl.TLSVersion) -> bool:
        context = keys.context()
        context.minimum_version = context.maximum_version = version
        return _is_let_in(server, context)

    assert is_let_in(ssl.TLSVersion.TLSv1_3)
    assert not is_let_in(ssl.TLSVersion.TLSv1_2)


def _is_let_in(server: ServerProcess, context: ssl.SSLContext) -> bool:
    """Return whether a handshake succeeds, to a server that waits for it first."""
    try:
        with (
            socket.create_connection((HOST, server.port), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            return secured.recv(4) == b"INFO"
    except ssl.SSLError:
        return False


def test_a_client_must_know_a_curve_of_the_server(
    keys: Keys, program: Program, servers: Servers
) -> None:
    server = servers(program, keys.config(curve_preferences=["CurveP384"], handshake_first=True))

    def is_let_in(curve: str) -> bool:
        context = keys.context()
        context.set_ecdh_curve(curve)
        return _is_let_in(server, context)

    assert (is_let_in("secp384r1"), is_let_in("prime256v1")) == (True, False)


def test_behind_a_proxy_that_ends_tls_no_certificate_is_needed(program: Program) -> None:
    with ServerProcess(program, "tls {}\nallow_non_tls: true") as server:
        with RawClient(server.port) as client:
            client.connect()
            assert client.info["tls_available"] is True
            assert "tls_required" not in client.info
            client.send(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
            assert client.settle() == [b"MSG a 1 1", b"x"]
        with RawClient(server.port) as client, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(client.sock, server_hostname="localhost")
        with RawClient(server.port) as client:
            assert client.connect().settle() == []


def test_a_reload_takes_the_new_certificate_and_keeps_those_who_are_in(
    program: Program, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    with ServerProcess(program, keys.config()) as server:

        async def scenario() -> None:
            client = await _connect(server, keys.context())
            before = _serial(server.port, keys.context())
            keys.server = keys.authority.server()
            server.signal(signal.SIGHUP)
            await until(lambda: _serial(server.port, keys.context()) != before)
            await client.flush()
            await client.close()

        asyncio.run(scenario())


def test_a_reload_with_broken_files_changes_nothing(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with ServerProcess(PENSTOCK, keys.config()) as server:
        before = _serial(server.port, keys.context())
        keys.server.cert.write_text("no certificate")
        server.signal(signal.SIGHUP)
        wait_until(lambda: "Failed to reload" in server.log)

        assert "`tls.cert_file`" in server.log
        assert _serial(server.port, keys.context()) == before


def test_flags_switch_tls_on(keys: Keys, program: Program) -> None:
    flags = ("--tlscert", str(keys.server.cert), "--tlskey", str(keys.server.key))
    with ServerProcess(
        program, "", "--tls", *flags, "--tlsverify", "--tlscacert", str(keys.authority.ca)
    ) as server:

        async def scenario() -> int:
            return await _echo_large(await _connect(server, keys.context(keys.client)))

        assert asyncio.run(scenario()) == LARGE * LARGE_COUNT
        with RawClient(server.port) as client:
            assert client.info["tls_verify"]


def _connz(server: ServerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/connz?auth=1") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _serial(port: int, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate a server shows."""
    with _HandMade(port, context) as client:
        return str(client.certificate["serialNumber"])


class _HandMade:
    """A TLS client that sends every byte by itself."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._raw = RawClient(port)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._run(self._tls.do_handshake)
        self.certificate = self._tls.getpeercert() or {}

    def __enter__(self) -> _HandMade:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._send()

    def read_until(self, end: bytes) -> bytes:
        received = b""
        while not received.endswith(end):
            received += self._run(lambda: self._tls.read(65536))
        return received

    def _run(self, step: Callable[[], bytes | None]) -> bytes:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._send()
                self._in.write(self._raw.sock.recv(65536))
            else:
                self._send()
                return result or b""

    def _send(self) -> None:
        for byte in self._out.read():
            self._raw.send(bytes([byte]))


def test_a_client_is_shown_the_certificate_that_it_asks_for(
    program: Program, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    names = ("one.example", "two.example", "*.three.example")
    pairs = [authority.server(name.removeprefix("*."), (name,)) for name in names]
    certs = [{"cert_file": str(pair.cert), "key_file": str(pair.key)} for pair in pairs]
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False

    def shown(server: ServerProcess, asked: str | None) -> str:
        with (
            socket.create_connection((HOST, server.port), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname=asked) as secured,
        ):
            details: Any = secured.getpeercert()
            return details["subjectAltName"][0][1]

    config = "tls " + json.dumps({"certs": certs, "handshake_first": True})
    with ServerProcess(program, config) as server:
        assert shown(server, "one.example") == names[0]
        assert shown(server, "two.example") == names[1]
        assert shown(server, "any.three.example") == names[2]
        for other in ("a.b.three.example", "nobody.example", None):
            assert shown(server, other) == names[0]
