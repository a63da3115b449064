"""The last words of a server: who waits for messages is told before the connection closes."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.aio import until
from tests.servers import DEADLINE_S, PENSTOCK, Program, RawClient, ServerProcess

import penstock
from penstock.config.jetstream import JetStreamConfig
from penstock.net.embedded import EmbeddedServer

CONFIG = 'jetstream { store_dir: "./js" }\n'
LAME_DUCK = CONFIG + 'lame_duck_duration: "30s"\nlame_duck_grace_period: "300ms"\n'
STREAM = {"name": "S", "subjects": ["s"]}
CONSUMER = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}}
REQUESTS = {
    b"in.1": {"batch": 100, "expires": 60_000_000_000},
    b"in.2": {"batch": 7, "expires": 60_000_000_000, "max_bytes": 5000},
}
TRIES = 20
SAID = {
    b"in.1": [b"Nats-Pending-Messages: 100", b"Nats-Pending-Bytes: 0"],
    b"in.2": [b"Nats-Pending-Messages: 7", b"Nats-Pending-Bytes: 5000"],
}


def ask(client: RawClient, subject: str, body: object, reply: bytes = b"in.api") -> None:
    payload = json.dumps(body).encode()
    client.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(payload), payload))


def waiting(port: int) -> RawClient:
    """Return a client that waits for messages of a stream that has none."""
    client = RawClient(port).connect()
    client.send(b"SUB in.> 2\r\n")
    ask(client, "$JS.API.STREAM.CREATE.S", STREAM)
    assert (client.line()[:4], b"error" in client.line()) == (b"MSG ", False)
    ask(client, "$JS.API.CONSUMER.DURABLE.CREATE.S.C", CONSUMER)
    assert (client.line()[:4], b"error" in client.line()) == (b"MSG ", False)
    for inbox, body in REQUESTS.items():
        ask(client, "$JS.API.CONSUMER.MSG.NEXT.S.C", body, inbox)
    assert client.settle() == []
    return client


def says_all(program: Program, told: Callable[[], dict[bytes, list[bytes]]]) -> bool:
    """
    Return whether every request was told, and nothing but what it has to be told.

    Ours must say all at once. nats-server queues its last words and closes the connections
    meanwhile, so a part of them may be lost: it has said what it says after several tries.
    """
    for _ in range(1 if program is PENSTOCK else TRIES):
        said = told()
        assert said.items() <= SAID.items()
        if said == SAID:
            return True
    return False


def farewells(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    """Return what each inbox was told, out of everything that was."""
    starts = [index for index, line in enumerate(lines) if line.startswith(b"HMSG ")]
    told = {lines[index].split()[1]: lines[index + 1 : index + 4] for index in starts}
    assert all(each[0] == b"NATS/1.0 409 Server Shutdown" for each in told.values())
    return {inbox: each[1:] for inbox, each in told.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_waiting_requests_are_told_of_the_end(number: signal.Signals, program: Program) -> None:
    def told() -> dict[bytes, list[bytes]]:
        with ServerProcess(program, CONFIG) as server, waiting(server.port) as client:
            server.signal(number)
            return farewells(client.rest())

    assert says_all(program, told)


def test_a_lame_duck_of_ours_tells_them_too() -> None:
    # nats-server closes JetStream at once in this mode, and says nothing of it.
    with ServerProcess(PENSTOCK, LAME_DUCK) as server, waiting(server.port) as client:
        server.signal(signal.SIGUSR2)

        assert farewells(client.rest()) == SAID


def test_an_embedded_server_tells_them(tmp_path: object) -> None:
    with EmbeddedServer(jetstream=JetStreamConfig(store_dir=str(tmp_path))) as server:
        client = waiting(server.port)
        server.stop()

        with client:
            assert farewells(client.rest()) == SAID


def test_the_last_words_reach_a_client_that_is_behind(program: Program) -> None:
    backlog = b"PUB in.load 100000\r\n" + bytes(100_000) + b"\r\n"

    def told() -> dict[bytes, list[bytes]]:
        with (
            ServerProcess(program, CONFIG) as server,
            waiting(server.port) as client,
            RawClient(server.port) as publisher,
        ):
            publisher.connect()
            publisher.send(backlog * 100)
            publisher.settle()
            server.signal(signal.SIGTERM)
            return farewells(client.rest())

    assert says_all(program, told)


def test_a_client_that_reads_nothing_delays_the_end_no_longer_than_a_moment() -> None:
    backlog = b"PUB load 100000\r\n" + bytes(100_000) + b"\r\n"
    with (
        ServerProcess(PENSTOCK, CONFIG) as server,
        waiting(server.port) as client,
        RawClient(server.port, receive_buffer=4096) as sleeper,
        RawClient(server.port) as publisher,
    ):
        sleeper.connect()
        sleeper.send(b"SUB load 1\r\n")
        sleeper.settle()
        publisher.connect()
        publisher.send(backlog * 200)
        publisher.settle()
        server.signal(signal.SIGTERM)

        assert farewells(client.rest()) == SAID
        assert server.process.wait(DEADLINE_S) == 0


def test_publishers_that_never_pause_do_not_keep_a_server_alive(program: Program) -> None:
    is_over = threading.Event()

    def publish(client: RawClient) -> None:
        with client, suppress(OSError):
            while not is_over.is_set():
                client.send(b"PUB s 10\r\n0123456789\r\n" * 100)

    with ServerProcess(program, CONFIG) as server, waiting(server.port):
        clients = [RawClient(server.port).connect() for _ in range(3)]
        threads = [threading.Thread(target=publish, args=(client,)) for client in clients]
        try:
            for thread in threads:
                thread.start()
            server.signal(signal.SIGTERM)

            server.process.wait(DEADLINE_S)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def test_an_ordered_consumer_goes_on_after_a_restart(program: Program) -> None:
    async def scenario(server: ServerProcess) -> list[bytes]:
        async with await penstock.connect(server.url, reconnect_wait_s=0.05) as client:
            jetstream = client.jetstream()
            await jetstream.streams.create("S", subjects=["s"])
            await jetstream.publish("s", b"1")
            async with jetstream.ordered_consumer("S") as consumer:
                received = [(await anext(consumer)).payload]
                server.signal(signal.SIGTERM)
                await asyncio.to_thread(server.start_again)
                await until(lambda: client.connected)
                await jetstream.publish("s", b"2")
                async with asyncio.timeout(DEADLINE_S):
                    return [*received, (await anext(consumer)).payload]

    with ServerProcess(program, CONFIG) as server:
        assert asyncio.run(scenario(server)) == [b"1", b"2"]
