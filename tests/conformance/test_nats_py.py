"""The Python client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.conformance.natspy import settle
from tests.conftest import Servers
from tests.servers import DEADLINE_S, Program, ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIGS = Path(__file__).parent / "configs"
LAME_DUCK = 'lame_duck_duration: "30s", lame_duck_grace_period: "200ms"'


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program)


@asynccontextmanager
async def connected(*servers: ServerProcess, **options: Any) -> AsyncIterator[Client]:
    urls = [server.url for server in servers]
    client = await nats.connect(
        urls, **{"reconnect_time_wait": 0.05, "dont_randomize": True} | options
    )
    try:
        yield client
    finally:
        await client.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 3 * DEADLINE_S)

    asyncio.run(bounded())
    # The client leaves the sockets of failed attempts to the garbage collector.
    gc.collect()


async def collect(subscription: Any, count: int) -> list[bytes]:
    return [(await subscription.next_msg(DEADLINE_S)).data for _ in range(count)]


def test_messages_arrive_in_order(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as publisher, connected(server) as subscriber:
            subscription = await subscriber.subscribe("order.*")
            await settle(subscriber)
            sent = [b"%d" % number for number in range(2000)]
            for payload in sent:
                await publisher.publish("order.a", payload)

            assert sent == await collect(subscription, len(sent))

    run(scenario)


def test_headers_and_reply_arrive_as_they_were_sent(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            subscription = await client.subscribe("headers")
            headers = {"First": "one", "second": "zwei ☃"}
            await client.publish("headers", b"body", reply="answer.here", headers=headers)

            message = await subscription.next_msg(DEADLINE_S)
            assert (message.data, message.reply) == (b"body", "answer.here")
            assert headers == message.headers

    run(scenario)


def test_a_thousand_requests_at_once_are_each_answered(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as service, connected(server) as client:

            async def answer(message: Msg) -> None:
                await message.respond(b"to " + message.data)

            await service.subscribe("service", cb=answer)
            await settle(service)
            requests = [client.request("service", b"%d" % number, 5) for number in range(1000)]

            answers = [message.data for message in await asyncio.gather(*requests)]
            assert answers == [b"to %d" % number for number in range(1000)]

    run(scenario)


def test_a_request_that_nobody_answers_fails_at_once(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request("nobody.here", b"?", timeout=DEADLINE_S)

    run(scenario)


def test_a_request_with_the_old_style_of_inbox_is_answered(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:

            async def answer(message: Msg) -> None:
                await message.respond(b"!")

            await client.subscribe("old", cb=answer)
            message = await client.request("old", b"?", DEADLINE_S, old_style=True)
            assert message.data == b"!"

    run(scenario)


def test_a_queue_group_shares_messages_out(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            connected(server) as publisher,
            connected(server) as one,
            connected(server) as two,
        ):
            received: list[tuple[str, bytes]] = []

            def member(name: str) -> Callable[[Msg], Awaitable[None]]:
                async def note(message: Msg) -> None:
                    received.append((name, message.data))

                return note

            await one.subscribe("work.*", queue="workers", cb=member("one"))
            await two.subscribe("work.*", queue="workers", cb=member("two"))
            everything = await publisher.subscribe("work.*")
            await settle(one, two, publisher)
            sent = [b"%d" % number for number in range(400)]
            for payload in sent:
                await publisher.publish("work.now", payload)
            assert sent == await collect(everything, len(sent))
            await asyncio.gather(one.drain(), two.drain())

            assert sorted(sent) == sorted(payload for _, payload in received)
            assert {name for name, _ in received} == {"one", "two"}

    run(scenario)


def test_auto_unsubscribe_ends_a_subscription(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            received: list[bytes] = []

            async def note(message: Msg) -> None:
                received.append(message.data)

            subscription = await client.subscribe("some", cb=note)
            await subscription.unsubscribe(limit=3)
            for number in range(6):
                await client.publish("some", b"%d" % number)
            await settle(client)
            await client.drain()

            assert received == [b"0", b"1", b"2"]

    run(scenario)


def test_a_drained_connection_has_handled_everything(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as publisher, connected(server) as subscriber:
            received: list[bytes] = []

            async def note(message: Msg) -> None:
                await asyncio.sleep(0)
                received.append(message.data)

            await subscriber.subscribe("drain", cb=note)
            await settle(subscriber)
            for number in range(500):
                await publisher.publish("drain", b"%d" % number)
            await settle(publisher)
            await subscriber.drain()

            assert received == [b"%d" % number for number in range(500)]
            assert subscriber.is_closed

    run(scenario)


def test_interest_that_comes_and_goes_is_followed(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as publisher, connected(server) as subscriber:
            everything = await subscriber.subscribe("churn.>")
            for number in range(200):
                subject = f"churn.{number % 7}.{number}"
                pattern = ("churn.*.*", f"churn.{number % 7}.>", subject)[number % 3]
                subscription = await subscriber.subscribe(pattern)
                await settle(subscriber)
                await publisher.publish(subject, b"%d" % number)

                assert [b"%d" % number] == await collect(subscription, 1)
                await subscription.unsubscribe()

            assert [b"%d" % number for number in range(200)] == await collect(everything, 200)

    run(scenario)


def test_the_largest_payload_passes_and_a_larger_one_does_not(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            subscription = await client.subscribe("large")
            payload = bytes(range(256)) * 4096
            assert len(payload) == client.max_payload
            for _ in range(5):
                await client.publish("large", payload)

            assert [payload] * 5 == await collect(subscription, 5)
            with pytest.raises(nats.errors.MaxPayloadError):
                await client.publish("large", payload + b"x")

    run(scenario)


def test_a_client_moves_to_the_next_server_and_keeps_its_subscriptions(program: Program) -> None:
    async def scenario() -> None:
        with ServerProcess(program) as first, ServerProcess(program) as second:
            reconnected = asyncio.Event()

            async def note() -> None:
                reconnected.set()

            async with connected(first, second, reconnected_cb=note) as client:
                subscription = await client.subscribe("moved")
                await settle(client)
                first.signal(signal.SIGKILL)
                await reconnected.wait()
                async with connected(second) as publisher:
                    await settle(client)
                    await publisher.publish("moved", b"found you")

                    assert await collect(subscription, 1) == [b"found you"]

    run(scenario)


def test_a_lame_duck_tells_its_clients(program: Program) -> None:
    async def scenario() -> None:
        with ServerProcess(program, LAME_DUCK) as first, ServerProcess(program) as second:
            told, reconnected = asyncio.Event(), asyncio.Event()

            async def note_told() -> None:
                told.set()

            async def note_reconnected() -> None:
                reconnected.set()

            async with connected(
                first, second, lame_duck_mode_cb=note_told, reconnected_cb=note_reconnected
            ) as client:
                first.signal(signal.SIGUSR2)
                await told.wait()
                await reconnected.wait()

                assert client.connected_url is not None
                assert client.connected_url.port == second.port
            assert first.process.wait(DEADLINE_S) is not None

    run(scenario)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("token", {"token": "s3cret"}),
        ("token_bcrypt", {"token": "s3cret"}),
        ("user", {"user": "derek", "password": "s3cret"}),
        ("users", {"user": "ann", "password": "s3cret"}),
        ("users", {"user": "bea", "password": "s3cret"}),
    ],
)
def test_the_right_credentials_let_a_client_in(
    program: Program, servers: Servers, config: str, options: dict[str, str]
) -> None:
    async def scenario() -> None:
        server = servers(program, (CONFIGS / f"{config}.conf").read_text())
        async with connected(server, **options) as client:
            subscription = await client.subscribe("in")
            await client.publish("in", b"here")

            assert await collect(subscription, 1) == [b"here"]

    run(scenario)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("token", {"token": "wrong"}),
        ("token_bcrypt", {"token": "wrong"}),
        ("users", {"user": "ann", "password": "wrong"}),
        ("users", {"user": "bea", "password": "wrong"}),
        ("users", {}),
    ],
)
def test_wrong_credentials_keep_a_client_out(
    program: Program, servers: Servers, config: str, options: dict[str, str]
) -> None:
    async def scenario() -> None:
        server = servers(program, (CONFIGS / f"{config}.conf").read_text())
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
            async with connected(server, allow_reconnect=False, **options):
                pytest.fail("it was let in")

    run(scenario)


def test_what_is_not_permitted_is_told_to_the_client(program: Program, servers: Servers) -> None:
    async def scenario() -> None:
        server = servers(program, (CONFIGS / "permissions.conf").read_text())
        errors: asyncio.Queue[Exception] = asyncio.Queue()
        async with connected(server, user="golden", password="x", error_cb=errors.put) as client:
            await client.publish("forbidden", b"")
            assert 'permissions violation for publish to "forbidden"' in str(await errors.get())
            await client.subscribe("secret")
            assert 'permissions violation for subscription to "secret"' in str(await errors.get())
            assert client.is_connected

    run(scenario)
