"""Every way to a server: IPv4 and IPv6, in pieces of any size, and each kind of user on each."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import nats
import pytest
from tests.certificates import Authority
from tests.conformance.natspy import settle
from tests.conformance.realm import OPEN, SECURE, Realm, cells
from tests.conftest import Servers
from tests.servers import DEADLINE_S, HOST, Program, RawClient, ServerProcess, wait_until
from tests.websocket import RawWebSocket, run_nats_py

import penstock

CONVERSATION = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
    b"SUB a.* 1\r\nSUB b q 22\r\nPUB a.b 5\r\nhello\r\nPUB a.c r.x 0\r\n\r\n"
    b"HPUB b 12 17\r\nNATS/1.0\r\n\r\nworld\r\nUNSUB 1\r\nPUB a.b 1\r\nx\r\nPING\r\n"
)
ANSWERS = (
    b"MSG a.b 1 5\r\nhello\r\nMSG a.c 1 r.x 0\r\n\r\n"
    b"HMSG b 22 12 17\r\nNATS/1.0\r\n\r\nworld\r\nPONG\r\n"
)


def has_ipv6() -> bool:
    return Path("/proc/net/if_inet6").exists() and "1" in Path("/proc/net/if_inet6").read_text()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_conversation_may_come_in_pieces_of_any_size(
    size: int, program: Program, servers: Servers
) -> None:
    with RawClient(servers(program).port) as client:
        for start in range(0, len(CONVERSATION), size):
            client.send(CONVERSATION[start : start + size])

        assert client.read(len(ANSWERS)) == ANSWERS


@pytest.mark.parametrize("address", ["::1", "::", "0.0.0.0", ""])
@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_clients_connect_over_ipv6(address: str, program: Program) -> None:
    with ServerProcess(program, "", "-a", address) as server:

        async def scenario() -> None:
            foreign = await nats.connect(f"nats://[::1]:{server.port}")
            own = await penstock.connect(f"nats://[::1]:{server.port}")
            subscription = await foreign.subscribe("a")
            await settle(foreign)
            await own.publish("a", b"hi")
            assert (await subscription.next_msg(DEADLINE_S)).data == b"hi"
            await own.close()
            await foreign.close()

        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "host"), [("::", "::"), ("0.0.0.0", "0.0.0.0"), ("", "0.0.0.0")]
)
@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_every_address_is_of_both_families_and_each_client_keeps_its_own(
    address: str, host: str, program: Program
) -> None:
    with ServerProcess(program, "", "-a", address) as server:
        shown = f"[{host}]" if ":" in host else host
        assert f"client connections on {shown}:{server.port}\n" in server.log
        for own in ("127.0.0.1", "::1"):
            with RawClient(server.port, host=own) as client:
                assert (client.info["host"], client.info["client_ip"]) == (host, own)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_monitoring_and_websocket_are_reached_over_ipv6_too(host: str, program: Program) -> None:
    shown = f"[{host}]" if ":" in host else host
    config = (
        f"http: '{shown}:-1'\nwebsocket {{ host: '{host}', port: -1, no_tls: true }}\n"
        f"host: '{HOST}'\n"
    )
    with ServerProcess(program, config, "-a", host) as server:
        for address in ("127.0.0.1", "::1"):
            for port in (server.http_port, server.websocket_port):
                with socket.create_connection((address, port), DEADLINE_S) as client:
                    client.sendall(b"GET /varz HTTP/1.1\r\nHost: a\r\n\r\n")
                    assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("flags", [("-a", "0.0.0.0", "-m", "-1"), ("-a", "::", "-m", "-1")])
@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_monitoring_without_an_address_is_reached_by_either_name_of_this_machine(
    flags: tuple[str, ...], program: Program
) -> None:
    with ServerProcess(program, "", *flags) as server:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, server.http_port), DEADLINE_S) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert client.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_an_address_of_ipv4_stays_one(program: Program, servers: Servers) -> None:
    with pytest.raises(ConnectionRefusedError):
        RawClient(servers(program).port, host="::1")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("transports"))


@pytest.mark.parametrize(("kind", "is_secure"), cells())
def test_every_kind_of_user_connects_by_every_way(
    kind: str, is_secure: bool, realm: Realm, program: Program
) -> None:
    options = dict(realm.options[kind])
    if is_secure:
        options["tls"] = ssl.create_default_context(cafile=str(realm.authority.ca))
    if "cert" in options:
        options["tls"].load_cert_chain(options.pop("cert"), options.pop("key"))

    async def reaches(url: str) -> bool:
        settings = {"allow_reconnect": False, "connect_timeout": DEADLINE_S}
        client = await nats.connect(url, **settings, **options)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.publish(inbox, b"hi")
        message = await subscription.next_msg(DEADLINE_S)
        await client.close()
        return message.data == b"hi"

    async def scenario(server: ServerProcess) -> None:
        for transport in SECURE if is_secure else OPEN:
            assert await reaches(server.url_of(transport))

    with ServerProcess(program, realm.server_config(kind, is_secure=is_secure)) as server:
        run_nats_py(scenario(server))


def test_the_certificate_says_who_a_client_is_by_every_secure_way(
    authority: Authority, program: Program
) -> None:
    pair, ann = authority.server(), authority.client("ann", emails=("ann@example.org",))
    tls = {"cert_file": str(pair.cert), "key_file": str(pair.key), "ca_file": str(authority.ca)}
    block = json.dumps(tls | {"verify_and_map": True})
    config = (
        f"tls {block}\nwebsocket {{ listen: '{HOST}:-1', tls {block} }}\n"
        "authorization { users = [ {user: 'ann@example.org', permissions { publish: mine } } ] }\n"
    )
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(ann.cert, ann.key)

    async def is_refused(url: str) -> None:
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def on_error(error: Exception) -> None:
            if not refused.done():
                refused.set_result(str(error))

        client = await nats.connect(url, tls=context, error_cb=on_error, allow_reconnect=False)
        await client.publish("mine", b"")
        await client.publish("yours", b"")
        await client.flush()
        said = await asyncio.wait_for(refused, DEADLINE_S)
        await client.close()
        assert 'permissions violation for publish to "yours"' in said.lower()

    with ServerProcess(program, config) as server:
        for scheme, port in (("tls", server.port), ("wss", server.websocket_port)):
            run_nats_py(is_refused(f"{scheme}://localhost:{port}"))


def has_interest(publisher: RawClient) -> bool:
    """Tell whether somebody has subscribed: a request that nobody hears is answered with 503."""
    publisher.send(b"SUB reply 9\r\nPUB load reply 1\r\nx\r\nUNSUB 9\r\n")
    return not any(b" 503" in line for line in publisher.settle())


@pytest.mark.parametrize("way", ["tls", "ws", "wss"])
def test_who_does_not_read_is_cut_off_by_every_way(
    way: str, authority: Authority, program: Program
) -> None:
    pair = authority.server()
    tls = json.dumps({"cert_file": str(pair.cert), "key_file": str(pair.key)})
    websocket = f"tls {tls}" if way == "wss" else "no_tls: true"
    config = (
        "http_port: -1\nmax_pending: 2MB\nwrite_deadline: '1s'\nallow_non_tls: true\n"
        f"tls {tls}\nwebsocket {{ listen: '{HOST}:-1'\n{websocket}\n}}\n"
    )
    context = ssl.create_default_context(cafile=str(authority.ca))
    with ServerProcess(program, config) as server, RawClient(server.port) as publisher:
        if way == "tls":
            sock = RawClient(server.port, receive_buffer=4096).sock
            sleeper = context.wrap_socket(sock, server_hostname="localhost")
            sleeper.sendall(b'CONNECT {"verbose":false}\r\nSUB load 1\r\n')
        else:
            client = RawWebSocket(server.websocket_port, context if way == "wss" else None)
            client.upgrade().say(b'CONNECT {"verbose":false}\r\nSUB load 1\r\n')
            sleeper = client.sock
        wait_until(lambda: has_interest(publisher.connect()))
        message = b"PUB load 100000\r\n" + bytes(100_000) + b"\r\n"
        for _ in range(150):
            publisher.send(message)

        wait_until(lambda: server.varz()["slow_consumers"] == 1)
        publisher.settle()
        sleeper.close()
